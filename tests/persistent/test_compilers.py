"""Steps that a library's own compiler compiles."""

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.persistent import CaptureError, PersistentKernel
from tensorops.testing import REFERENCES

X = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)


def silu_of_norm(x):
    return REFERENCES["silu"](REFERENCES["rms_norm"](x).astype(np.float32))


@pytest.mark.parametrize("library", ["jax", "mlx"])
def test_a_step(library):
    support.require(library)
    (x,) = support.there([X], library)
    kernel = PersistentKernel(
        lambda x, n: (tp.silu(tp.rms_norm(x)), n + 1), [x, *support.there([np.int32([3])], library)]
    )
    assert kernel.backend == support.backend_of(library).name
    assert kernel.compile().seconds > 0
    y, n = kernel(2 * x, *support.there([np.int32([5])], library))
    np.testing.assert_allclose(support.back(y), silu_of_norm(2 * X), rtol=1e-5, atol=1e-6)
    assert support.back(n) == [6]
    captured = kernel.explain()
    assert captured.backend == kernel.backend
    assert captured.in_python[0] == "the call itself"
    with pytest.raises(ValueError, match=f" {kernel.backend}: profile: .* as one; use"):
        PersistentKernel(tp.silu, [x], profile=True)


def test_a_step_that_mlx_fuses(fusing_mlx):
    (x,) = support.there([X], "mlx")
    y = PersistentKernel(lambda x: 2 * tp.silu(x), [x])(x)
    np.testing.assert_allclose(support.back(y), 2 * REFERENCES["silu"](X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("library", ["jax", "mlx"])
def test_a_value_that_decides(library):
    support.require(library)
    (x,) = support.there([X], library)
    kernel = PersistentKernel(lambda x: x if x[0, 0] > 0 else tp.silu(x), [x])
    with pytest.raises(CaptureError, match="the step cannot be compiled: "):
        kernel.compile()


@pytest.mark.parametrize("library", ["jax", "mlx"])
def test_threads_are_the_library_s(library):
    support.require(library)
    with pytest.raises(ValueError, match=r"^no backend can replay this step: .*\w+: num_workers: "):
        PersistentKernel(tp.silu, support.there([X], library), num_workers=2)


@pytest.mark.parametrize("library", ["jax", "mlx"])
def test_an_option_may_choose_the_next_backend(library):
    support.require(library)
    support.require_native()
    kernel = PersistentKernel(tp.silu, support.there([X], library), fallback_backends=["cpu"], profile=True)
    assert kernel.backend == "cpu"
    np.testing.assert_allclose(kernel(X), REFERENCES["silu"](X), rtol=1e-5)
    assert [call.operator for call in kernel.profile().calls] == ["silu"]


def test_jax_writes_into_donated_arguments():
    support.require("jax")
    import jax

    def step(cache, new):
        return cache.at[:, 2].set(new), tp.silu(new)

    (cache, new) = support.there([np.zeros((2, 8), np.float32), np.ones(2, np.float32)], "jax")
    kernel = PersistentKernel(step, [cache, new], donate=[0])
    kernel.compile()
    assert not cache.is_deleted()  # compiling used a copy
    updated, _ = kernel(cache, new)
    assert cache.is_deleted()
    assert support.back(updated)[:, 2].tolist() == [1, 1]
    assert isinstance(updated, jax.Array)


def test_mlx_gives_arrays_with_assignments_done():
    support.require("mlx")
    import mlx.core as mx

    def step(cache, new, position):
        cache[:, position] = new
        return cache, tp.get_namespace(new).reshape(tp.silu(new), (1, 2))

    kernel = PersistentKernel(step, [mx.zeros((2, 8)), mx.ones((2, 1)), mx.array([0])], donate=[0])
    cache = mx.zeros((2, 8))
    for place in (2, 5):
        cache, y = kernel(cache, place * mx.ones((2, 1)), mx.array([place]))
    assert support.back(cache)[1].tolist() == [0, 0, 2, 0, 0, 5, 0, 0]
    assert type(y) is mx.array
    np.testing.assert_allclose(support.back(y), REFERENCES["silu"](np.full((1, 2), 5.0)), rtol=1e-5)


def test_the_program_of_xla_has_the_kernels():
    support.require("jax")
    support.require_provider("jax_ffi")
    (x,) = support.there([X], "jax")
    text = PersistentKernel(lambda x: tp.silu(tp.rms_norm(x)), [x]).explain().text
    assert "tensorops.rms_norm" in text
    assert "tensorops.silu" in text


@pytest.mark.parametrize("library", ["jax", "mlx"])
def test_arguments_unlike_the_example_are_refused(library):
    """These compilers would compile again, of what was traced for the example."""
    row = support.require(library)

    def step(x, scale, state):
        return (x - tp.get_namespace(x).mean(x)) * scale + state["a"]

    def given(n=4, scale=2, key="a", dtype=np.float32):
        x, a = (row.from_numpy(np.arange(m, dtype=dtype), None) for m in (n, 1))
        return x, scale, {key: a}

    kernel = PersistentKernel(step, given())
    np.testing.assert_allclose(support.back(kernel(*given())), [-3, -1, 1, 3], rtol=1e-6)
    assert kernel.compile().not_compared == "the library itself compiled the step"
    for changed in ({"n": 8}, {"dtype": np.float16}):
        with pytest.raises(ValueError, match=r"array 0 of the arguments was float32 \(4,\) when compiled, and is now"):
            kernel(*given(**changed))
    for changed in ({"scale": 3}, {"scale": 2.0}, {"key": "b"}):
        with pytest.raises(ValueError, match="differ from those when the step was compiled"):
            kernel(*given(**changed))
    with pytest.raises(ValueError, match="differ from those when the step was compiled"):
        kernel(*given()[:2], [given()[2]["a"]])
