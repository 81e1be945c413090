"""Elementwise functions: each is one kernel over its operands, whatever their broadcasting and strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from array_api_pyopencl import _calls
from array_api_pyopencl._arguments import named
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._calls import binary, unary


def _unary(name: str, does: str) -> Callable[[Array], Array]:
    def call(x: Array, /) -> Array:
        return unary(name, x)

    call.__doc__ = does
    return named(call, name)  # type: ignore[no-any-return]


def _binary(name: str, does: str) -> Callable[[Any, Any], Array]:
    def call(x1: Any, x2: Any, /) -> Array:
        return binary(name, x1, x2)

    call.__doc__ = does
    return named(call, name)  # type: ignore[no-any-return]


abs = _unary("abs", "Return the absolute value of each element, which is real.")
acos = _unary("acos", "Return the inverse cosine of each element.")
acosh = _unary("acosh", "Return the inverse hyperbolic cosine of each element.")
add = _binary("add", "Return the sum of each pair of elements.")
asin = _unary("asin", "Return the inverse sine of each element.")
asinh = _unary("asinh", "Return the inverse hyperbolic sine of each element.")
atan = _unary("atan", "Return the inverse tangent of each element.")
atan2 = _binary("atan2", "Return the angle of the point ``(x2, x1)`` for each pair of elements.")
atanh = _unary("atanh", "Return the inverse hyperbolic tangent of each element.")
bitwise_and = _binary("bitwise_and", "Return the bitwise AND of each pair of elements.")
bitwise_invert = _unary("bitwise_invert", "Return each element with all bits inverted; booleans are negated.")
bitwise_left_shift = _binary(
    "bitwise_left_shift", "Return `x1` shifted left by `x2` bits; shifts beyond the width give 0."
)
bitwise_or = _binary("bitwise_or", "Return the bitwise OR of each pair of elements.")
bitwise_right_shift = _binary(
    "bitwise_right_shift", "Return `x1` shifted right by `x2` bits; shifts beyond the width leave only the sign."
)
bitwise_xor = _binary("bitwise_xor", "Return the bitwise XOR of each pair of elements.")
ceil = _unary("ceil", "Return the smallest integer not less than each element.")
conj = _unary("conj", "Return the complex conjugate of each element.")
copysign = _binary("copysign", "Return the magnitude of `x1` with the sign of `x2`.")
cos = _unary("cos", "Return the cosine of each element.")
cosh = _unary("cosh", "Return the hyperbolic cosine of each element.")
divide = _binary(
    "divide", "Return the quotient of each pair of elements; integers give the default floating-point type."
)
equal = _binary("equal", "Return whether the elements of each pair are equal.")
exp = _unary("exp", "Return the exponential of each element.")
expm1 = _unary("expm1", "Return ``exp(x) - 1`` for each element, accurate near 0.")
floor = _unary("floor", "Return the largest integer not greater than each element.")
floor_divide = _binary(
    "floor_divide", "Return the quotient of each pair of elements, rounded down; an integer divided by 0 gives 0."
)
greater = _binary("greater", "Return whether `x1` is greater than `x2`, for each pair of elements.")
greater_equal = _binary(
    "greater_equal", "Return whether `x1` is greater than or equal to `x2`, for each pair of elements."
)
hypot = _binary("hypot", "Return ``sqrt(x1**2 + x2**2)`` for each pair of elements, without intermediate overflow.")
imag = _unary("imag", "Return the imaginary part of each element.")
isfinite = _unary("isfinite", "Return whether each element is finite.")
isinf = _unary("isinf", "Return whether each element is infinite.")
isnan = _unary("isnan", "Return whether each element is NaN.")
less = _binary("less", "Return whether `x1` is less than `x2`, for each pair of elements.")
less_equal = _binary("less_equal", "Return whether `x1` is less than or equal to `x2`, for each pair of elements.")
log = _unary("log", "Return the natural logarithm of each element.")
log10 = _unary("log10", "Return the base-10 logarithm of each element.")
log1p = _unary("log1p", "Return ``log(1 + x)`` for each element, accurate near 0.")
log2 = _unary("log2", "Return the base-2 logarithm of each element.")
logaddexp = _binary("logaddexp", "Return ``log(exp(x1) + exp(x2))`` for each pair of elements.")
logical_and = _binary("logical_and", "Return the logical AND of each pair of elements.")
logical_not = _unary("logical_not", "Return the logical NOT of each element.")
logical_or = _binary("logical_or", "Return the logical OR of each pair of elements.")
logical_xor = _binary("logical_xor", "Return the logical XOR of each pair of elements.")
maximum = _binary("maximum", "Return the greater of each pair of elements, or NaN if either is NaN.")
minimum = _binary("minimum", "Return the lesser of each pair of elements, or NaN if either is NaN.")
multiply = _binary("multiply", "Return the product of each pair of elements.")
negative = _unary("negative", "Return the negative of each element.")
nextafter = _binary("nextafter", "Return the next representable number after `x1` towards `x2`.")
not_equal = _binary("not_equal", "Return whether the elements of each pair differ.")
positive = _unary("positive", "Return each element unchanged.")
pow = _binary("pow", "Return `x1` to the power `x2`; with integers, results of negative powers are rounded towards 0.")
real = _unary("real", "Return the real part of each element.")
reciprocal = _unary("reciprocal", "Return ``1 / x`` for each element.")
remainder = _binary(
    "remainder", "Return the remainder of each pair of elements, with the sign of `x2`; an integer modulo 0 gives 0."
)
round = _unary("round", "Return the integer nearest to each element; ties go to the even one.")
sign = _unary("sign", "Return the sign of each element: -1, 0 or 1, or for a complex number its direction.")
signbit = _unary("signbit", "Return whether the sign bit of each element is set.")
sin = _unary("sin", "Return the sine of each element.")
sinh = _unary("sinh", "Return the hyperbolic sine of each element.")
sqrt = _unary("sqrt", "Return the square root of each element.")
square = _unary("square", "Return the square of each element.")
subtract = _binary("subtract", "Return the difference of each pair of elements.")
tan = _unary("tan", "Return the tangent of each element.")
tanh = _unary("tanh", "Return the hyperbolic tangent of each element.")
trunc = _unary("trunc", "Return the integer part of each element.")


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:  # noqa: A002 (the standard's names)
    """Return each element limited to the range from `min` to `max`.

    Parameters
    ----------
    x
        Real numbers.
    min, max
        Bounds: arrays or scalars of the kind of `x` that broadcast with it; ``None`` means no bound.
    """
    if isinstance(x, Array) and x.dtype.kind not in "iuf":
        raise TypeError(f"clip is not defined for {x.dtype.name}")
    if min is None and max is None:
        return _calls.compute("copy", (x,))
    if max is None:
        result = _calls.compute("maximum", (x, min))
    elif min is None:
        result = _calls.compute("minimum", (x, max))
    else:
        result = _calls.compute("clip", (x, min, max))
    if result.dtype == x.dtype:
        return result
    return _calls.convert(result, x.dtype)
