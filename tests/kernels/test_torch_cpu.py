"""The compiled kernels on torch tensors: what they accept, what gets the body instead, and who owns results."""

import dataclasses
import gc
import weakref

import numpy as np
import pytest

import support
import tensorops as tp
from differentiable import DIFFERENTIABLE, places_of
from tensorops._operator import OPERATORS
from tensorops.backends.process_default import in_force
from tensorops.kernels.cpu import _native
from tensorops.kernels.cpu.derivatives import derivative_of
from tensorops.kernels.torch_cpu._derivatives import COMPOSED
from tensorops.ops import loss
from tensorops.testing import DTYPES, REFERENCES

support.require("torch")
support.require_provider("torch_cpu")

import torch  # noqa: E402

NAMES = [name for name, operator in OPERATORS.items() if "torch_cpu" in operator.kernels and name != "linear"]
X = torch.linspace(-3, 3, 40).reshape(4, 10)


@pytest.fixture(params=["compiled", "python"], autouse=True)
def path(request, monkeypatch):
    """Tensors become arrays in the compiled module, and in Python."""
    if request.param == "python":
        for name in NAMES:
            kernel = OPERATORS[name].kernels["torch_cpu"]
            in_python = kernel.function.__self__[-1]  # what the compiled function calls where it does not know better
            changed = dataclasses.replace(kernel, function=in_python)
            monkeypatch.setitem(OPERATORS[name]._kernels, "torch_cpu", changed)
    in_force().plans.clear()
    yield request.param
    in_force().plans.clear()


def close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def reason(*args, operator=tp.silu, **kwargs):
    return operator.explain(*args, **kwargs).refused.get("torch_cpu")


def test_which_kernels_serve_torch():
    compiled = {name for name, operator in OPERATORS.items() if "cpu" in operator.kernels}
    assert set(NAMES) == compiled - {"linear", "linear_activation", "sample"}
    assert "torch_cpu" in tp.linear.kernels


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_of_any_strides(dtype):
    base = torch.linspace(-2, 2, 240).reshape(4, 6, 10).to(getattr(torch, dtype))
    for x in (base, base[::2, :, 1:8], base.transpose(0, 1), base[:1].expand(5, 6, 10), base[..., ::2]):
        assert reason(x) is None
        y = tp.rms_norm(x, base[0, 0, : x.shape[-1]])
        assert y.dtype == x.dtype
        expected = REFERENCES["rms_norm"](support.back(x), support.back(base[0, 0, : x.shape[-1]]))
        close(y.double(), torch.from_numpy(expected), 1e-5 if base.element_size() > 2 else 1e-2)


def test_results_are_the_callers():
    x = X.clone()
    y = tp.silu(x)
    kept = y.clone()
    y2 = tp.silu(x + 1)
    y2 += 1
    assert torch.equal(y, kept)
    assert torch.equal(x, X)
    big = tp.silu(torch.ones(300, 1000))
    view = big[3:]
    del big
    tp.silu(torch.zeros(300, 1000))
    assert torch.equal(view, view[0, 0].expand(297, 1000))


def left_to_python(name):
    """Replace the function that the compiled one calls with arguments that it does not know by one that counts."""
    kernel, left = OPERATORS[name].kernels["torch_cpu"], []
    kernel_of_numpy, reading, *_ = kernel.function.__self__
    return _native.torch_kernel(kernel_of_numpy, reading, lambda *args, **kwargs: left.append(args), None), left


@pytest.mark.parametrize("path", ["compiled"], indirect=True)
@pytest.mark.parametrize("dtype", DTYPES)
def test_usual_calls_stay_in_the_compiled_module(path, dtype):
    function, left = left_to_python("rms_norm")
    x, w = X.to(getattr(torch, dtype)), torch.nn.Parameter(torch.linspace(1, 2, 10))
    for given in (x, x[1], x[:, None].expand(4, 3, 10), x[::2]):
        with torch.no_grad():
            y = function(given, w, eps=1e-3)
        assert (type(y), y.dtype, y.shape, y.is_contiguous()) == (torch.Tensor, x.dtype, given.shape, True)
        expected = REFERENCES["rms_norm"](support.back(given), support.back(w.detach()), eps=1e-3)
        close(y.double(), torch.from_numpy(expected), 1e-5 if x.element_size() > 2 else 1e-2)
    assert left == []
    negative = torch.imag(torch.complex(X, X).conj())
    others = (torch.zeros(2, 2, device="meta"), X.to_sparse(), torch.complex(X, X), negative, np.ones(3))
    for given in others:
        assert function(given) is None
    with torch.enable_grad():
        assert function(x, w) is None
    assert len(left) == len(others) + 1


@pytest.mark.parametrize("path", ["compiled"], indirect=True)
def test_results_live_as_long_as_their_tensors(path):
    """And no longer."""
    kernel = tp.silu.kernels["torch_cpu"].function
    made = []

    def numpys(x):
        made.append(np.maximum(x, 0))
        return made[0]

    tensor = _native.torch_kernel(numpys, kernel.__self__[1], kernel, None)(X)
    alive = weakref.ref(made.pop())
    view = tensor[1:]
    del tensor
    gc.collect()
    assert alive() is not None
    close(view, X[1:].clamp(min=0), 0)
    del view
    assert alive() is None


def test_gradients_are_by_kernels():
    x, weight = X.clone().requires_grad_(), torch.nn.Parameter(X[0].clone())
    tp.silu(X)  # leaves its plan
    with tp.trace() as log:
        y, z = tp.silu(x), tp.rms_norm(X, weight=weight)
    assert [call.kernel for call in log] == ["torch_cpu"] * 2
    assert {f.grad_fn.name() for f in (y, z)} == {"DifferentiableBackward"}
    close(torch.autograd.grad(y.sum(), x)[0], torch.autograd.grad(tp.silu.generic(x).sum(), x)[0])
    close(torch.autograd.grad(z, weight, X)[0], torch.autograd.grad(tp.rms_norm.generic(X, weight), weight, X)[0])
    assert torch.autograd.gradgradcheck(tp.silu, X.double()[:2].requires_grad_())
    with torch.no_grad():
        assert not tp.silu(x).requires_grad
        close(tp.rms_norm(X, torch.nn.Parameter(X[0])), tp.rms_norm.generic(X, X[0]))
    with torch.inference_mode():
        close(tp.silu(X), tp.silu.generic(X))


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_is_torchs_own(dtype):
    """Products of half types are summed in float32 and rounded once."""
    generator = torch.Generator().manual_seed(5)
    x, weight, bias = (
        torch.randn(s, generator=generator).to(getattr(torch, dtype)) for s in ((3, 2, 999), (7, 999), 7)
    )
    with tp.trace() as log:
        y = tp.linear(x, weight, bias)
    assert [call.kernel for call in log] == ["torch_cpu"]
    exact = x.double().numpy() @ weight.double().numpy().T + bias.double().numpy()
    rounding = torch.finfo(x.dtype).eps / 2 if x.element_size() == 2 else 100 * torch.finfo(x.dtype).eps
    assert (np.abs(y.double().numpy() - exact) <= 1.1 * rounding * np.maximum(np.abs(exact), 1)).all()
    x.requires_grad_()
    assert tp.linear(x, weight, bias).grad_fn is not None
    mapped = torch.func.vmap(lambda x: tp.linear(x, weight, bias))(x.detach())
    close(mapped.double(), y.detach().double(), 2 * rounding)


def test_what_linear_leaves_to_its_body_or_to_errors():
    assert reason(X.half(), X, operator=tp.linear) == "weight has another dtype than x"
    close(tp.linear(X.half(), X), tp.linear.generic(X.half(), X), 0)
    for args in ((X, X[0]), (X, X[:, :3]), (X, X, X[0]), (X.int(), X.int())):
        with pytest.raises((TypeError, ValueError), match=r"^linear: "):
            tp.linear(*args)


DERIVED = {name: derivative for name in NAMES if (derivative := derivative_of(name) or COMPOSED.get(name))}
GRADIENTS = {name: call for name, call in DIFFERENTIABLE.items() if name.partition("-")[0] in DERIVED}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_every_dtype(name, dtype):
    """Compare kernels' gradients with those of the body in float64, which central differences have confirmed."""
    operator = OPERATORS[name.partition("-")[0]]
    args, options = (support.there(tree, "torch") for tree in GRADIENTS[name])
    args = [a.to(getattr(torch, dtype)) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    places = places_of(name, DERIVED[operator.__name__].provided)

    def gradients(of, args, options):
        given = [a.clone().requires_grad_() if i in places else a for i, a in enumerate(args)]
        found = of(*given, **options)
        results = found if isinstance(found, tuple) else (found,)
        values = [torch.linspace(-1, 2, y.numel(), dtype=torch.float64).reshape(y.shape) for y in results]
        cotangents = [value.to(kept.dtype).to(y.dtype) for value, y in zip(values, results, strict=True)]
        return torch.autograd.grad(results, [given[i] for i in places], cotangents)

    kept = args[places[0]]
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    if operator.explain(*args, **options).kernel != "torch_cpu":
        pytest.skip("the kernel does not take these arguments")
    found = gradients(operator, args, options)
    expected = gradients(operator.generic, wide, options)
    bound = {"float64": 1e-12, "float32": 3e-6, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    for i, ours, theirs in zip(places, found, expected, strict=True):
        assert (ours.dtype, ours.shape) == (args[i].dtype, args[i].shape)
        assert (ours - theirs).abs().max() <= bound * theirs.abs().max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_a_loss_in_blocks(dtype, monkeypatch):
    """They are computed with the loss, and multiplied by its cotangent."""
    monkeypatch.setattr(loss, "_BLOCK_BYTES", 4 * 50 * 7)  # at most seven rows at a time
    generator = torch.Generator().manual_seed(6)
    x, weight, bias = (torch.randn(s, generator=generator) for s in ((4, 5, 6), (50, 6), 50))
    targets = torch.randint(0, 50, (4, 5), generator=generator)
    targets[1, 2] = -100
    moving = [a.to(getattr(torch, dtype)).requires_grad_() for a in (x, weight, bias)]
    with tp.trace() as log:
        y = tp.linear_cross_entropy(*moving[:2], targets, moving[2])
    assert [call.kernel for call in log] == ["torch_cpu"]
    found = torch.autograd.grad(y, moving, torch.tensor(-3.0, dtype=y.dtype))
    wide = [a.detach().double().requires_grad_() for a in moving]
    logits = wide[0] @ wide[1].T + wide[2]
    exact = torch.nn.functional.cross_entropy(logits.reshape(-1, 50), targets.reshape(-1))
    expected = torch.autograd.grad(exact, wide, torch.tensor(-3.0, dtype=torch.float64))
    for ours, theirs, given in zip(found, expected, moving, strict=True):
        assert (ours.dtype, ours.shape) == (given.dtype, given.shape)
        assert (ours - theirs).abs().max() <= (1e-6 if dtype == "float32" else 1e-2) * theirs.abs().max()
    if dtype == "float32":
        twice = torch.autograd.gradgradcheck(
            lambda x: tp.linear_cross_entropy(x, wide[1].detach(), targets[:1, :2]), wide[0][:1, :2]
        )
        assert twice
    with pytest.raises(ValueError, match=r"^linear_cross_entropy: targets "):
        tp.linear_cross_entropy(*moving[:2], targets + 1000)


def test_gradients_of_a_loss_in_float16_are_rounded_once():
    """With the scale of the loss, which keeps them from underflow: here one of logits is about 1e-7."""
    generator = torch.Generator().manual_seed(8)
    x, weight = (torch.randn(s, generator=generator).half().requires_grad_() for s in ((2048, 8), (4096, 8)))
    targets = torch.randint(0, 4096, (2048,), generator=generator)
    with tp.trace() as log:
        y = tp.linear_cross_entropy(x, weight, targets)
    assert [call.kernel for call in log] == ["torch_cpu"]
    gradients = torch.autograd.grad(y, (x, weight), torch.tensor(4096.0, dtype=torch.float16))
    logits = x.detach().double() @ weight.detach().double().T
    dlogits = (logits.softmax(-1) - torch.nn.functional.one_hot(targets, 4096)) * (4096 / 2048)
    expected = dlogits @ weight.detach().double(), dlogits.T @ x.detach().double()
    for ours, theirs in zip(gradients, expected, strict=True):
        assert ours.dtype is torch.float16
        assert (ours - theirs).norm() <= 3e-4 * theirs.norm()


def test_gradients_of_a_loss_that_its_cotangent_brings_into_range():
    x = torch.full((1, 4), 60000.0, dtype=torch.float16, requires_grad=True)
    weight = torch.tensor([[0.25, 0.25, 0.25, 0.4], [0.1, 0.2, 0.3, 0.1]], dtype=torch.float16)
    y = tp.linear_cross_entropy(x, weight, torch.tensor([0]), reduction="sum", z_loss=4.0)
    (dx,) = torch.autograd.grad(y, x, torch.tensor(0.125, dtype=torch.float16))
    total = 60000.0 * weight[0].double().sum()  # the other class has a share of exp(-27000)
    close(dx.double(), 0.125 * 2 * 4.0 * total * weight[:1].double(), 1e-3 * total)


ROWS = {"rms_norm": 1, "layer_norm": 2, "add_rms_norm": 1, "softmax": 0, "silu": 0, "swiglu": 0, "cross_entropy": 0}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ROWS)
def test_gradients_of_many_rows(name, threads, pool):
    """Sums over rows do not depend on the number of threads, lengths need not fill vectors, and views are read."""
    operator = OPERATORS[name]
    base = torch.randn(300, 2, 1031, generator=torch.Generator().manual_seed(3))
    x, other, dy = base[:, 0], base[:, 1], torch.randn(300, 1031, generator=torch.Generator().manual_seed(4))
    args = [x, *[other[0]] * ROWS[name]]
    if name == "add_rms_norm":
        args.insert(1, other)
    elif name == "swiglu":
        args.append(other)
    elif name == "cross_entropy":
        args.append(torch.arange(300))

    def gradients(of, convert):
        given = [convert(a).requires_grad_(a.is_floating_point()) for a in args]
        found = of(*given)
        y = found[0] if isinstance(found, tuple) else found
        wanted = [a for a in given if a.requires_grad]
        return torch.autograd.grad(y, wanted, convert(dy) if y.ndim else None)

    expected = gradients(operator.generic, lambda a: a.double() if a.is_floating_point() else a)
    pool.set_num_threads(1)
    alone = gradients(operator, torch.detach)
    pool.set_num_threads(threads)
    together = gradients(operator, torch.detach)
    for one, ours, theirs in zip(alone, together, expected, strict=True):
        assert torch.equal(one, ours)
        close(ours.double(), theirs, 2e-5 * theirs.abs().max().item())


def test_what_autograd_promises_holds():
    x = X.clone().requires_grad_()
    y = tp.silu(x.clone())
    y.sum().backward()  # of strides 0
    close(x.grad, torch.autograd.grad(tp.silu.generic(x).sum(), x)[0])
    changed = x.clone()
    y = tp.silu(changed)
    changed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    q, mask = X.reshape(1, 2, 5, 4).clone().requires_grad_(), torch.ones(5, 5, dtype=torch.bool)
    y = tp.scaled_dot_product_attention(q, q, q, mask=mask)
    mask[0, 1:] = False
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    _, kept = tp.add_rms_norm(x, X)
    close(torch.autograd.grad(kept.sum(), x)[0], torch.ones_like(X))  # the other result has no gradient
    checkpointed = torch.utils.checkpoint.checkpoint(tp.softmax, x, use_reentrant=False)
    close(torch.autograd.grad(checkpointed, x, X)[0], torch.autograd.grad(tp.softmax.generic(x), x, X)[0])
    rows = torch.autograd.functional.jacobian(lambda x: tp.softmax(x).sum(0), x, vectorize=True)
    close(rows, torch.autograd.functional.jacobian(lambda x: tp.softmax.generic(x).sum(0), x))
    frozen = torch.nn.Parameter(X[0].clone(), requires_grad=False)
    close(
        torch.autograd.grad(tp.rms_norm(x, frozen), x, X)[0],
        torch.autograd.grad(tp.rms_norm.generic(x, frozen), x, X)[0],
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch about itself
def test_forward_mode():
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        assert reason(dual) == "forward-mode derivatives are being taken"
        tangent = torch.autograd.forward_ad.unpack_dual(tp.silu(dual)).tangent
    close(tangent, torch.func.jvp(tp.silu.generic, (X,), (torch.ones_like(X),))[1])


def test_functional_transformations():
    tp.silu(X)
    found = []

    def f(x):
        found.append(reason(x))
        return tp.silu(x)

    close(torch.func.vmap(f)(X), tp.silu.generic(X))
    close(torch.func.grad(lambda x: f(x).sum())(X), torch.func.grad(lambda x: tp.silu.generic(x).sum())(X))
    close(torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(X), torch.func.grad(lambda x: f(x).sum())(X))
    assert set(found) == {"torch.func transforms the call"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_records_operations_sees_them():
    tp.silu(X)
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: tp.silu(x))(X)
    close(graph(2 * X), tp.silu.generic(2 * X))
    with torch._subclasses.FakeTensorMode() as mode:
        fake = tp.silu(mode.from_tensor(X))
    assert type(fake).__name__ == "FakeTensor"
    compiled = torch.compile(lambda x: tp.silu(x), backend="eager", fullgraph=True)
    close(compiled(X), tp.silu.generic(X))


def test_tensors_that_numpy_cannot_share():
    dense = "an argument is not a dense tensor on the CPU"
    assert reason(X.to("meta")) == dense
    assert reason(torch.complex(X, X).conj().imag) == dense
    negative = torch.complex(X, X).conj().imag
    close(tp.silu(negative), tp.silu.generic(-X))
    for x in (X.int(), torch.complex(X, X).conj()):
        with pytest.raises(TypeError, match=r"^silu: x "):
            tp.silu(x)
    with pytest.raises(TypeError, match=r"^rms_norm: x is an array of torch, but weight of numpy"):
        tp.rms_norm(X, np.ones(10, dtype=np.float32))
    scalar = torch.tensor(1.0, dtype=torch.bfloat16)
    close(tp.silu(scalar), tp.silu.generic(scalar))


def test_attention_records_gradients_and_takes_masks():
    q = torch.linspace(-1, 1, 96).reshape(1, 4, 3, 8)
    k = torch.linspace(1, -1, 128).reshape(1, 2, 8, 8)
    mask = torch.arange(8) > torch.arange(3)[:, None]
    operator = tp.scaled_dot_product_attention
    assert reason(q, k, k, mask=mask, operator=operator) is None
    expected = REFERENCES[operator.__name__](*map(support.back, (q, k, k)), mask=support.back(mask))
    close(operator(q, k, k, mask=mask).double(), torch.from_numpy(expected))
    k.requires_grad_()
    assert reason(q, k, k, mask=mask, operator=operator) is None
    sinks = torch.ones(4, requires_grad=True)
    assert reason(q, k, k, sinks=sinks, operator=operator) == "an argument requires grad"
    (gradient,) = torch.autograd.grad(operator(q, k, k, mask=mask).sum(), k)
    close(gradient, torch.autograd.grad(operator.generic(q, k, k, mask=mask).sum(), k)[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_attention_where_products_leave_the_range(dtype):
    """The first query has a score of 1e40 for the first key, the second -1e40: each attends to one key."""
    rows = [[1e20, 1.0], [-1e20, 1.0]], [[1e20, 1.0], [0.0, 0.0]], [[2.0], [3.0]], [[5.0], [7.0]]
    *arrays, dy = (torch.tensor([[x]], dtype=getattr(torch, dtype)) for x in rows)
    y = tp.scaled_dot_product_attention(*(x.requires_grad_() for x in arrays))
    dq, dk, dv = torch.autograd.grad(y, arrays, dy)
    assert not dq.any()
    assert not dk.any()
    assert torch.equal(dv, dy)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_tensors_without_dimensions(dtype):
    logits = X.to(getattr(torch, dtype))
    targets = torch.tensor([1, 9, -100, 0])
    assert reason(logits, targets, operator=tp.cross_entropy) is None
    loss = tp.cross_entropy(logits, targets)
    body = tp.cross_entropy.generic(logits, targets)
    assert (type(loss), loss.shape, loss.dtype) == (type(body), body.shape, body.dtype)
    expected = REFERENCES["cross_entropy"](support.back(logits), support.back(targets))
    close(
        loss.double(), torch.tensor(expected.item(), dtype=torch.float64), 1e-5 if logits.element_size() > 2 else 1e-2
    )


def test_quantized_tensors():
    w = torch.linspace(-2, 2, 256).reshape(4, 64)
    for mode, bits in (("affine", 4), ("symmetric", 8)):
        packed, scales, biases = tp.quantize(w, bits=bits, group_size=32, mode=mode)
        assert reason(packed, scales, biases, operator=tp.dequantize, bits=bits, group_size=32) is None
        back = tp.dequantize(packed, scales, biases, bits=bits, group_size=32)
        close(back, w, 0.2 if bits == 4 else 0.02)
        y = tp.quantized_linear(X[:, :1].expand(4, 64), packed, scales, biases, bits=bits, group_size=32)
        close(y, X[:, :1].expand(4, 64) @ back.T, 1e-4)
    assert biases is None


def freed(x):
    x.untyped_storage().resize_(0)
    return x


def shrunk(x):
    """A tensor whose storage ends four bytes too early."""
    needed = x.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    x.untyped_storage().resize_(needed * x.element_size() - 4)
    return x


MAKE = [
    lambda: torch.ones(4, 10),
    lambda: torch.ones(5, 10)[1:],
    lambda: torch.ones(10, 4).T,
    lambda: torch.ones(1, 10).expand(4, 10),
]


@pytest.mark.parametrize("spoil", [freed, shrunk])
@pytest.mark.parametrize("make", MAKE)
def test_tensors_whose_storage_was_resized_are_refused(make, spoil):
    """Torch reads the memory behind them whatever it is: of the process, or none."""
    tp.silu(X)  # leaves its plan
    tp.rms_norm(X)
    words = r"a torch tensor of shape .* whose storage has been resized to \d+ bytes"
    for operator in (tp.silu, tp.silu.generic, tp.silu.explain):
        with pytest.raises(ValueError, match=rf"^silu: x is {words}"):
            operator(spoil(make()))
    with pytest.raises(ValueError, match=rf"^rms_norm: weight is {words}"):
        tp.rms_norm(X, spoil(torch.ones(10)))
    kernel = tp.silu.kernels["torch_cpu"]
    assert kernel.supports(spoil(make())) == "an argument's storage has been resized"
    assert kernel.function(spoil(make())) is NotImplemented
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(ValueError, match=words):
            tp.to_backend(spoil(make().to(dtype)), "numpy")
    with tp.set_backend("numpy"), pytest.raises(ValueError, match=rf"^silu: x is {words}"):
        tp.silu(spoil(make()))


def test_storage_that_is_just_large_enough_will_do():
    for make in MAKE:
        x = make()
        needed = x.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
        x.untyped_storage().resize_(needed * 4)
        close(tp.rms_norm.generic(x), torch.ones(4, 10))
        assert tp.to_backend(x, "numpy").sum() == 40
        assert reason(x) in (None, "the last axis of x is not contiguous")
    empty = torch.ones(4, 0)
    empty.untyped_storage().resize_(0)
    assert tp.silu(empty).shape == (4, 0)


def test_the_first_call_without_a_kernel_for_gradients_names_no_grad():
    if derivative_of("top_k"):
        pytest.fail("choose another operator")
    code = """
import warnings, numpy, torch, tensorops as tp

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.RMSNorm(8)).eval()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(3):
        tp.top_k(model[0](torch.ones(2, 8)), 2)
    print(len(said), said[0].filename, said[0].message)
with warnings.catch_warnings(record=True) as said, torch.no_grad(), tp.trace() as log:
    tp.rms_norm(torch.ones(2, 8), model[1].weight)
print(len(said), log[0].kernel)
"""
    first, second = support.python(code).stdout.splitlines()
    assert first.startswith("1 <string> top_k: an argument requires grad, so torch's own operations compute")
    assert "torch.no_grad()" in first
    assert second == "0 torch_cpu"
