"""The row axes that operators declare: a call on parts gives the parts of the result."""

import numpy as np
import pytest

import support
from tensorops._operator import OPERATORS
from tensorops.testing import CASES, REFERENCES, assert_matches
from tensorops.testing._running import result_dtype

DIVIDED = {name: CASES[name] for name, operator in OPERATORS.items() if operator.divides}


NOT_DIVIDED = {
    "multi_head_attention": "the operators that it calls are",
    "einsum": "its axes are named by the caller",
    "quantize": "its results have other axes than w",
    "dequantize": "a row of its result has several numbers of each word",
    "sample": "rows draw from one generator, in order",
}


def test_every_operator_says_how_calls_are_divided():
    """A new one that forgets `rows=` is noticed."""
    assert {name for name, operator in OPERATORS.items() if not operator.divides} == set(NOT_DIVIDED)


def in_two(array, own, axes):
    """Return the two parts of an array along one of the declared axes that it has; the whole twice, if it has none."""
    for place, axis in enumerate(own):
        if axis in axes and array.shape[place] > 1:  # else it broadcasts along it
            return np.split(array, [array.shape[place] // 2], axis=place)
    return array, array


@support.for_each(DIVIDED)
def test_parts_of_a_call(case):
    operator = OPERATORS[case.operator]
    args, kwargs = case.build()
    expected = REFERENCES[operator.__name__](*args, **kwargs)
    arguments = operator.canonical(*args, **kwargs)
    rows = operator.rows(arguments)
    assert list(rows.arrays) == [name for name, value in arguments.items() if isinstance(value, np.ndarray)]
    first = arguments[next(iter(rows.arrays))]
    assert rows.arrays[next(iter(rows.arrays))] == tuple(range(first.ndim))
    for name in list(rows.arrays)[: rows.sharing]:
        assert arguments[name].shape == first.shape
    every = {
        axis: length
        for name, own in rows.arrays.items()
        for axis, length in zip(own, arguments[name].shape, strict=True)
        if length != 1
    }
    groups = [group for group in rows.together if any(axis in every for axis in group)]
    for axes in [*({axis} for axis in every.keys() - set(rows.whole)), *map(set, groups)]:
        if len(axes) > 1 and any(every.get(axis, 2) % 2 for axis in axes):
            continue  # they would not have equal parts
        halves = {name: in_two(arguments[name], own, axes) for name, own in rows.arrays.items()}
        parts = []
        for i in range(2):
            result = operator(**arguments | {name: half[i] for name, half in halves.items()})
            parts.append(result if rows.results > 1 else (result,))
        assert len(parts[0]) == rows.results
        (where,) = (place for place, axis in enumerate(rows.result) if axis in axes)
        for j in range(rows.results):
            whole = expected[j] if rows.results > 1 else expected
            joined = np.concatenate([part[j] for part in parts], axis=where)
            assert joined.ndim == len(rows.result)
            floating = any(np.asarray(a).dtype.kind == "f" for a in (*args, *kwargs.values()) if a is not None)
            dtype = "int64" if j in rows.indices else result_dtype(kwargs, "float64" if floating else "float32")
            assert_matches(joined, whole, dtype, tolerance=case.tolerance, scale_axis=case.scale_axis)


@pytest.mark.parametrize("operator", [o for o in OPERATORS.values() if o.divides], ids=lambda o: o.__name__)
def test_some_call_of_every_operator_can_be_divided(operator):
    def free(case):
        args, kwargs = case.build()
        rows = operator.rows(operator.canonical(*args, **kwargs))
        return {axis for own in rows.arrays.values() for axis in own} - set(rows.whole)

    assert any(free(case) for case in CASES[operator.__name__])


def test_an_operator_without_the_declaration():
    operator = OPERATORS["sample"]
    assert not operator.divides
    with pytest.raises(TypeError, match=r"^sample: it is not declared how calls may be divided$"):
        operator.rows({})
