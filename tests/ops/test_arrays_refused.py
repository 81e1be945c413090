"""Arrays that operators do not take: an error that names the operator and the argument, and says what to pass."""

import re

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops.testing import CASES

TORCH = {
    "coo": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "mkldnn": lambda t: t.to_mkldnn(),
    "nested": lambda t: nested(t),
    "jagged": lambda t: nested(t, "jagged"),
}


def nested(t, layout="strided"):
    import torch

    return torch.nested.nested_tensor([t[0], t[1, :2]], layout=getattr(torch, layout))


def refuses(operator, name, value, args, kwargs, advice):
    """Assert that every way to call refuses `value` as the argument `name`, and says what to do instead."""
    message = rf"^{operator.__name__}: {name}(\[0\])?: .* is not supported; pass {re.escape(advice)}"
    args, kwargs = support.with_argument(operator, args, kwargs, name, value)
    for call in (operator, operator.generic, operator.explain):
        with pytest.raises(TypeError, match=message):
            call(*args, **kwargs)
    with pytest.raises(TypeError, match=r"is not supported; pass"):
        tp.to_backend(value, "numpy")


@pytest.mark.filterwarnings("ignore:.*(Sparse|nested|prototype|beta):UserWarning")
@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_torch_tensors_that_are_not_dense(operator, kind):
    support.require("torch")
    import torch

    case = CASES[operator.__name__][0]
    args, kwargs = support.there(case.build(dtype_name="float32"), "torch")
    operator(*args, **kwargs)  # a kernel is asked first from here on
    odd = TORCH[kind](torch.eye(3))
    advice = "its parts one by one" if odd.is_nested else "x.to_dense()"
    for name in sorted(operator._surely_arrays):
        refuses(operator, name, odd, args, kwargs, advice)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize(
    ("odd", "advice"),
    [(np.ones((1, 1)).view(np.matrix), "numpy.asarray(x)"), (np.ma.masked_array([1.0]), "x.filled(value)")],
    ids=["matrix", "masked"],
)
def test_subclasses_of_numpy_that_compute_otherwise(operator, odd, advice):
    args, kwargs = CASES[operator.__name__][0].build(dtype_name="float32")
    for name in sorted(operator._surely_arrays):
        refuses(operator, name, odd, args, kwargs, advice)


def test_the_advice_for_a_matrix_works():
    """It names only what a matrix has."""
    odd = np.array([[1.0, -1.0]]).view(np.matrix)
    with pytest.raises(TypeError) as caught:
        tp.relu(odd)
    assert "filled" not in str(caught.value)
    assert tp.relu(np.asarray(odd)).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax", "mlx", "dask"])
@pytest.mark.parametrize(
    "odd",
    [np.array([[1.0, 2.0]], object), np.array([["a"]]), np.zeros((1, 2), "M8[D]"), np.zeros(2, [("a", "f4")])],
    ids=["objects", "strings", "dates", "records"],
)
def test_dtypes_that_are_not_numbers(odd, backend):
    support.require(backend)
    weight = np.ones(odd.shape[-1], np.float32)
    with tp.set_backend(backend):
        for args in ((odd, weight), (np.ones((1, 2), np.float32), odd[0] if odd.ndim > 1 else odd)):
            name = "x" if args[0] is odd else "weight"
            with pytest.raises(TypeError, match=rf"^rms_norm: {name}\b"):
                tp.rms_norm(*args)
