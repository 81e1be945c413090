"""Elementwise functions: MLX's or those of `_arithmetic`, after checking the dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from array_api_mlx import _arithmetic
from array_api_mlx._arguments import operands, unwrap
from array_api_mlx._array_object import Array, scalar_operand
from array_api_mlx._dtypes import (
    ALL,
    BOOL,
    COMPLEX,
    FLOATING,
    INTEGRAL,
    INTEGRAL_OR_BOOL,
    NUMERIC,
    REAL,
    REAL_FLOATING,
    cannot_promote,
    pairs_of,
    wrong_category,
)
from array_api_mlx._shapeless import filled_like


def _unary(name: str, function: Callable[[Any], Any], category: frozenset[Any], does: str) -> Callable[[Any], Array]:
    def call(x: Any, /) -> Array:
        a = x._array if type(x) is Array else unwrap(x, name)
        if a.dtype not in category:
            raise wrong_category(name, "x", a.dtype, category)
        return Array(function(a))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = does
    return call


def _binary(
    name: str, function: Callable[[Any, Any], Any], category: frozenset[Any], does: str
) -> Callable[[Any, Any], Array]:
    pairs = pairs_of(category)

    def call(x1: Any, x2: Any, /) -> Array:
        if type(x1) is Array and type(x2) is Array:
            a, b = x1._array, x2._array
            if (a.dtype, b.dtype) not in pairs:
                raise cannot_promote(name, a.dtype, b.dtype, category)
        else:
            a, b = operands(x1, x2, name, pairs, category)
        return Array(function(a, b))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = does
    return call


def _only(category: frozenset[Any], function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that leaves arrays of other dtypes unchanged."""
    return lambda a: function(a) if a.dtype in category else a


def _never(category: frozenset[Any], function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a test that is false for arrays of other dtypes."""
    return lambda a: function(a) if a.dtype in category else filled_like(a, mx.array(False))


abs = _unary("abs", mx.abs, NUMERIC, "Return magnitudes; those of complex numbers are real.")
acos = _unary("acos", mx.arccos, FLOATING, "Return the inverse cosine.")
acosh = _unary("acosh", mx.arccosh, FLOATING, "Return the inverse hyperbolic cosine.")
add = _binary("add", mx.add, NUMERIC, "Return sums.")
asin = _unary("asin", mx.arcsin, FLOATING, "Return the inverse sine.")
asinh = _unary("asinh", mx.arcsinh, FLOATING, "Return the inverse hyperbolic sine.")
atan = _unary("atan", mx.arctan, FLOATING, "Return the inverse tangent.")
atan2 = _binary("atan2", mx.arctan2, REAL_FLOATING, "Return the angle of a point, given its ordinate and abscissa.")
atanh = _unary("atanh", mx.arctanh, FLOATING, "Return the inverse hyperbolic tangent.")
bitwise_and = _binary("bitwise_and", mx.bitwise_and, INTEGRAL_OR_BOOL, "Return the conjunction of bits.")
bitwise_invert = _unary("bitwise_invert", mx.bitwise_invert, INTEGRAL_OR_BOOL, "Return inverted bits.")
bitwise_left_shift = _binary(
    "bitwise_left_shift", _arithmetic.left_shift, INTEGRAL, _arithmetic.left_shift.__doc__ or ""
)
bitwise_or = _binary("bitwise_or", mx.bitwise_or, INTEGRAL_OR_BOOL, "Return the disjunction of bits.")
bitwise_right_shift = _binary(
    "bitwise_right_shift", _arithmetic.right_shift, INTEGRAL, _arithmetic.right_shift.__doc__ or ""
)
bitwise_xor = _binary("bitwise_xor", mx.bitwise_xor, INTEGRAL_OR_BOOL, "Return the exclusive disjunction of bits.")
ceil = _unary("ceil", _only(REAL_FLOATING, mx.ceil), REAL, "Return the smallest integers that are not less.")
conj = _unary("conj", _only(COMPLEX, mx.conjugate), NUMERIC, "Return complex conjugates.")
copysign = _binary("copysign", _arithmetic.copysign, REAL_FLOATING, "Return magnitudes of `x1` with signs of `x2`.")
cos = _unary("cos", _arithmetic.cos, FLOATING, "Return the cosine.")
cosh = _unary("cosh", mx.cosh, FLOATING, "Return the hyperbolic cosine.")
divide = _binary("divide", mx.divide, NUMERIC, "Return quotients, which are float32 for integers.")
equal = _binary("equal", mx.equal, ALL, "Tell where elements are equal.")
exp = _unary("exp", _arithmetic.exp, FLOATING, "Return the exponential.")
expm1 = _unary("expm1", _arithmetic.expm1, FLOATING, "Return the exponential less one, exact near zero.")
floor = _unary("floor", _only(REAL_FLOATING, mx.floor), REAL, "Return the largest integers that are not greater.")
floor_divide = _binary("floor_divide", _arithmetic.floor_divide, REAL, _arithmetic.floor_divide.__doc__ or "")
greater = _binary("greater", mx.greater, REAL, "Tell where elements of `x1` are greater.")
greater_equal = _binary("greater_equal", mx.greater_equal, REAL, "Tell where elements of `x1` are greater or equal.")
hypot = _binary("hypot", _arithmetic.hypot, REAL_FLOATING, _arithmetic.hypot.__doc__ or "")
imag = _unary("imag", mx.imag, COMPLEX, "Return imaginary parts.")
isfinite = _unary("isfinite", mx.isfinite, NUMERIC, "Tell where elements are finite.")
isinf = _unary("isinf", _never(FLOATING, mx.isinf), NUMERIC, "Tell where elements are infinite.")
isnan = _unary("isnan", _never(FLOATING, mx.isnan), NUMERIC, "Tell where elements are NaN.")
less = _binary("less", mx.less, REAL, "Tell where elements of `x1` are less.")
less_equal = _binary("less_equal", mx.less_equal, REAL, "Tell where elements of `x1` are less or equal.")
log = _unary("log", mx.log, FLOATING, "Return the natural logarithm.")
log1p = _unary("log1p", _arithmetic.log1p, FLOATING, "Return the logarithm of one more, exact near zero.")
log2 = _unary("log2", mx.log2, FLOATING, "Return the logarithm to the base 2.")
log10 = _unary("log10", mx.log10, FLOATING, "Return the logarithm to the base 10.")
logaddexp = _binary("logaddexp", _arithmetic.logaddexp, REAL_FLOATING, _arithmetic.logaddexp.__doc__ or "")
logical_and = _binary("logical_and", mx.logical_and, BOOL, "Tell where both are true.")
logical_not = _unary("logical_not", mx.logical_not, BOOL, "Tell where elements are false.")
logical_or = _binary("logical_or", mx.logical_or, BOOL, "Tell where one is true, or both.")
logical_xor = _binary("logical_xor", mx.not_equal, BOOL, "Tell where one of both is true.")
maximum = _binary("maximum", mx.maximum, REAL, "Return the greater of both, or NaN if there is one.")
minimum = _binary("minimum", mx.minimum, REAL, "Return the lesser of both, or NaN if there is one.")
multiply = _binary("multiply", mx.multiply, NUMERIC, "Return products.")
negative = _unary("negative", mx.negative, NUMERIC, "Return elements with the other sign.")
nextafter = _binary("nextafter", _arithmetic.nextafter, REAL_FLOATING, "Return the number next to `x1` towards `x2`.")
not_equal = _binary("not_equal", mx.not_equal, ALL, "Tell where elements are not equal.")
positive = _unary("positive", lambda a: a, NUMERIC, "Return the elements.")
pow = _binary("pow", _arithmetic.power, NUMERIC, "Return `x1` to the power of `x2`.")
real = _unary("real", _only(COMPLEX, mx.real), NUMERIC, "Return real parts.")
reciprocal = _unary("reciprocal", _arithmetic.reciprocal, FLOATING, "Return one divided by each element.")
remainder = _binary("remainder", _arithmetic.remainder, REAL, _arithmetic.remainder.__doc__ or "")
round = _unary("round", _only(FLOATING, mx.round), NUMERIC, "Return the nearest integers, and even ones of two.")
sign = _unary("sign", _arithmetic.sign, NUMERIC, _arithmetic.sign.__doc__ or "")
signbit = _unary("signbit", _arithmetic.signbit, REAL_FLOATING, _arithmetic.signbit.__doc__ or "")
sin = _unary("sin", _arithmetic.sin, FLOATING, "Return the sine.")
sinh = _unary("sinh", mx.sinh, FLOATING, "Return the hyperbolic sine.")
square = _unary("square", mx.square, NUMERIC, "Return squares.")
sqrt = _unary("sqrt", mx.sqrt, FLOATING, "Return the principal square root.")
subtract = _binary("subtract", mx.subtract, NUMERIC, "Return differences.")
tan = _unary("tan", mx.tan, FLOATING, "Return the tangent.")
tanh = _unary("tanh", _arithmetic.tanh, FLOATING, "Return the hyperbolic tangent.")
trunc = _unary("trunc", _only(REAL_FLOATING, mx.trunc), REAL, "Return the nearest integers in the direction of zero.")


def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:  # noqa: A002
    """Return `x` with elements below `min` or above `max` replaced by those."""
    a = unwrap(x, "clip")
    if a.dtype not in REAL:
        raise wrong_category("clip", "x", a.dtype, REAL)
    pairs = pairs_of(REAL)
    for name, bound, limit in (("min", min, mx.maximum), ("max", max, mx.minimum)):
        if bound is None:
            continue
        b = scalar_operand(bound, a.dtype, "clip")
        b = unwrap(bound, "clip", name) if b is None else b
        if (a.dtype, b.dtype) not in pairs:
            raise cannot_promote("clip", a.dtype, b.dtype, REAL)
        a = limit(a, b)
    return Array(a)
