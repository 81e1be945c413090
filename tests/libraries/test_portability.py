"""A function written as the pages teach it, on arrays of every library and under its transformations."""

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.libraries import LIBRARIES
from tensorops.testing import REFERENCES

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)
W = np.linspace(1, 2, 8, dtype=np.float32)


@tp.array_agnostic
def block(x, weight):
    xp = tp.get_namespace(x)
    y = x + tp.silu(tp.rms_norm(x, weight)) * xp.sqrt(xp.abs(x))
    return y + xp.arange(x.shape[-1], dtype=x.dtype, device=tp.device(x))


@tp.array_agnostic
def total(x, weight):
    return tp.get_namespace(x).sum(block(x, weight))


def expected():
    normed = REFERENCES["silu"](REFERENCES["rms_norm"](X, W))
    return X + normed * np.sqrt(np.abs(X.astype(np.float64))) + np.arange(8)


def gradient():
    def at(i, h):
        x = X.astype(np.float64).copy()
        x.flat[i] += h
        normed = REFERENCES["silu"](REFERENCES["rms_norm"](x, W))
        return (x + normed * np.sqrt(np.abs(x))).sum()

    return np.array([(at(i, 1e-6) - at(i, -1e-6)) / 2e-6 for i in range(X.size)]).reshape(X.shape)


def check(library, y, wanted, tolerance=1e-5):
    row = LIBRARIES[library]
    assert row.owns(y)
    assert not row.is_wrapper(y)
    np.testing.assert_allclose(row.to_numpy(y), wanted, rtol=tolerance, atol=tolerance)


def test_eager(library):
    x, w = library.from_numpy(X, None), library.from_numpy(W, None)
    check(library.name, block(x, w), expected())
    check(library.name, total(x, w), expected().sum())
    nested = tp.array_agnostic(lambda tree, key: {key: [tree[key][0] + 1.0]})({"a": (x, 2)}, key="a")
    check(library.name, nested["a"][0], X + 1)
    if library.wrapper:
        wrapped = library.wrap(x)
        assert tp.get_namespace(wrapped) is tp.get_namespace(x) is library.xp
        assert library.is_wrapper(block(wrapped, w))
        assert library.is_wrapper(block(x, library.wrap(w)))


TRANSFORMED = {
    "jax": lambda jax: (jax.jit(block), jax.vmap(block, (0, None)), jax.grad(total)),
    "mlx": lambda mlx: (mlx.core.compile(block), mlx.core.vmap(block, (0, None)), mlx.core.grad(total)),
    "torch": lambda torch: (
        torch.compile(block, backend="eager", fullgraph=True),
        torch.vmap(block, (0, None)),
        torch.func.grad(total),
    ),
}


@pytest.mark.costly
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformed(name):
    row = support.require(name)
    if name == "mlx":
        pass
    module = __import__(name)
    compiled, mapped, derived = TRANSFORMED[name](module)
    x, w = row.from_numpy(X, None), row.from_numpy(W, None)
    check(name, compiled(x, w), expected())
    check(name, mapped(x, w), expected())
    check(name, derived(x, w), gradient(), 1e-3)


def test_device_of_something_else():
    with pytest.raises(TypeError, match="expected an array"):
        tp.device([1.0])


@pytest.mark.parametrize("name", ["mlx", "pyopencl"])
@pytest.mark.parametrize("function", [np.exp, np.sum, np.mean, np.std, np.concatenate, np.add])
def test_functions_of_numpy_refuse_wrappers(name, function):
    """All of them: some would otherwise move the values to NumPy without a word."""
    row = support.require(name)
    x = row.wrap(row.from_numpy(X, None))
    arguments = (x, x) if function is np.add else ([x, x],) if function is np.concatenate else (x,)
    with pytest.raises(TypeError):
        function(*arguments)
    assert np.mean(np.asarray(x)) == X.mean()


@pytest.mark.parametrize("transposed", [False, True])
def test_results_on_pyopencl_arrays_are_contiguous(transposed):
    """PyOpenCL's own functions refuse others; and a result keeps no large buffer alive."""
    row = support.require("pyopencl")
    x = row.from_numpy(np.linspace(0, 1, 4 * 3000, dtype=np.float32).reshape(4, 3000), None)
    results = [tp.einsum("ij->ji", x) if transposed else tp.einsum("ij,j->ij", x, x[0]), *tp.top_k(x, 2)]
    for y in results:
        assert y.flags.c_contiguous
        np.testing.assert_array_equal((y + y).get(), 2 * row.to_numpy(y))
        assert y.base_data.size <= max(2 * y.nbytes, 4096)
