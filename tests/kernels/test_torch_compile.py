"""Operators under `torch.compile`: which kernels compiled graphs call, and their gradients."""

import numpy as np
import pytest

import support
import tensorops as tp
from differentiable import DIFFERENTIABLE, places_of
from tensorops._operator import OPERATORS
from tensorops.kernels.cpu.derivatives import derivative_of
from tensorops.testing import CASES

support.require("torch")
support.require_provider("torch_cpu")

import torch  # noqa: E402

from tensorops.kernels.torch_cpu import _dynamo  # noqa: E402
from tensorops.kernels.torch_cpu._derivatives import COMPOSED  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch about itself
IN_GRAPHS = {name for name, operator in OPERATORS.items() if "torch_cpu" in operator.kernels}
NAMES = sorted(IN_GRAPHS - {"quantize", "linear"})  # one has optional results, the other is torch's own operation
X = torch.linspace(-3, 3, 40).reshape(4, 10)


@pytest.fixture(autouse=True)
def small_calls(monkeypatch):
    """Kernels take calls of any size and operator."""
    monkeypatch.setattr(_dynamo, "_LEAST_BYTES", 0)
    monkeypatch.setattr(_dynamo, "_FUSED", frozenset())
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def compiled(function, **options):
    return torch.compile(function, backend="aot_eager", fullgraph=True, **options)


def tensors(tree, dtype=torch.float32):
    given = support.there(tree, "torch")
    cast = lambda a: a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a  # noqa: E731
    args, options = given
    return [cast(a) for a in args], {name: cast(value) for name, value in options.items()}


@pytest.mark.costly(4)
@pytest.mark.parametrize("name", NAMES)
def test_graphs_call_kernels(name):
    """Their results are those of eager calls, bit by bit."""
    operator = OPERATORS[name]
    calls = [tensors(case.arguments(np.random.default_rng(0))) for case in CASES[name]]
    args, options = next(call for call in calls if operator.explain(*call[0], **call[1]).kernel == "torch_cpu")
    expected = operator(*args, **options)
    function = compiled(lambda *args: operator(*args, **options))
    with tp.trace() as log:
        found = function(*args)
    assert [call.kernel for call in log] == ["torch_cpu"]
    listed = lambda y: list(y) if isinstance(y, tuple) else [y]  # noqa: E731
    for ours, theirs in zip(listed(found), listed(expected), strict=True):
        assert torch.equal(ours, theirs)


REFUSED = {  # calls that kernels do not take
    "rms_norm-axis", "layer_norm-axes", "group_norm-channels_last", "l2_norm-axes", "softmax-where", "logsumexp",
    "linear_cross_entropy-probabilities",
}  # fmt: skip
GRADIENTS = [
    name
    for name in DIFFERENTIABLE
    if name not in REFUSED and ((of := name.partition("-")[0]) in COMPOSED or derivative_of(of))
]


@pytest.mark.costly(5)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_in_graphs(name):
    operator = OPERATORS[name.partition("-")[0]]
    args, options = tensors(DIFFERENTIABLE[name])
    derivative = derivative_of(operator.__name__) or COMPOSED[operator.__name__]
    places = places_of(name, derivative.provided)

    def gradients(of):
        given = [a.clone().requires_grad_() if i in places else a for i, a in enumerate(args)]
        found = of(*given)
        results = found if isinstance(found, tuple) else (found,)
        cotangents = [torch.linspace(-1, 2, y.numel()).reshape(y.shape) for y in results]
        return torch.autograd.grad(results, [given[i] for i in places], cotangents)

    expected = gradients(lambda *args: operator(*args, **options))
    with tp.trace() as log:
        found = gradients(compiled(lambda *args: operator(*args, **options)))
    assert [call.kernel for call in log if call.operator == operator.__name__] == ["torch_cpu"]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_one_graph_for_all_sizes():
    function = compiled(lambda x, weight: tp.rms_norm(tp.silu(x), weight), dynamic=True)
    for rows in (3, 5, 8):
        x, weight = torch.randn(rows, 16, requires_grad=True), torch.randn(16, requires_grad=True)
        with tp.trace() as log:
            y = function(x, weight)
        assert [call.kernel for call in log] == ["torch_cpu"] * 2
        expected = tp.rms_norm.generic(tp.silu.generic(x), weight)
        torch.testing.assert_close(y, expected)
        ours, theirs = (torch.autograd.grad(of.square().sum(), (x, weight)) for of in (y, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_what_kernels_refuse_is_computed_by_bodies():
    strided = torch.linspace(-1, 1, 80).reshape(4, 2, 10)[..., ::2]
    with tp.trace() as log:
        y = compiled(lambda x: tp.group_norm(x, 2))(strided)
    assert [call.kernel for call in log] == ["generic"]
    torch.testing.assert_close(y, tp.group_norm.generic(strided, 2))
    ids, table = torch.tensor([1, 0]), torch.randn(3, 4, requires_grad=True)
    scaled = compiled(lambda x, w: tp.linear_cross_entropy(x, w, ids))
    x = torch.randn(2, 4)
    torch.testing.assert_close(scaled(x, table), tp.linear_cross_entropy.generic(x, table, ids))
    with pytest.raises(ValueError, match=r"^rms_norm: weight has 3 elements"):
        torch.compile(tp.rms_norm, backend="aot_eager")(X, X[0, :3])


def test_derivatives_outside_of_graphs():
    """The backend "eager" leaves them to autograd: of any order, and where `checkpoint` computes calls again."""
    function = torch.compile(tp.silu, backend="eager", fullgraph=True)
    assert torch.autograd.gradgradcheck(function, X.double()[:2].requires_grad_())
    x = X.clone().requires_grad_()
    y = torch.utils.checkpoint.checkpoint(torch.compile(tp.softmax, backend="eager"), x, use_reentrant=False)
    expected = torch.autograd.grad(tp.softmax.generic(x), x, X)
    torch.testing.assert_close(torch.autograd.grad(y, x, X), expected)


def test_small_calls_and_exported_programs_have_bodies(monkeypatch):
    class Norm(torch.nn.Module):
        def forward(self, x):
            return tp.rms_norm(x)

    program = torch.export.export(Norm(), (X,))
    assert not any("tensorops" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(X), tp.rms_norm.generic(X))
    monkeypatch.setattr(_dynamo, "_LEAST_BYTES", 4 * X.numel() + 1)
    torch._dynamo.reset()
    with tp.trace() as log:
        y = compiled(tp.rms_norm)(X)
    assert len(log) == 0
    torch.testing.assert_close(y, tp.rms_norm.generic(X))
    monkeypatch.setattr(_dynamo, "_LEAST_BYTES", 0)
    monkeypatch.setattr(_dynamo, "_FUSED", frozenset({"silu"}))
    with tp.trace() as log:
        y = compiled(lambda x: tp.rms_norm(tp.silu(x)))(X)
    assert [call.operator for call in log] == ["rms_norm"]


def test_linear_is_torchs_own():
    x, weight = X.bfloat16().requires_grad_(), X[:3].bfloat16().requires_grad_()
    y = compiled(tp.linear)(x, weight)
    expected = torch.nn.functional.linear(x, weight)
    assert torch.equal(y, expected)
    for ours, theirs in zip(*(torch.autograd.grad(of.sum(), (x, weight)) for of in (y, expected)), strict=True):
        assert torch.equal(ours, theirs)


def test_transformations_in_graphs():
    def f(x):
        return tp.silu(x).sum()

    y = compiled(lambda x: torch.func.grad(f)(x))(X)
    torch.testing.assert_close(y, torch.func.grad(lambda x: tp.silu.generic(x).sum())(X))
    torch.testing.assert_close(compiled(lambda x: torch.func.vmap(tp.silu)(x))(X), tp.silu.generic(X))


def test_operators_keep_torchs_rules():
    """As torch's own checks of custom operators see them."""
    from tensorops.kernels.torch_cpu._custom_operators import encode

    x, weight = X.clone().requires_grad_(), X[0].clone().requires_grad_()
    call = encode("rms_norm", ["x", "weight"], {"eps": 1e-3})
    torch.library.opcheck(torch.ops.tensorops.call.default, (call, [x, weight]))


def test_the_first_tensor_of_a_process_is_traced():
    """Nothing has loaded what belongs to torch: tracing must not come upon an import."""
    printed = support.python("""
import torch
import tensorops as tp

@tp.array_agnostic
def total(x):
    return tp.get_namespace(x).sum(x)

print(torch.compile(total, backend="eager", fullgraph=True)(torch.ones(6)).item())
""").stdout
    assert printed == "6.0\n"
