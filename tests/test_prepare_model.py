"""`tensorops.torch.prepare_model` on modules of torch; models of transformers are in `test_prepare_transformers.py`."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import tensorops as tp
from support import require_provider
from tensorops import formats
from tensorops.torch import prepare_model, prepare_model_with_custom_kernels

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def _kernels():
    require_provider("torch_cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sizes are small
    yield
    torch.set_num_threads(threads)


class LlamaRMSNorm(nn.Module):
    """Rounds before it multiplies."""

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        wide = hidden_states.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype)


class GemmaRMSNorm(nn.Module):
    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * (1.0 + self.weight.float())).type_as(x)


class CenteredRMSNorm(LlamaRMSNorm):
    """Is a LayerNorm without bias, whatever its name says."""

    def forward(self, hidden_states):
        return super().forward(hidden_states - hidden_states.mean(-1, keepdim=True))


class LargestRMSNorm(LlamaRMSNorm):
    """Is nothing that an operator computes."""

    def forward(self, hidden_states):
        return self.weight * hidden_states / (hidden_states.abs().amax(-1, keepdim=True) + self.variance_epsilon)


class GatedMLP(nn.Module):
    def __init__(self, width=16, inner=24):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, inner), nn.Linear(width, inner)
        self.down_proj = nn.Linear(inner, width)
        self.act_fn = nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def of_rows(x, weight, eps, offset=0.0):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (weight + offset)


def centred(x, axis=-1):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-5)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def of_groups(x, weight, bias):
    y = centred(x.reshape(x.shape[0], 4, -1)).reshape(x.shape)
    return y * weight[None, :, None] + bias[None, :, None]


KINDS = {
    "rms_norm": (lambda: nn.RMSNorm(48, eps=1e-6), lambda x, w: of_rows(x, w, 1e-6), "rms_norm"),
    "rms_norm of Llama": (lambda: LlamaRMSNorm(48), lambda x, w: of_rows(x, w, 1e-6), "rms_norm"),
    "rms_norm of Gemma": (lambda: GemmaRMSNorm(48), lambda x, w: of_rows(x, w, 1e-6, 1.0), "rms_norm"),
    "rms_norm without weight": (
        lambda: nn.RMSNorm(48, eps=1e-5, elementwise_affine=False), lambda x: of_rows(x, 1.0, 1e-5), "rms_norm",
    ),
    "layer_norm": (lambda: nn.LayerNorm(48), lambda x, w, b: centred(x) * w + b, "layer_norm"),
    "layer_norm without bias": (lambda: nn.LayerNorm(48, bias=False), lambda x, w: centred(x) * w, "layer_norm"),
    "group_norm": (lambda: nn.GroupNorm(4, 8), of_groups, "group_norm"),
    "gelu": (lambda: nn.GELU(approximate="tanh"), gelu_tanh, "gelu"),
    "mish": (nn.Mish, lambda x: x * np.tanh(np.log1p(np.exp(x))), "mish"),
    "elu": (lambda: nn.ELU(0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)), "elu"),
    "selu": (
        nn.SELU,
        lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
        "selu",
    ),
}  # fmt: skip


def randomized(module, dtype="float32"):
    generator = torch.Generator().manual_seed(0)
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=generator) * (0.5 if p.ndim == 1 else p.shape[-1] ** -0.5)
    return module.to(getattr(torch, dtype))


def numbers(*shape, dtype="float32"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))


def in_float64(*tensors):
    return [x.detach().double().numpy() for x in tensors]


def ran(function):
    """Return the function's result, and which kernels computed it."""
    with tp.trace() as log:
        y = function()
    return y, [(record.operator, record.kernel) for record in log]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_modules_compute_by_operators(kind, dtype):
    make, reference, operator = KINDS[kind]
    module = randomized(make(), dtype)
    own = copy.deepcopy(module)
    x = numbers(*((3, 8, 6) if kind == "group_norm" else (3, 5, 48)), dtype=dtype)
    report = prepare_model(module)
    assert [row.operator for row in report.replaced] == [operator]
    y, kernels = ran(lambda: module(x))
    assert kernels == [(operator, "torch_cpu")]
    expected = reference(*in_float64(x, *module.parameters()))
    eps = torch.finfo(x.dtype).eps
    np.testing.assert_allclose(y.detach().double(), expected, rtol=4 * eps, atol=4 * eps)
    given, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
    cotangent = numbers(*y.shape, dtype=dtype).flip(0)
    found = torch.autograd.grad(module(given), [given, *module.parameters()], cotangent)
    theirs = torch.autograd.grad(own(wanted), [wanted, *own.parameters()], cotangent)
    for mine, other in zip(found, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=32 * eps, atol=32 * eps)


@pytest.mark.parametrize("make", [lambda: nn.RMSNorm(64, eps=1e-6), lambda: LlamaRMSNorm(64), lambda: GemmaRMSNorm(64)])
def test_norms_of_half_types_round_as_the_module_does(make):
    module = randomized(make(), "bfloat16")
    own, x = copy.deepcopy(module), numbers(200, 64, dtype="bfloat16")
    assert prepare_model(module).replaced
    assert (module(x) != own(x)).double().mean() < 1e-3  # sums in another order


@pytest.mark.parametrize("make", [lambda: nn.RMSNorm(64, eps=1e-6), lambda: LlamaRMSNorm(64)])
def test_a_norm_rounds_as_before_if_it_is_converted_later(make):
    module = randomized(make())
    own, x = copy.deepcopy(module).bfloat16(), numbers(200, 64, dtype="bfloat16")
    prepare_model(module)
    assert (module.bfloat16()(x) != own(x)).double().mean() < 1e-3


def test_gated_units_and_single_rows():
    mlp = randomized(GatedMLP(128, 160))
    own, x = copy.deepcopy(mlp), numbers(1, 128)
    report = prepare_model(mlp)
    assert {row.operator for row in report.replaced} == {"swiglu", "linear"}
    with torch.no_grad():
        y, kernels = ran(lambda: mlp(x))
        assert ("swiglu", "torch_cpu") in kernels
        torch.testing.assert_close(y, own(x))
    torch.testing.assert_close(mlp(x), own(x))  # records gradients


def test_a_gated_unit_calls_an_activation_that_somebody_listens_to():
    mlp, calls = randomized(GatedMLP()), []
    prepare_model(mlp)
    mlp.act_fn.register_forward_hook(lambda *_: calls.append(1))
    mlp(numbers(2, 16))
    assert calls == [1]


@pytest.mark.parametrize("options", [{}, {"ignore_index": 3, "label_smoothing": 0.1}, {"reduction": "sum"}])
def test_losses(options):
    loss, own = nn.CrossEntropyLoss(**options), nn.CrossEntropyLoss(**options)
    prepare_model(loss)
    x, targets = numbers(6, 9), torch.tensor([3, 1, 0, 8, 3, 2])
    y, kernels = ran(lambda: loss(x, targets))
    assert kernels == [("cross_entropy", "torch_cpu")]
    torch.testing.assert_close(y, own(x, targets))
    images = numbers(2, 9, 4)  # classes are not last
    torch.testing.assert_close(loss(images, targets[:4].repeat(2, 1)), own(images, targets[:4].repeat(2, 1)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss(x.bfloat16(), targets).dtype == own(x.bfloat16(), targets).dtype


class Heads(nn.Module):
    """Attends by torch's function, as models that are written by hand do."""

    def forward(self, x, **options):
        q, k, v = x.unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("options", [
    {}, {"is_causal": True}, {"attn_mask": torch.ones(7, 7, dtype=torch.bool).tril()}, {"dropout_p": 0.0, "scale": 2.0},
])  # fmt: skip
def test_calls_of_torchs_attention(options):
    module, own, x = Heads(), Heads(), numbers(2, 7, 96)
    assert [row.operator for row in prepare_model(module).replaced] == ["scaled_dot_product_attention"]
    y, kernels = ran(lambda: module(x, **options))
    torch.testing.assert_close(y, own(x, **options))
    assert kernels == ([] if "attn_mask" in options else [("scaled_dot_product_attention", "torch_cpu")])
    given = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(module(given, **options).sum(), given)
    (expected,) = torch.autograd.grad(own(given, **options).sum(), given)
    torch.testing.assert_close(found, expected)


def test_attention_counts_positions_as_torch_does():
    class Cross(nn.Module):
        def forward(self, q, k):
            return F.scaled_dot_product_attention(q, k, k, is_causal=True)

    module, q, k = Cross(), numbers(1, 2, 3, 8), numbers(1, 2, 5, 8)
    prepare_model(module)
    assert torch.equal(module(q, k), F.scaled_dot_product_attention(q, k, k, is_causal=True))


# --- what is left alone ------------------------------------------------------------------------------


def reason(model, **options):
    report = prepare_model(model, **options)
    assert not report.replaced
    assert "forward" not in vars(model)
    (row,) = report.modules
    return row.reason


def test_a_module_that_computes_something_else_is_left_alone():
    assert "its results differ by" in reason(LargestRMSNorm(16))


def test_what_a_module_computes_matters_not_its_name():
    assert [row.operator for row in prepare_model(CenteredRMSNorm(16)).replaced] == ["layer_norm"]


def test_a_module_that_computes_in_a_narrower_type_is_left_alone():
    assert "its results differ by" in reason(LlamaRMSNorm(16).double())
    assert prepare_model(nn.RMSNorm(16).double()).replaced


def test_what_would_be_slower_is_left_alone_unless_it_is_named():
    assert reason(nn.SiLU()) == "torch's own silu is as fast"
    module = nn.SiLU()
    assert prepare_model(module, only="silu").replaced
    _, kernels = ran(lambda: module(numbers(4)))
    assert kernels == [("silu", "torch_cpu")]


def test_a_module_that_writes_into_its_argument_is_left_alone():
    module, x = nn.ELU(inplace=True), numbers(4)
    assert reason(module) == reason(nn.ELU(inplace=True), only="elu") == "it writes into its argument"
    assert module(x) is x


def test_a_module_that_cannot_be_tried_is_left_alone():
    class ShyRMSNorm(LlamaRMSNorm):
        def forward(self, hidden_states):
            assert hidden_states.shape[0] == 3, "three rows\nand no others"
            return super().forward(hidden_states)

    expected = "it cannot be tried on random numbers: AssertionError: three rows"
    assert reason(ShyRMSNorm(16)) == expected


def test_a_forward_that_somebody_else_has_replaced_is_left_alone():
    module = nn.RMSNorm(16)
    module.forward = lambda x: x
    assert prepare_model(module).modules[0].reason == "its forward has been replaced by something else"
    x = numbers(2, 16)
    assert module(x) is x


def test_parameters_that_kernels_cannot_take():
    with torch.device("meta"):
        meta = nn.RMSNorm(16)
    assert reason(meta) == "weight is on the device meta: prepare the model after its weights are loaded"
    sparse = nn.RMSNorm(16)
    sparse.weight = nn.Parameter(torch.ones(16).to_sparse())
    assert reason(sparse) == "weight is not dense"
    eighths = nn.RMSNorm(16)
    eighths.weight = nn.Parameter(torch.ones(16).to(torch.float8_e4m3fn))
    assert reason(eighths) == "weight has dtype float8_e4m3fn"
    derived = nn.RMSNorm(16)
    derived.weight = nn.Parameter(torch.ones(16).as_subclass(type("Derived", (torch.Tensor,), {})))
    assert reason(derived) == "weight is a Derived"


def test_without_kernels_everything_is_left_alone():
    with tp.set_backend("torch", providers=["generic"]):
        assert reason(nn.Mish()) == "no kernel of mish takes its arguments"


def test_each_module_that_computes_has_a_row_with_the_reason():
    model = nn.ModuleDict(
        {
            "axes": nn.LayerNorm((4, 5)),
            "blocks": nn.ModuleList([nn.Sequential(nn.Linear(5, 5), nn.Identity())]),
            "wide": nn.Linear(512, 512, dtype=torch.float64),
            "attention": nn.MultiheadAttention(8, 2),
            "others": nn.Sequential(nn.BatchNorm1d(5), nn.ReLU(), nn.Softmax(-1), nn.Embedding(3, 4), nn.Dropout()),
            "extra": nn.ParameterList([torch.ones(2)]),
        }
    )
    model["gated"] = GatedMLP()
    model["gated"].act_fn = nn.GELU()
    reasons = {row.name: row.reason for row in prepare_model(model).modules if not row.operator}
    none = "there is no replacement for this class"
    small = "torch's own product of {} elements is as fast"
    assert reasons == {
        "axes": "it normalizes 2 axes",
        "blocks.0.0": small.format(25),
        "wide": "torch's own product of float64 is as fast",
        "attention": none,
        "attention.out_proj": none,
        **{f"others.{i}": none for i in range(5)},
        "gated": "its activation is GELU, not SiLU",
        **{f"gated.{name}_proj": small.format(384) for name in ("gate", "up", "down")},
    }
    assert [row.name for row in prepare_model(model, only="Embedding").modules] == ["others.3"]


# --- what a proof covers -----------------------------------------------------------------------------


class PlainRMSNorm(nn.Module):
    """Whatever else its forward reads is among the options."""

    def __init__(self, size=16, post=None, dtypes=(), gain=None, shift=0.0, buffer=None, names=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.post, self.dtypes, self.gain, self.shift = 1e-6, post, list(dtypes), gain, shift
        self.names = names or {}
        self.register_buffer("buffer", buffer)

    def scaled(self, y):
        return y * self.weight

    def forward(self, x):
        for dtype in self.dtypes:
            x = x.to(dtype).to(x.dtype)
        y = self.scaled(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)) + self.shift
        y = y if self.gain is None else self.gain * y
        y = y if self.buffer is None else self.buffer * y
        y = 2 * y if self.names.get("twice") else y
        return y if self.post is None else self.post(y)


@pytest.mark.parametrize("options", [
    {"post": torch.tanh}, {"dtypes": [torch.bfloat16]}, {"gain": 0.5}, {"shift": 1}, {"names": {"twice": True}},
    {"buffer": torch.tensor(0.5)},
])  # fmt: skip
def test_only_modules_that_are_alike_share_a_proof(options):
    model = nn.Sequential(PlainRMSNorm(), PlainRMSNorm(**options), PlainRMSNorm())
    own, x = copy.deepcopy(model), numbers(3, 16)
    assert [row.name for row in prepare_model(model).replaced] == ["0", "2"]
    torch.testing.assert_close(model(x), own(x))


@pytest.mark.parametrize("value", [1.0, 0.5])
def test_a_buffer_is_an_argument_that_may_change(value):
    assert "results differ" in reason(PlainRMSNorm(buffer=torch.tensor(value)))
    assert "may read the numbers in buffer" in reason(PlainRMSNorm(buffer=torch.tensor(1)))
    assert "results differ" in reason(PlainRMSNorm(gain=torch.tensor(value)))
    assert "may read the numbers in gain" in reason(PlainRMSNorm(gain=torch.tensor(1)))


def double(y):
    return 2 * y


CHANGES = {
    "an attribute": lambda m: setattr(m, "post", double),
    "a number": lambda m: setattr(m, "shift", 1.0),
    "eps": lambda m: setattr(m, "eps", 1.0),
    "a list, in place": lambda m: m.dtypes.append(torch.bfloat16),
    "a dict, in place": lambda m: m.names.update(twice=True),
    "a method of the instance": lambda m: setattr(m, "scaled", double),
    "a buffer that was None": lambda m: setattr(m, "buffer", torch.tensor(3.0)),
    "a tensor": lambda m: setattr(m, "gain", torch.tensor(2.0)),
    "the class": lambda m: setattr(m, "__class__", LargestRMSNorm) or setattr(m, "variance_epsilon", 0.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_later_is_seen(change):
    module, x = PlainRMSNorm(), numbers(3, 16)
    own = copy.deepcopy(module)
    prepare_model(module)
    other = copy.deepcopy(module)
    for each in (module, own):
        CHANGES[change](each)
    assert torch.equal(module(x), own(x))
    _, kernels = ran(lambda: other(x))
    assert kernels == [("rms_norm", "torch_cpu")]  # a copy has attributes of its own


def test_a_changed_class_or_variable_is_seen(monkeypatch):
    module, x = PlainRMSNorm(), numbers(3, 16)
    prepare_model(module)
    y = module(x)
    monkeypatch.setattr(PlainRMSNorm, "scaled", lambda self, y: 2 * y)
    torch.testing.assert_close(module(x), 2 * y)
    monkeypatch.undo()
    assert ran(lambda: module(x))[1] == [("rms_norm", "torch_cpu")]
    monkeypatch.setattr(PlainRMSNorm, "forward", lambda self, x: -x)
    assert torch.equal(module(x), -x)


FACTOR = 1.0


def test_a_changed_global_is_seen(monkeypatch):
    class GlobalRMSNorm(LlamaRMSNorm):
        def forward(self, x):
            return super().forward(x) * FACTOR

    module, x = GlobalRMSNorm(16), numbers(3, 16)
    prepare_model(module)
    y, kernels = ran(lambda: module(x))
    assert kernels == [("rms_norm", "torch_cpu")]
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    torch.testing.assert_close(module(x), 3 * y)


def test_activations_that_are_exchanged_or_changed_are_seen():
    mlp, x = randomized(GatedMLP()), numbers(2, 16)
    own = copy.deepcopy(mlp)
    prepare_model(mlp)
    assert ran(lambda: mlp(x))[1] == [("swiglu", "torch_cpu")]
    mlp.act_fn = own.act_fn = nn.ReLU()
    assert torch.equal(mlp(x), own(x))
    gelu = nn.GELU()
    prepare_model(gelu)
    gelu.approximate = "tanh"
    assert torch.equal(gelu(x), F.gelu(x, approximate="tanh"))
    elu = nn.ELU()
    prepare_model(elu)
    elu.inplace = True
    assert elu(x) is x


def test_a_gated_unit_calls_other_projections():
    mlp, x = randomized(GatedMLP()), numbers(2, 16)
    own = copy.deepcopy(mlp)
    prepare_model(mlp)
    mlp.up_proj = own.up_proj = nn.Sequential(own.up_proj, nn.Tanh())
    y, kernels = ran(lambda: mlp(x))
    assert kernels == [("swiglu", "torch_cpu")]
    torch.testing.assert_close(y, own(x))


class DroppingMLP(GatedMLP):
    def __init__(self, p):
        super().__init__()
        self.dropout = nn.Dropout(p)

    def forward(self, x):
        return self.dropout(super().forward(x))


@pytest.mark.parametrize("p", [0.5, 1e-9])  # the second drops nothing of a few numbers
def test_what_is_random_in_training_is_replaced_in_evaluation_only(p):
    mlp, x = randomized(DroppingMLP(p)), numbers(64, 16)
    own = copy.deepcopy(mlp)
    (row,) = [row for row in prepare_model(mlp).replaced if row.kind == "DroppingMLP"]
    assert row.reason == "not in training: it draws random numbers"
    results = []
    for each in (mlp, own):
        torch.manual_seed(3)
        results.append(each(x))
    assert torch.equal(*results)
    assert bool((results[0] == 0).any()) == (p == 0.5)
    assert ran(lambda: mlp(x))[1] == []
    y, kernels = ran(lambda: mlp.eval()(x))
    assert kernels == [("swiglu", "torch_cpu")]
    torch.testing.assert_close(y, own.eval()(x))
    mlp.dropout.train()
    assert ran(lambda: mlp(x))[1] == []


def test_a_module_that_changes_itself_is_left_alone():
    class CountingRMSNorm(LlamaRMSNorm):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    class AveragingRMSNorm(LlamaRMSNorm):
        def __init__(self, size):
            super().__init__(size)
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, x):
            if self.training:
                self.mean.mul_(0.9).add_(0.1 * x.detach().mean())
            return super().forward(x)

    assert reason(CountingRMSNorm(16)) == "its forward changes attributes or buffers"
    (row,) = prepare_model(AveragingRMSNorm(16)).replaced
    assert row.reason.startswith("not in training: its forward changes attributes or buffers")


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_default_eps_of_rms_norm_is_that_of_the_computation(dtype, affine):
    module = nn.RMSNorm(16, elementwise_affine=affine)
    prepare_model(module)
    x = numbers(3, 16, dtype=dtype) * 0.01
    module.to(x.dtype)
    y, kernels = ran(lambda: module(x))
    assert kernels == [("rms_norm", "torch_cpu")]
    eps = 2.0**-52 if dtype == "float64" else 2.0**-23
    rounding = 2 * torch.finfo(x.dtype).eps
    np.testing.assert_allclose(y.detach().double(), of_rows(*in_float64(x), 1.0, eps), rtol=rounding, atol=rounding)


def test_a_dtype_that_was_not_proven_is_left_to_the_module():
    module = LlamaRMSNorm(16)
    (row,) = prepare_model(module).replaced
    assert row.reason == "not in float64"
    module.double()
    assert ran(lambda: module(numbers(3, 16, dtype="float64")))[1] == []
    module.bfloat16()
    assert ran(lambda: module(numbers(3, 16, dtype="bfloat16")))[1] == [("rms_norm", "torch_cpu")]


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_norms_without_parameters_refuse_other_widths(kind):
    module, own = kind(6, elementwise_affine=False), kind(6, elementwise_affine=False)
    prepare_model(module)
    with pytest.raises(RuntimeError, match="normalized_shape") as expected:
        own(torch.ones(2, 5))
    with pytest.raises(RuntimeError) as raised:
        module(torch.ones(2, 5))
    assert str(raised.value) == str(expected.value)


def test_a_norm_along_another_axis_of_more_is_left_alone():
    class SecondRMSNorm(LlamaRMSNorm):
        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + self.variance_epsilon) * self.weight

    assert "results differ" in reason(SecondRMSNorm(16))


def test_an_argument_that_the_module_does_not_know_is_refused():
    module = nn.Mish()
    prepare_model(module)
    with pytest.raises(TypeError, match="unexpected keyword argument 'inplace'"):
        module(numbers(3), inplace=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("quantize", [None, 8, "q8_0"])
def test_products_under_autocast_have_the_dtype_of_torchs(quantize, dtype):
    layer = randomized(nn.Linear(128, 160), dtype)
    own = copy.deepcopy(layer)
    prepare_model(layer, quantize=quantize)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for rows in (1, 3, 40):
            x = numbers(rows, 128, dtype=dtype)
            y, expected = layer(x), own(x)
            assert y.dtype == expected.dtype
            torch.testing.assert_close(y, expected, rtol=0.03, atol=0.03)


CALLS = 0


def test_attention_reads_and_writes_the_variables_of_its_module(monkeypatch):
    class Both(nn.Module):
        def forward(self, x):
            global CALLS
            CALLS += 1
            return FACTOR * F.scaled_dot_product_attention(x, x, x)

    module, x = Both(), numbers(1, 2, 7, 8)
    assert prepare_model(module).replaced
    y, calls = module(x), CALLS
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    z, kernels = ran(lambda: module(x))
    assert kernels == [("scaled_dot_product_attention", "torch_cpu")]
    assert torch.equal(z, 3 * y)
    assert calls + 1 == CALLS


def test_another_attention_in_torchs_place_is_called(monkeypatch):
    module, x = Heads(), numbers(2, 7, 96)
    prepare_model(module)
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, **_: -v)
    assert torch.equal(module(x), Heads()(x))
    monkeypatch.undo()
    monkeypatch.setattr(Heads, "forward", lambda self, x: -x)
    assert torch.equal(module(x), -x)


# --- what stays --------------------------------------------------------------------------------------


def chain():
    """Return a model of which three modules are replaced."""
    return randomized(nn.Sequential(nn.Linear(8, 16), LlamaRMSNorm(16), nn.Mish(), nn.LayerNorm(16)))


def test_the_model_stays_as_it_is():
    model = chain()
    before, modules, types = model.state_dict(), list(model.modules()), list(map(type, model.modules()))
    calls, state = [], torch.random.get_rng_state()
    model[1].register_forward_hook(lambda *_: calls.append("hook"))
    prepare_model(model, measure=True)
    assert calls == []
    assert torch.equal(torch.random.get_rng_state(), state)
    assert list(model.modules()) == modules
    assert list(map(type, modules)) == types
    assert all(module.training for module in modules)
    assert all(p.grad is None for p in model.parameters())
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(after[key].data_ptr() == before[key].data_ptr() for key in before)
    model(numbers(3, 8))
    assert calls == ["hook"]
    fresh = chain()
    fresh.load_state_dict(after)
    torch.testing.assert_close(fresh(numbers(3, 8)), model(numbers(3, 8)))


def test_copies_have_their_own_parameters():
    model = chain()
    prepare_model(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[1].weight.zero_()
        y, kernels = ran(lambda: other[1](numbers(3, 16)))
    assert kernels == [("rms_norm", "torch_cpu")]
    assert torch.all(y == 0)
    assert torch.any(model[1](numbers(3, 16)) != 0)


def test_a_pickled_model_is_its_own_until_it_is_prepared_again():
    model, x = chain(), numbers(3, 8)
    expected = model(x)
    prepare_model(model)
    data = pickle.dumps(model)
    assert b"tensorops.torch" not in data  # a program without the library can load it
    other = pickle.loads(data)
    y, kernels = ran(lambda: other(x))
    assert kernels == []
    torch.testing.assert_close(y, expected)
    assert len(prepare_model(other).replaced) == 3
    y, kernels = ran(lambda: other(x))
    assert [operator for operator, _ in kernels] == ["rms_norm", "mish", "layer_norm"]
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_models_are_prepared_where_no_gradients_are_recorded(mode):
    with mode():
        model = chain()
        report = prepare_model(model)
        assert [row.operator for row in report.replaced] == ["rms_norm", "mish", "layer_norm"]
        _, kernels = ran(lambda: model(numbers(3, 8)))
    assert [operator for operator, _ in kernels] == ["rms_norm", "mish", "layer_norm"]


def test_a_second_call_changes_nothing():
    model = chain()
    first = prepare_model(model)
    replaced = [vars(module).get("forward") for module in model.modules()]
    second = prepare_model(model)
    assert {row.reason for row in second.modules if row.kind != "Linear"} == {"already prepared"}
    second.restore()
    assert [vars(module).get("forward") for module in model.modules()] == replaced
    first.restore()
    assert not any("forward" in vars(module) for module in model.modules())


def test_the_report_restores_at_the_end_of_a_block():
    model = chain()
    with prepare_model(model) as report:
        assert len(report.replaced) == 3
        kept = model[2].forward = lambda x: x
    assert model[2].forward is kept  # is somebody else's now
    assert [name for name, module in model.named_modules() if "forward" in vars(module)] == ["2"]


def test_parameters_may_be_exchanged():
    model = randomized(LlamaRMSNorm(16))
    prepare_model(model)
    x, weight = numbers(3, 16), torch.full((16,), 2.0)
    y = torch.func.functional_call(model, {"weight": weight}, (x,))
    np.testing.assert_allclose(y.detach(), of_rows(*in_float64(x, weight), 1e-6), rtol=1e-6)


# --- what the operators refuse, the module computes -----------------------------------------------------


def outcome(module, args):
    """Return the error that a call raises, if it does."""
    try:
        module(*args)
    except Exception as error:
        return error
    return None


def test_arguments_of_another_dtype():
    module, x = randomized(LlamaRMSNorm(16)), numbers(3, 16, dtype="bfloat16")
    own = copy.deepcopy(module)
    prepare_model(module)
    torch.testing.assert_close(module(x), own(x))
    assert module(x).dtype == torch.float32


@pytest.mark.parametrize("make", [lambda: LlamaRMSNorm(16), lambda: nn.LayerNorm(16), nn.Mish, nn.RMSNorm, GatedMLP])
def test_arguments_by_name_and_wrong_ones(make):
    module = make() if make is not nn.RMSNorm else nn.RMSNorm(16)
    own, x = copy.deepcopy(module), numbers(3, 16)
    prepare_model(module)
    name = {"LlamaRMSNorm": "hidden_states", "LayerNorm": "input", "Mish": "input"}.get(type(module).__name__, "x")
    torch.testing.assert_close(module(**{name: x}), own(**{name: x}))
    for wrong in ((), ("x",), (x, x), (torch.arange(4),)):
        expected, raised = outcome(own, wrong), outcome(module, wrong)
        assert (type(raised), str(raised)) == (type(expected), str(expected))  # in the module's own terms


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's own
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_and_empty_arguments(kind):
    module = randomized(KINDS[kind][0]())
    own = copy.deepcopy(module)
    prepare_model(module)
    shape = (3, 8, 6) if kind == "group_norm" else (3, 48)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for x in (numbers(*shape), numbers(*shape, dtype="bfloat16")):
            y, expected = module(x), own(x)
            assert y.dtype == expected.dtype
            torch.testing.assert_close(y, expected, rtol=0.02, atol=0.02)
    empty = numbers(*shape)[:0]
    assert module(empty).shape == own(empty).shape == empty.shape


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripted_modules_are_left_alone():
    report = prepare_model(torch.jit.script(nn.Sequential(nn.LayerNorm(4), nn.Mish())))
    assert {(row.operator, row.reason) for row in report.modules} == {("", "it is compiled by torch.jit")}


def test_tensors_elsewhere():
    module = nn.Mish()
    prepare_model(module)
    assert module(torch.ones(3, device="meta")).device.type == "meta"
    sparse = torch.eye(3).to_sparse()
    squared = type("ReLUSquaredActivation", (nn.Module,), {"forward": lambda self, x: torch.square(torch.relu(x))})()
    prepare_model(squared)
    assert squared(sparse).is_sparse


@pytest.mark.filterwarnings("ignore")  # torch.jit warns of itself, and of numbers that it takes for constants
def test_transformations():
    module = randomized(LlamaRMSNorm(16))
    own, x = copy.deepcopy(module), numbers(3, 16)
    prepare_model(module)
    torch.testing.assert_close(torch.func.vmap(module)(x), own(x))
    torch.testing.assert_close(torch.func.jacrev(module)(x), torch.func.jacrev(own)(x))
    traced = torch.jit.trace(module, x)
    torch.testing.assert_close(traced(2 * x), own(2 * x))


@pytest.mark.filterwarnings("ignore")  # torch.jit warns of itself, and of numbers that it takes for constants
def test_a_traced_product_of_one_row_is_no_constant():
    module, x = randomized(nn.Linear(128, 160)), numbers(1, 128)
    prepare_model(module)
    with torch.no_grad():
        traced = torch.jit.trace(module, x)
        torch.testing.assert_close(traced(2 * x), nn.functional.linear(2 * x, module.weight, module.bias))


# --- torch.compile -----------------------------------------------------------------------------------


def test_the_compiler_sees_the_modules_own_forward():
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    model = nn.Sequential(*(nn.Sequential(LlamaRMSNorm(16), nn.Mish(), GatedMLP()) for _ in range(3)))
    own, x = copy.deepcopy(model), numbers(3, 16)
    prepare_model(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(x).square().sum().backward()
    own(x).square().sum().backward()
    for mine, other in zip(model.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    counters.clear()
    block_of = torch.compile(lambda block, x: block(x), backend="eager", fullgraph=True)
    for block, theirs in zip(model, own, strict=True):
        torch.testing.assert_close(block_of(block, x), theirs(x))
    assert counters["stats"]["unique_graphs"] == 1  # of all blocks
    torch._dynamo.reset()


# --- quantized weights -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("quantize", "least", "most"),
    [
        (8, 0.002, 0.01), (4, 0.03, 0.15), ({"bits": 8, "group_size": 64, "mode": "affine"}, 0.002, 0.01),
        ("q8_0", 0.002, 0.01), ("q4_1", 0.03, 0.15), ("q8_0_x32", 0.002, 0.01), ("q4_0_x32", 0.03, 0.2),
    ],
)  # fmt: skip
def test_weights_become_blocks(quantize, least, most, dtype):
    layer = randomized(nn.Linear(128, 64), dtype)
    own = copy.deepcopy(layer)
    report = prepare_model(layer, quantize=quantize)
    (row,) = report.replaced
    assert prepare_model(layer).modules[0].reason == "already quantized"
    assert row.operator == "quantized_linear"
    assert least < row.error < most
    names = {"bias", "weight_blocks"} if isinstance(quantize, str) else {"bias", "weight_blocks", "weight_scales"}
    assert set(layer.state_dict()) - {"weight_biases"} == names | {"_extra_state"}
    bits = quantize if isinstance(quantize, int) else 8
    assert (f"format={quantize!r}" if isinstance(quantize, str) else f"bits={bits}") in repr(layer)
    eps = torch.finfo(own.weight.dtype).eps
    for rows, operator in ((1, "quantized_linear"), (3, "quantized_linear"), (40, "dequantize")):
        x = numbers(rows, 128, dtype=dtype)
        with torch.no_grad():
            y, kernels = ran(lambda x=x: layer(x))
        assert kernels == [(operator, "torch_cpu")]
        wide, weight, bias = in_float64(x, layer.weight, own.bias)
        np.testing.assert_allclose(y.double(), wide @ weight.T + bias, rtol=4 * eps, atol=16 * eps)
    given = numbers(3, 128, dtype=dtype).requires_grad_()
    layer(given).sum().backward()
    expected = torch.ones(3, 64).double() @ layer.weight.double()
    torch.testing.assert_close(given.grad.double(), expected, rtol=8 * eps, atol=32 * eps)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))
    report.restore()
    assert type(layer) is nn.Linear
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert torch.equal(layer(x), own(x))


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("quantize", [8, "q8_0", "q4_0_x32"])
def test_layers_of_blocks_are_one_graph(quantize, rows):
    """Also if nothing has asked for the format before: a compiler cannot trace an import."""
    torch._dynamo.reset()
    layer, x = nn.Linear(128, 64), numbers(rows, 128)
    prepare_model(layer, quantize=quantize)
    formats._loaded.clear()
    with torch.no_grad():
        y = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    np.testing.assert_allclose(y, layer(x).detach(), rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()


def test_only_some_weights_become_blocks():
    model = nn.ModuleDict({"head": nn.Linear(64, 8), "body": nn.Linear(64, 8, bias=False), "odd": nn.Linear(33, 8)})
    report = prepare_model(model, quantize=8, skip="head")
    assert [(row.name, row.operator or row.reason) for row in report.modules] == [
        ("body", "quantized_linear"), ("odd", "its 33 columns cannot be divided into groups of 32"),
    ]  # fmt: skip
    rows = {name: prepare_model(model[name], quantize=of).modules[0].reason for name, of in (
        ("head", "q8_0_x32"), ("odd", "q8_0"),
    )}  # fmt: skip
    assert rows == {
        "head": "its 8 rows are no multiple of 32, which 'q8_0_x32' interleaves",
        "odd": "its 33 columns cannot be divided into groups of 32",
    }
    assert prepare_model(nn.Linear(64, 8, device="meta"), quantize=8).modules[0].reason.startswith("weight is on")
    for wrong, error, match in (
        (5, ValueError, "quantize is 5, expected 8, 4, options of"),
        ("q8_o", ValueError, r"quantize is 'q8_o', .* q5_1, q8_0, .* \(did you mean 'q8_0'\?\)"),
        ("q4_k", ValueError, "or a format that can be written: .*, q4_0, q4_1, q5_0"),
        ("affine", ValueError, "a format that can be written"),
        ([8], ValueError, r"quantize is \[8\], expected"),
        ({"bits": 3}, ValueError, "bits is 3"),
        ({"bits": 8, "size": 3}, TypeError, "size"),
    ):
        with pytest.raises(error, match=match):
            prepare_model(model, quantize=wrong)


WRITERS = {
    "in place": lambda layer, to: layer.weight.mul_(0).add_(to),
    "a copy": lambda layer, to: layer.weight.copy_(to),
    "data": lambda layer, to: setattr(layer.weight, "data", to),
    "data in place": lambda layer, to: layer.weight.data.zero_().add_(to),
    "rows": lambda layer, to: [row.copy_(new) for row, new in zip(layer.weight, to, strict=True)],
    "an item": lambda layer, to: layer.weight.T.__setitem__(slice(None), to.T),
    "a result": lambda layer, to: torch.mul(to, 1.0, out=layer.weight),
    "several": lambda layer, to: torch._foreach_copy_([layer.weight], [to]),
    "an initialization": lambda layer, to: nn.init.zeros_(layer.weight) + layer.weight.data.add_(to),
    "an assignment": lambda layer, to: setattr(layer, "weight", nn.Parameter(to)),
}


@pytest.mark.parametrize("quantize", [8, "q8_0_x32"])
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_written_into_a_weight_is_quantized(writer, quantize):
    layer = randomized(nn.Linear(64, 32))
    report = prepare_model(layer, quantize=quantize)
    to, x = numbers(32, 64), numbers(3, 64).flip(0)
    with torch.no_grad():
        WRITERS[writer](layer, to)
    expected = x @ to.T + layer.bias
    torch.testing.assert_close(layer(x), expected, rtol=0.02, atol=0.1)
    fresh = copy.deepcopy(layer)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x), layer(x))
    report.restore()
    assert type(layer.weight) is nn.Parameter
    torch.testing.assert_close(layer(x), expected, rtol=0.02, atol=0.1)


def test_a_quantized_weight_reads_as_a_tensor():
    layer = randomized(nn.Linear(64, 32))
    own = copy.deepcopy(layer)
    prepare_model(layer, quantize=8)
    weight = layer.weight
    torch.testing.assert_close(weight, own.weight.detach(), rtol=0, atol=0.01, check_dtype=True)
    array = weight.numpy()
    assert np.array_equal(np.asarray(weight[:2].tolist(), np.float32), array[:2])
    assert repr(weight) == repr(torch.from_numpy(array))
    for plain in (weight + 0, weight.clone(), copy.deepcopy(weight), pickle.loads(pickle.dumps(weight))):
        assert type(plain) is torch.Tensor
        plain.zero_()
    assert torch.equal(layer.weight, weight)
    given = numbers(3, 64).requires_grad_()
    F.linear(given, weight).sum().backward()
    torch.testing.assert_close(given.grad, torch.from_numpy(array).sum(0).expand(3, 64))
    for wrong, error, match in (
        (torch.ones(3, 3), ValueError, r"weight has shape \(3, 3\), expected \(32, 64\)"),
        (None, TypeError, "weight is NoneType, expected a tensor"),
    ):
        with pytest.raises(error, match=match):
            layer.weight = wrong
    with pytest.raises(ValueError, match=r"weight has shape \(1, 64\)"):
        layer.weight.data = torch.ones(1, 64)


def test_an_adapter_is_merged_into_quantized_weights():
    peft = pytest.importorskip("peft")
    model = nn.Sequential(randomized(nn.Linear(64, 32)))
    prepare_model(model, quantize=8)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["0"], init_lora_weights=False))
    x = numbers(3, 64)
    before, alone = adapted(x).detach(), adapted.base_model.model[0].base_layer(x).detach()
    merged = adapted.merge_and_unload()
    assert (before - alone).abs().max() > 0.1
    torch.testing.assert_close(merged(x).detach(), before, rtol=0.01, atol=0.02)


def test_a_state_loads_into_layers_of_its_format_only():
    layers = {}
    for name in ("q8_0", "q8_0_x32", 8):
        layers[name] = torch.nn.Linear(64, 32)
        prepare_model(layers[name], quantize=name)
    state = layers["q8_0"].state_dict()
    assert all(isinstance(x, torch.Tensor) for x in state.values() if x is not None)
    with pytest.raises(
        ValueError, match=r'the state has weights of \{"format": "q8_0"\}, and the layer of .*"q8_0_x32"'
    ):
        layers["q8_0_x32"].load_state_dict(state)
    other = torch.nn.Linear(64, 32)
    prepare_model(other, quantize="q8_0")
    other.load_state_dict(state)
    x = torch.randn(3, 64)
    assert torch.equal(other(x), layers["q8_0"](x))


def test_layers_that_are_trained_beside_frozen_ones_keep_their_weights():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    model[0].requires_grad_(False)
    report = prepare_model(model, quantize=8)
    assert [(m.operator, m.reason) for m in report.modules][1] == ("", "its weight is trained, and others are frozen")
    assert report.modules[0].operator == "quantized_linear"
    assert isinstance(model[1].weight, torch.nn.Parameter)


def test_preparing_draws_no_random_numbers():
    class Gated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj = torch.nn.Linear(8, 12), torch.nn.Linear(8, 12)
            self.down_proj, self.act_fn = torch.nn.Linear(12, 8), torch.nn.SiLU()

        def forward(self, x):
            return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

    drawn = []
    for prepares in (False, True):
        torch.manual_seed(3)
        model = Gated()
        if prepares:
            assert [m.operator for m in prepare_model(model).replaced] == ["swiglu"]
        drawn.append(torch.rand(2))
    assert torch.equal(*drawn)


def test_a_weight_of_two_modules_stays_theirs():
    model = nn.ModuleDict({"embedding": nn.Embedding(8, 64), "head": nn.Linear(64, 8), "body": nn.Linear(64, 64)})
    model["head"].weight = model["embedding"].weight
    rows = {row.name: row.operator or row.reason for row in prepare_model(model, quantize=8).modules}
    assert rows["head"] == "its weight is that of embedding, too"
    assert rows["body"] == "quantized_linear"
    assert model["head"].weight is model["embedding"].weight


def test_products_of_quantized_weights_may_be_less_precise():
    layer = randomized(nn.Linear(256, 64))
    (row,) = prepare_model(layer, quantize="q8_0", precision="low").replaced
    assert row.reason == "q8_0, precision low"
    assert "precision='low'" in repr(layer)
    x = numbers(1, 256)
    with torch.no_grad():
        expected = tp.quantized_linear(x, layer.weight_blocks, format="q8_0", precision="low") + layer.bias
        assert torch.equal(layer(x), expected)
    with pytest.raises(ValueError, match="precision is 'low', but goes with quantize only"):
        prepare_model(layer, precision="low")
    with pytest.raises(ValueError, match="precision is 'lower', expected one of 'highest', 'high', 'low'"):
        prepare_model(layer, quantize=8, precision="lower")


@pytest.mark.parametrize(("rows", "kernels"), [(4, []), (4000, [("gelu", "torch_cpu")])])
def test_graphs_call_what_is_faster_than_the_compilers_own(rows, kernels):
    torch._dynamo.reset()
    module, x = nn.GELU(approximate="tanh"), numbers(rows, 16)
    prepare_model(module)
    y, ours = ran(lambda: torch.compile(module, backend="aot_eager", fullgraph=True)(x))
    assert ours == kernels
    np.testing.assert_allclose(y, gelu_tanh(*in_float64(x)), rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()


# --- which modules, and the report -----------------------------------------------------------------------


def test_only_and_skip():
    def replaced(**options):
        return [row.name for row in prepare_model(chain(), **options).replaced]

    assert replaced() == ["1", "2", "3"]
    assert replaced(only="mish") == ["2"]
    assert replaced(only=["LayerNorm", "1"]) == ["1", "3"]
    assert replaced(skip="*Norm") == ["2"]
    assert replaced(only="*_norm", skip="1") == ["3"]
    model = chain()
    with pytest.raises(ValueError, match="skip names 'rms_nrom', which no module fits"):
        prepare_model(model, skip="rms_nrom")
    assert not any("forward" in vars(module) for module in model.modules())


def test_without_a_check_structure_decides():
    model = LargestRMSNorm(16)
    (row,) = prepare_model(model, check=False).replaced
    assert (row.operator, row.error) == ("rms_norm", None)


def test_the_report_prints_as_a_table():
    model = nn.ModuleDict(
        {
            "blocks": nn.ModuleList(nn.ModuleDict({"norm": LlamaRMSNorm(16)}) for _ in range(2)),
            "mish": nn.Mish(),
            "act": nn.SiLU(),
        }
    )
    report = prepare_model(model, measure=True)
    lines = str(report).splitlines()
    assert lines[0] == "3 of 4 modules are computed by operators"
    assert lines[1].split() == ["module", "class", "operator", "error", "before", "after", "note"]
    assert lines[2].split()[:4] == ["blocks.*.norm", "x2", "LlamaRMSNorm", "rms_norm"]
    assert lines[-1].split("  ")[-1].strip() == "torch's own silu is as fast"
    assert "<table>" in report._repr_html_()
    for row in report.replaced:
        assert 0 <= row.error < 1e-5
        assert row.before > 0
        assert row.after > 0


# --- arrays ------------------------------------------------------------------------------------------


def test_arrays_move_to_a_backend():
    assert prepare_model_with_custom_kernels is prepare_model
    tree = {"w": [np.ones(2, np.float32)]}
    moved = prepare_model(tree, "torch")
    assert isinstance(moved["w"][0], torch.Tensor)
    with pytest.raises(TypeError, match=r"model is a dict, expected a .* arrays and a backend"):
        prepare_model(tree)
    from tensorops.models import Llama

    llama = Llama.__new__(Llama)
    llama.backend = "numpy"
    assert prepare_model(llama, "numpy") is llama
    with pytest.raises(TypeError, match=r"arranged for the backend 'numpy': load it again with backend='torch'"):
        prepare_model(llama, "torch")
    with pytest.raises(TypeError, match=r"backend is 'jax', but a .* stays on torch"):
        prepare_model(nn.Mish(), "jax")
