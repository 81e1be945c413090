"""NumPy arrays of every layout: the right result or a clear error, unchanged inputs, outputs in new memory."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

import support
import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops.testing import CASES, DTYPES, REFERENCES, assert_matches

# --- layouts: functions that return the values of an array, laid out otherwise -----------------------


def strided(a):
    room = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
    room[..., ::2] = a
    return room[..., ::2]


def outer_strided(a):
    room = np.zeros((3 * a.shape[0], *a.shape[1:]), a.dtype)
    room[1::3] = a
    return room[1::3]


def reversed_rows(a):
    return a[::-1].copy()[::-1]


def reversed_elements(a):
    return a[..., ::-1].copy()[..., ::-1]


def fortran(a):
    return np.asfortranarray(a)


def transposed(a):
    return a.swapaxes(0, -1).copy().swapaxes(0, -1)


def read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def byte_swapped(a):
    return a.astype(a.dtype.newbyteorder())


def misaligned(a):
    return np.frombuffer(bytearray(b"?" + a.tobytes()), a.dtype, offset=1).reshape(a.shape)


def field(a):
    """One field of a record that begins with a byte: strided and misaligned."""
    records = np.zeros(a.shape, [("flag", np.uint8), ("value", a.dtype)])
    records["value"] = a
    return records["value"]


def repeated(a):
    """One row for all: a stride of zero. The values are not those of `a`."""
    return np.broadcast_to(a[:1], a.shape)


LAYOUTS = [
    strided, outer_strided, reversed_rows, reversed_elements, fortran, transposed, read_only, byte_swapped,
    misaligned, field, repeated,
]  # fmt: skip


def memory_of(a):
    """Return the bytes of the memory that an array is a view of, whatever it shows of them."""
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a.tobytes()


def lay_out(tree, layout, dtypes="fiub"):
    if isinstance(tree, dict):
        return {key: lay_out(value, layout, dtypes) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(lay_out(value, layout, dtypes) for value in tree)
    if isinstance(tree, np.ndarray) and tree.ndim and tree.size:
        changed = layout(tree)
        assert changed.dtype.name == tree.dtype.name
        return changed
    return tree


def contiguous(tree):
    if isinstance(tree, dict):
        return {key: contiguous(value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(contiguous, tree))
    return tree.astype(tree.dtype.newbyteorder("=")) if isinstance(tree, np.ndarray) else tree


def assert_right(result, case, args, kwargs, dtype):
    """Assert that a result is the reference's of plain copies of the arguments, in memory of its own."""
    expected = REFERENCES[case.operator](*contiguous(args), **contiguous(kwargs))
    several = isinstance(expected, tuple)
    for actual, wanted in zip(*((result, expected) if several else ([result], [expected])), strict=True):
        if wanted is None:
            assert actual is None
            continue
        name = dtype if wanted.dtype == np.float64 else wanted.dtype.name
        assert_matches(actual, wanted, name, tolerance=case.tolerance_for(dtype), scale_axis=case.scale_axis)
        assert_new_memory(actual, (args, kwargs))


def assert_new_memory(result, inputs):
    for array in support.arrays_in(inputs):
        assert not np.shares_memory(result, array)
    if isinstance(result, np.ndarray):  # a NumPy scalar has none that one could write to
        assert result.flags.writeable


def call_and_check(case, args, kwargs, dtype):
    operator = OPERATORS[case.operator]
    before = [memory_of(a) for a in support.arrays_in((args, kwargs))]
    for call in (operator, operator.generic):
        assert_right(call(*args, **kwargs), case, args, kwargs, dtype)
    assert [memory_of(a) for a in support.arrays_in((args, kwargs))] == before


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_takes_every_layout(name, layout):
    case = CASES[name][0]
    if layout is repeated and case.scale_axis == -1:
        # Equal rows of weights make a row of equal sums: if their terms cancel, no neighbour shows the scale.
        case = dataclasses.replace(case, scale_axis=None)
    args, kwargs = lay_out(case.build(dtype_name="float32"), layout)
    call_and_check(case, args, kwargs, "float32")


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        pytest.param(dtype, layout, id=f"{dtype}-{layout.__name__}")
        for dtype in DTYPES
        for layout in LAYOUTS
        if (dtype, layout) != ("bfloat16", byte_swapped)  # ml_dtypes knows one byte order only
    ],
)
def test_rms_norm_takes_every_layout_of_every_dtype(dtype, layout):
    for case in CASES["rms_norm"]:
        if dtype in case.dtypes and not {"empty", "special"} & case.tags:
            args, kwargs = case.build(dtype_name=dtype)
            args, kwargs = lay_out((args, kwargs), layout)
            call_and_check(case, args, kwargs, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPERATORS)
def test_inputs_stay_and_outputs_are_new(name, dtype):
    """All cases of a dtype in which nothing needs to be widened, and a result could be its input."""
    for case in CASES[name]:
        if dtype in case.dtypes:
            args, kwargs = case.build(dtype_name=dtype)
            before = [a.tobytes() for a in support.arrays_in((args, kwargs))]
            for call in (OPERATORS[name], OPERATORS[name].generic):
                result = call(*args, **kwargs)
                for part in result if isinstance(result, tuple) else (result,):
                    if part is not None:
                        assert_new_memory(part, (args, kwargs))
            assert [a.tobytes() for a in support.arrays_in((args, kwargs))] == before


def test_what_changes_nothing_is_a_copy():
    """Arguments under which the result has the values of the input."""
    for dtype in DTYPES.values():
        x = np.arange(1.0, 9.0).reshape(1, 2, 4).astype(dtype)
        for y in (tp.rope(x, np.zeros(2)), tp.rope(x, np.zeros(2), dims=0), tp.relu(x)):
            assert y.dtype == dtype
            np.testing.assert_array_equal(y, x)
            assert_new_memory(y, (x,))
    eye = np.eye(4)
    for y in (tp.embedding(np.arange(4), eye), tp.linear(eye, eye), tp.add_rms_norm(eye, 0 * eye)[1]):
        np.testing.assert_array_equal(y, eye)
        assert_new_memory(y, (eye,))


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax", "log_softmax", "logsumexp"])
def test_zero_dimensions_are_refused_where_an_axis_is_needed(name):
    for scalar in (np.float32(1.0), np.asarray(1.0)):
        with pytest.raises(ValueError, match=f"^{name}: .*0 dimensions"):
            OPERATORS[name](scalar)


@pytest.mark.parametrize("name", ["silu", "sigmoid", "relu", "softplus", "gelu"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_scalars_are_arrays_of_zero_dimensions(name, dtype):
    x = DTYPES[dtype].type(-0.75)
    for value in (x, np.asarray(x)):
        y = OPERATORS[name](value)
        assert np.shape(y) == ()
        assert_matches(np.asarray(y), REFERENCES[name](x), dtype, tolerance=8)


def test_foreign_byte_order_is_the_kernels_reason():
    support.require_provider("cpu")
    x = np.ones((2, 4), dtype=np.float32)
    swapped = byte_swapped(x)
    assert tp.rms_norm.explain(swapped).refused == {"cpu": "x is in foreign byte order"}
    assert tp.rms_norm.explain(x, swapped[0]).refused == {"cpu": "weight is in foreign byte order"}
    for layout in (strided, outer_strided, reversed_rows, read_only, misaligned, repeated):
        assert tp.rms_norm.explain(layout(x)).kernel == "cpu"


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.asarray([1 + 2j]), "complex128"),
        (np.asarray([None]), "object"),
        (np.asarray(["a"]), "str"),
        (np.zeros(2, dtype=[("a", np.float32)]), "void"),
        (np.asarray(["2020-01-01"], dtype="datetime64[D]"), "datetime64"),
        (np.zeros(2, dtype=np.longdouble), np.dtype(np.longdouble).name),
    ],
)
def test_dtypes_that_no_operator_takes_are_named(array, dtype):
    if dtype == "float64":
        pytest.skip("longdouble is float64 here")
    for name in ("rms_norm", "silu", "softmax"):
        with pytest.raises(TypeError, match=rf"^{name}: x has dtype {dtype}.*, expected one of float16"):
            OPERATORS[name](array)


# --- any view of anything ----------------------------------------------------------------------------


@st.composite
def views(draw, dtype, min_dims=1, max_dims=4, elements=None):
    """A view into a larger array: sliced with any step, transposed, repeated, of any alignment and byte order."""
    elements = st.floats(-8, 8, width=16) if elements is None else elements
    shape = draw(hnp.array_shapes(min_dims=min_dims, max_dims=max_dims, max_side=9))
    values = draw(hnp.arrays(np.float64, shape, elements=elements)).astype(DTYPES[dtype])
    if draw(st.booleans()):
        values = misaligned(values)
    steps = st.sampled_from([-3, -2, -1, 1, 1, 1, 2, 3])
    values = values[(..., *(slice(None, None, draw(steps)) for _ in shape))]
    if draw(st.booleans()):
        values = values.transpose(draw(st.permutations(range(values.ndim))))
    if values.ndim and draw(st.booleans()):
        values = np.broadcast_to(values[:1], values.shape)
    if dtype != "bfloat16" and draw(st.integers(0, 5)) == 0:
        values = byte_swapped(values)
    values.flags.writeable = False
    return values


# Everything that a dtype holds: subnormal and huge numbers, infinities and NaN.
ANYTHING = {
    "float16": st.floats(width=16),
    "bfloat16": st.floats(width=32),
    "float32": st.floats(width=32),
    "float64": st.floats(width=64),
}


@pytest.mark.costly
@pytest.mark.parametrize("anything", [False, True], ids=["moderate", "anything"])
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_rms_norm_of_any_view(dtype, anything, data):
    elements = ANYTHING[dtype] if anything else None
    with np.errstate(all="ignore"):
        x = data.draw(views(dtype, elements=elements), label="x")
        axis = data.draw(st.integers(-x.ndim, x.ndim - 1), label="axis")
        weight_dtype = data.draw(st.sampled_from([dtype, dtype, "float32"]), label="weight dtype")
        weight = data.draw(
            st.none()
            | hnp.arrays(np.float64, (x.shape[axis],), elements=st.floats(0.5, 2.0)).map(
                lambda w: w.astype(DTYPES[weight_dtype])
            ),
            label="weight",
        )
    eps = data.draw(st.sampled_from([1e-6, 1e-6, 0.0, 1e-12, 1.0, 1e-30]), label="eps")
    offset = data.draw(st.sampled_from([0.0, 1.0]), label="weight_offset")
    options = {"axis": axis, "weight_offset": offset}
    expected = REFERENCES["rms_norm"](contiguous(x), weight, eps, **options)
    tolerance = 2 if dtype in support.HALVES else 16
    for call in (tp.rms_norm, tp.rms_norm.generic):
        y = call(x, weight, eps, **options)
        assert_matches(y, expected, dtype, tolerance=tolerance, scale_axis=())
        assert_new_memory(y, (x,))


@pytest.mark.costly
@pytest.mark.parametrize("name", ["layer_norm", "softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_reductions_of_any_view(name, dtype, data):
    x = data.draw(views(dtype), label="x")
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1), label="axis")
    y = OPERATORS[name](x, axis=axis)
    expected = REFERENCES[name](contiguous(x), axis=axis)
    assert (y.dtype, y.shape) == (x.dtype, expected.shape)
    # Errors are in proportion to the numbers that are summed, up to 8 and their differences, in the dtype of the sum;
    # where all elements of a slice are equal, layer_norm divides the error of their mean by the root of eps.
    summed = np.float64 if dtype == "float64" else np.float32
    atol = float(np.finfo(summed).eps) * (1e4 if name == "layer_norm" else 64.0)
    rtol = float(ml_dtypes.finfo(DTYPES[dtype]).eps)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=rtol, atol=atol)
    assert_new_memory(y, (x,))


@pytest.mark.costly
@pytest.mark.parametrize("name", ["silu", "sigmoid", "relu", "softplus", "gelu"])
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_activations_of_any_view(name, dtype, data):
    with np.errstate(all="ignore"):
        x = data.draw(views(dtype, min_dims=0, elements=ANYTHING[dtype]), label="x")
    y = OPERATORS[name](x)
    # The relative error of an exponential grows with its argument, up to where it vanishes.
    tolerance = 2 if dtype in support.HALVES else 64 if dtype == "float32" else 512
    scale_axis = None if name == "gelu" else ()
    assert_matches(y, REFERENCES[name](contiguous(x)), dtype, tolerance=tolerance, scale_axis=scale_axis)
    if isinstance(y, np.ndarray):
        assert_new_memory(y, (x,))
