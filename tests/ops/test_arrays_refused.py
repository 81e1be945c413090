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


def single(array):
    """In a dtype that every library has."""
    return array.astype({"f": np.float32, "i": np.int32}.get(array.dtype.kind, array.dtype))


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_what_is_no_array(operator, library):
    """In the place of each array, also after calls that have left a plan, whose kernel then gets it."""
    case = next(case for case in CASES[operator.__name__] if "float32" in case.dtypes)
    args, kwargs = case.build(dtype_name="float32")
    bound = {
        name: support.there(single(value) if isinstance(value, np.ndarray) else value, library.name)
        for name, value in operator.bind(args, kwargs).items()
    }
    with library.quiet(), library.reading():
        for _ in range(2):
            operator.apply(operator, bound)
        for name, value in bound.items():
            parameter = name.partition("[")[0]
            if parameter not in operator._surely_arrays:
                continue
            for odd in (None, 3.5, "x", [1.0], object()):
                if odd is None and value is None:
                    continue
                optional = operator._signature.parameters[parameter].default is None
                for call in (operator, operator.generic, operator.explain):
                    if odd is None and optional:
                        continue
                    with pytest.raises(TypeError, match=rf"^{operator.__name__}: {re.escape(name)} is "):
                        operator.apply(call, bound | {name: odd})


def test_what_holds_an_array():
    class Parameter:
        def __getitem__(self, key):
            return np.ones(3, np.float32)

    with pytest.raises(TypeError, match=r"^rms_norm: x is .*Parameter, which holds an array: pass x\[...\];"):
        tp.rms_norm(Parameter())
    with pytest.raises(TypeError, match=r"weight is .*Parameter, which holds an array: pass weight\[...\]"):
        tp.rms_norm(np.ones(3), Parameter())


def test_an_index_into_a_table_without_rows(library):
    ids, table = library.from_numpy(np.zeros(2, np.int32), None), library.from_numpy(np.zeros((0, 4), np.float32), None)
    for run in (tp.embedding, tp.embedding.generic):
        with pytest.raises(ValueError, match=r"^embedding: weight has no rows, so no index is in range"):
            run(ids, table)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: tp.rms_norm(x, epsilon=1e-5), "eps"),
        (lambda x: tp.softmax(x, dim=-1), "axis"),
        (lambda x: tp.logsumexp(x, keepdim=True), "keepdims"),
        (lambda x: tp.layer_norm(x, gamma=x[0]), "weight"),
        (lambda x: tp.rms_norm(x, wieght=x[0]), "weight"),
        (lambda x: tp.sample(x, seed=1), "rng"),
    ],
)
def test_a_keyword_of_another_library_names_ours(call, name):
    for _ in range(2):
        with pytest.raises(TypeError, match=rf"unexpected keyword argument .* \(did you mean '{name}'\?\)"):
            call(np.ones((2, 3), np.float32))
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'colour'$"):
        tp.relu(np.ones(3), colour=1)
