"""Operators return arrays, even for zero dimensions, and new ones, even if there is nothing to compute."""

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops.testing import CASES, REFERENCES

# --- NumPy's scalars -----------------------------------------------------------------------------------

SCALAR_RESULTS = {
    "cross_entropy": lambda x: ((x, np.array(1)), {}),
    "cross_entropy-sum": lambda x: ((x[None], np.array([1])), {"reduction": "sum"}),
    "cross_entropy-none": lambda x: ((x, np.array(1)), {"reduction": "none"}),
    "logsumexp": lambda x: ((x,), {}),
    "logsumexp-axes": lambda x: ((x[None],), {"axis": (0, 1)}),
    "sample": lambda x: ((x,), {"rng": np.array(0.5, np.float32)}),
    "sample-greedy": lambda x: ((x,), {"temperature": 0, "rng": np.array(0.5, np.float32)}),
    **{f"{name}-array": lambda x: ((x[0, ...],), {}) for name in ("silu", "sigmoid", "relu", "softplus", "gelu")},
    **{f"{name}-scalar": lambda x: ((x[0],), {}) for name in ("silu", "sigmoid", "relu", "softplus", "gelu")},
    "swiglu-array": lambda x: ((x[0, ...], x[1, ...]), {}),
    "geglu-scalar": lambda x: ((x[0], x[1]), {}),
}


@pytest.mark.parametrize("name", SCALAR_RESULTS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("backend", ["auto", "numpy", "torch", "dask"])
def test_results_of_no_dimensions_are_arrays(name, dtype, backend):
    if backend != "auto" and dtype not in support.dtypes_of(support.require(backend).name):
        pytest.skip(f"{backend} holds no {dtype}")
    args, kwargs = SCALAR_RESULTS[name](np.array([1.0, 2.0, 0.5]).astype(dtype))
    operator = OPERATORS[name.partition("-")[0]]
    expected = REFERENCES[operator.__name__](*args, **kwargs)
    calls = (operator, operator) if backend != "auto" else (operator, operator, operator.generic)
    for call in calls:
        with tp.set_backend(backend):
            y = call(*args, **kwargs)
        assert type(y) is np.ndarray
        assert y.shape == ()
        np.testing.assert_allclose(y.astype(np.float64), expected, rtol=2e-3 if dtype == "float16" else 1e-5)


# --- new memory ----------------------------------------------------------------------------------------

EMPTY = {
    "rms_norm": lambda x: ((x,), {}),
    "add_rms_norm": lambda x: ((x, x), {}),
    "layer_norm": lambda x: ((x,), {}),
    "layer_norm-axes": lambda x: ((x,), {"axis": (0, 1)}),
    **{name: lambda x: ((x,), {}) for name in ("silu", "sigmoid", "relu", "softplus", "gelu")},
    "swiglu": lambda x: ((x, x), {}),
    "geglu": lambda x: ((x, x), {}),
    "softmax": lambda x: ((x,), {}),
    "softmax-axis": lambda x: ((x,), {"axis": 0}),
    "log_softmax": lambda x: ((x,), {}),
    "log_softmax-axis": lambda x: ((x,), {"axis": 0}),
    "rope": lambda x: ((x[None], np.arange(x.shape[0])), {}),
    "quantize": lambda x: ((x,), {"bits": 8, "group_size": 1}),
    "quantize-symmetric": lambda x: ((x,), {"bits": 8, "group_size": 1, "mode": "symmetric"}),
}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)], ids=str)
def test_empty_results_are_arrays_of_their_own(library, name, shape, dtype):
    if dtype not in support.dtypes_of(library.name):
        pytest.skip(f"{library.name} holds no {dtype}")
    operator = OPERATORS[name.partition("-")[0]]
    with support.holding(library.name, dtype):
        args, kwargs = support.there(EMPTY[name](np.zeros(shape, dtype)), library.name)
        for call in (operator, operator.generic):
            assert_own(call(*args, **kwargs), args)


@pytest.mark.costly(2)
@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_results_are_arrays_of_their_own(library, operator):
    """All cases in a dtype in which nothing needs to be widened, and a result could be its input."""
    for case in CASES[operator.__name__]:
        if "float32" in case.dtypes:
            args, kwargs = support.there(case.build(dtype_name="float32"), library.name)
            for call in (operator, operator.generic):
                assert_own(call(*args, **kwargs), (args, kwargs))
            if library.name in ("jax", "dask"):
                break  # arrays are never written to, and graphs take their time


def assert_own(result, inputs):
    """Assert that writing to a result changes neither an input nor another result."""
    parts = [y for y in (result if isinstance(result, tuple) else (result,)) if y is not None]
    others = support.arrays_in(inputs)
    for y in parts:
        assert all(y is not x for x in others)
        assert sum(y is z for z in parts) == 1
    memory = [address_of(a) for a in (*parts, *others[:1])]
    known = [where for where in memory if where is not None]
    assert len(set(known)) == len(known)


def address_of(x):
    """Return the address of an array that libraries may write to; nothing for an empty one."""
    if 0 in x.shape:
        return None
    if isinstance(x, np.ndarray):
        return x.__array_interface__["data"][0]
    if type(x).__module__.startswith("torch"):
        return x.untyped_storage().data_ptr()
    return None


# --- numbers that the dtype in which is computed lacks ------------------------------------------------


@pytest.mark.costly(4)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("temperature", [1e-320, 1e-300, 1e-50, 1e-44, 1e-39, 1e-30])
def test_the_coldest_draw_takes_the_largest(library, temperature, dtype):
    if dtype not in support.dtypes_of(library.name):
        pytest.skip(f"{library.name} holds no {dtype}")
    logits = np.array([[1.0, 3.0, 2.0, -np.inf], [0.0, -1.0, -0.5, -2.0], [5.0, 5.0, 1.0, 7.0]]).astype(dtype)
    uniform = np.array([0.0, 0.5, 0.99], np.float32)
    with support.holding(library.name, dtype):
        x, u = support.there((logits, uniform), library.name)
        for options in ({}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}):
            for call in (tp.sample, tp.sample.generic):
                drawn = support.back(call(x, temperature=temperature, rng=u, **options))
                assert drawn.tolist() == [1, 0, 3]


@pytest.mark.parametrize("temperature", [1e39, 1e300])
def test_the_hottest_draw_is_uniform(library, temperature):
    logits = np.tile(np.array([1.0, 1000.0, -np.inf, 2.0], np.float32), (4, 1))
    uniform = np.array([0.1, 0.4, 0.6, 0.9], np.float32)
    x, u = support.there((logits, uniform), library.name)
    for call in (tp.sample, tp.sample.generic):
        assert support.back(call(x, temperature=temperature, rng=u)).tolist() == [0, 1, 1, 3]


@pytest.mark.parametrize(
    ("row", "uniform", "option", "drawn"),
    [([2.0, 1.0, 2.0], [0.2, 0.8], "temperature", [0, 2]), ([2.0, 1.0, 5.0], [0.0, 0.9], "top_p", [2, 2])],
)
def test_options_near_zero(library, row, uniform, option, drawn):
    """However cold, equals are drawn alike; the smallest `top_p` keeps the most probable."""
    x, u = support.there((np.array([row] * 2, np.float32), np.array(uniform, np.float32)), library.name)
    for call in (tp.sample, tp.sample.generic):
        assert support.back(call(x, **{option: 1e-60}, rng=u)).tolist() == drawn
