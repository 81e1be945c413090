"""The data types and the standard's rules for them, as look-up tables.

In addition to the standard's types there are `float16` and `bfloat16`, which promote as real floating-point types do.
MLX has no complex128.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from itertools import product
from typing import Any

import mlx.core as mx


class DType:
    """A data type of the namespace: a wrapper around an ``mx.Dtype``, its attribute `mlx`.

    It also equals that one, but write it first: ``mx.Dtype`` compares unequal to everything else and raises when it is
    compared with `None`, which is why this class exists.
    """

    __slots__ = ("mlx", "name")

    def __init__(self, name: str, mlx: Any) -> None:
        self.name = name
        self.mlx = mlx

    def __eq__(self, other: object) -> builtins.bool:
        return self is other or (isinstance(other, mx.Dtype) and other == self.mlx)

    def __hash__(self) -> int:
        return hash(self.mlx)

    def __repr__(self) -> str:
        return f"array_api_mlx.{self.name}"

    def __reduce__(self) -> str:
        return self.name  # pickled by reference, because each exists once


bool = DType("bool", mx.bool_)
int8 = DType("int8", mx.int8)
int16 = DType("int16", mx.int16)
int32 = DType("int32", mx.int32)
int64 = DType("int64", mx.int64)
uint8 = DType("uint8", mx.uint8)
uint16 = DType("uint16", mx.uint16)
uint32 = DType("uint32", mx.uint32)
uint64 = DType("uint64", mx.uint64)
float16 = DType("float16", mx.float16)
bfloat16 = DType("bfloat16", mx.bfloat16)
float32 = DType("float32", mx.float32)
float64 = DType("float64", mx.float64)
complex64 = DType("complex64", mx.complex64)
complex128 = DType("complex128", None)
"""A name only, since programs compare dtypes with it: MLX has no such type, and functions that are given it say so."""

_EVERY = (
    bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64, complex64,
)  # fmt: skip

PUBLIC = {dtype.mlx: dtype for dtype in _EVERY}
"""The namespace's data types by MLX's own. Everything else here and in the functions uses MLX's own."""

NAMES = {dtype.mlx: dtype.name for dtype in _EVERY}

INDEX = mx.int32
"""The dtype of results that are indices, positions or counts."""

BOOL = frozenset({mx.bool_})
SIGNED = frozenset({mx.int8, mx.int16, mx.int32, mx.int64})
UNSIGNED = frozenset({mx.uint8, mx.uint16, mx.uint32, mx.uint64})
INTEGRAL = SIGNED | UNSIGNED
INTEGRAL_OR_BOOL = INTEGRAL | BOOL
REAL_FLOATING = frozenset({mx.float16, mx.bfloat16, mx.float32, mx.float64})
COMPLEX = frozenset({mx.complex64})
FLOATING = REAL_FLOATING | COMPLEX
REAL = INTEGRAL | REAL_FLOATING
NUMERIC = REAL | COMPLEX
ALL = NUMERIC | BOOL

KINDS = {
    "bool": BOOL,
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": INTEGRAL,
    "real floating": REAL_FLOATING,
    "complex floating": COMPLEX,
    "numeric": NUMERIC,
}

_EXPECTED = {
    BOOL: "a boolean",
    INTEGRAL: "an integer",
    INTEGRAL_OR_BOOL: "an integer or boolean",
    REAL_FLOATING: "a real floating-point",
    FLOATING: "a floating-point",
    REAL: "a real numeric",
    NUMERIC: "a numeric",
}


def _promotion_table() -> dict[tuple[Any, Any], Any]:
    def promotes(a: Any, b: Any) -> Any:
        if a == b:
            return a
        if {a, b} <= SIGNED or {a, b} <= UNSIGNED or {a, b} <= REAL_FLOATING or {a, b} in mixed_complex:
            # MLX's own rules are the standard's here; float16 and bfloat16 promote to float32.
            return mx.result_type(a, b)
        if {a, b} <= INTEGRAL and mx.uint64 not in (a, b):
            return mx.result_type(a, b)
        return None

    mixed_complex = [
        {dtype, mx.complex64} for dtype in REAL_FLOATING if dtype != mx.float64
    ]  # that would be complex128
    table = {(a, b): promotes(a, b) for a, b in product(ALL, ALL)}
    return {pair: dtype for pair, dtype in table.items() if dtype is not None}


PROMOTION = _promotion_table()
"""The common dtype of two dtypes, by pair. Missing pairs do not promote."""


def pairs_of(category: frozenset[Any]) -> dict[tuple[Any, Any], Any]:
    """Return the part of `PROMOTION` with dtypes of one category only."""
    return {pair: dtype for pair, dtype in PROMOTION.items() if category.issuperset(pair)}


SCALARS: dict[tuple[type, Any], Any] = {
    (builtins.bool, mx.bool_): mx.bool_,
    **{(int, dtype): dtype for dtype in NUMERIC},
    **{(float, dtype): dtype for dtype in FLOATING},
    **{(complex, dtype): mx.complex64 for dtype in FLOATING if dtype != mx.float64},
}
"""The dtype of a Python number combined with an array, by its type and the dtype of the array."""

LIMITS: dict[Any, tuple[int, int]] = {dtype: (int(mx.iinfo(dtype).min), int(mx.iinfo(dtype).max)) for dtype in INTEGRAL}

ACCUMULATOR: dict[Any, Any] = {
    **{dtype: dtype for dtype in ALL},
    **dict.fromkeys((mx.bool_, mx.int8, mx.int16), mx.int32),
    **dict.fromkeys((mx.uint8, mx.uint16), mx.uint32),
}
"""The dtype of a sum or product: integers are at least as wide as the default integer."""

_PYTHON = {builtins.bool: mx.bool_, int: mx.int32, float: mx.float32, complex: mx.complex64}
"""The default dtypes, by Python's number types."""

REAL_PART = {**{dtype: dtype for dtype in REAL_FLOATING}, mx.complex64: mx.float32}


def name_of(dtype: Any) -> str:
    """Return the standard's name of a dtype."""
    return NAMES[dtype]


def require_dtype(dtype: Any, function: str) -> Any:
    """Return MLX's own dtype for a caller's argument, or raise a `TypeError` if it is not a dtype.

    Python's number types mean the default dtypes, because many programs write ``dtype=bool``.
    """
    if isinstance(dtype, DType):
        if dtype.mlx is None:
            raise TypeError(f"{function}: MLX has no {dtype.name}; its only complex data type is complex64")
        return dtype.mlx
    if isinstance(dtype, mx.Dtype):
        return dtype
    if isinstance(dtype, type) and dtype in _PYTHON:
        return _PYTHON[dtype]
    raise TypeError(f"{function}: dtype is {dtype!r}, expected one of this namespace's data types")


def wrong_category(function: str, what: str, dtype: Any, category: frozenset[Any]) -> TypeError:
    """Return the error for an argument whose dtype a function does not support."""
    return TypeError(f"{function}: {what} is {name_of(dtype)}, expected {_EXPECTED[category]} data type")


def cannot_promote(function: str, a: Any, b: Any, category: frozenset[Any]) -> TypeError:
    """Return the error for two arguments when one is of a wrong category or they do not promote."""
    for what, dtype in (("x1", a), ("x2", b)):
        if dtype not in category:
            return wrong_category(function, what, dtype, category)
    hint = ", because MLX has no complex128" if {a, b} == {mx.float64, mx.complex64} else ""
    return TypeError(
        f"{function}: {name_of(a)} and {name_of(b)} do not promote to a common data type{hint}; use astype"
    )


def common_dtype(function: str, dtypes: Iterable[Any]) -> Any:
    """Return the dtype to which several promote, in any order."""
    remaining = sorted(set(dtypes), key=lambda dtype: (dtype in COMPLEX, dtype.size, dtype in SIGNED))
    result = remaining[0]
    for dtype in remaining[1:]:
        if (result, dtype) not in PROMOTION:
            raise cannot_promote(function, result, dtype, ALL)
        result = PROMOTION[result, dtype]
    return result
