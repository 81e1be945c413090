"""Elementwise functions: each is one kernel over its operands, whatever their broadcasting and strides."""

from __future__ import annotations

from typing import Any

from array_api_pyopencl import _calls
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._calls import binary, unary


def abs(x: Array, /) -> Array:
    """Return the absolute value of each element, which is real."""
    return unary("abs", x)


def acos(x: Array, /) -> Array:
    """Return the inverse cosine of each element."""
    return unary("acos", x)


def acosh(x: Array, /) -> Array:
    """Return the inverse hyperbolic cosine of each element."""
    return unary("acosh", x)


def add(x1: Any, x2: Any, /) -> Array:
    """Return the sum of each pair of elements."""
    return binary("add", x1, x2)


def asin(x: Array, /) -> Array:
    """Return the inverse sine of each element."""
    return unary("asin", x)


def asinh(x: Array, /) -> Array:
    """Return the inverse hyperbolic sine of each element."""
    return unary("asinh", x)


def atan(x: Array, /) -> Array:
    """Return the inverse tangent of each element."""
    return unary("atan", x)


def atan2(x1: Any, x2: Any, /) -> Array:
    """Return the angle of the point ``(x2, x1)`` for each pair of elements."""
    return binary("atan2", x1, x2)


def atanh(x: Array, /) -> Array:
    """Return the inverse hyperbolic tangent of each element."""
    return unary("atanh", x)


def bitwise_and(x1: Any, x2: Any, /) -> Array:
    """Return the bitwise AND of each pair of elements."""
    return binary("bitwise_and", x1, x2)


def bitwise_invert(x: Array, /) -> Array:
    """Return each element with all bits inverted; booleans are negated."""
    return unary("bitwise_invert", x)


def bitwise_left_shift(x1: Any, x2: Any, /) -> Array:
    """Return `x1` shifted left by `x2` bits; shifts beyond the width give 0."""
    return binary("bitwise_left_shift", x1, x2)


def bitwise_or(x1: Any, x2: Any, /) -> Array:
    """Return the bitwise OR of each pair of elements."""
    return binary("bitwise_or", x1, x2)


def bitwise_right_shift(x1: Any, x2: Any, /) -> Array:
    """Return `x1` shifted right by `x2` bits; shifts beyond the width leave only the sign."""
    return binary("bitwise_right_shift", x1, x2)


def bitwise_xor(x1: Any, x2: Any, /) -> Array:
    """Return the bitwise XOR of each pair of elements."""
    return binary("bitwise_xor", x1, x2)


def ceil(x: Array, /) -> Array:
    """Return the smallest integer not less than each element."""
    return unary("ceil", x)


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


def conj(x: Array, /) -> Array:
    """Return the complex conjugate of each element."""
    return unary("conj", x)


def copysign(x1: Any, x2: Any, /) -> Array:
    """Return the magnitude of `x1` with the sign of `x2`."""
    return binary("copysign", x1, x2)


def cos(x: Array, /) -> Array:
    """Return the cosine of each element."""
    return unary("cos", x)


def cosh(x: Array, /) -> Array:
    """Return the hyperbolic cosine of each element."""
    return unary("cosh", x)


def divide(x1: Any, x2: Any, /) -> Array:
    """Return the quotient of each pair of elements; integers give the default floating-point type."""
    return binary("divide", x1, x2)


def equal(x1: Any, x2: Any, /) -> Array:
    """Return whether the elements of each pair are equal."""
    return binary("equal", x1, x2)


def exp(x: Array, /) -> Array:
    """Return the exponential of each element."""
    return unary("exp", x)


def expm1(x: Array, /) -> Array:
    """Return ``exp(x) - 1`` for each element, accurate near 0."""
    return unary("expm1", x)


def floor(x: Array, /) -> Array:
    """Return the largest integer not greater than each element."""
    return unary("floor", x)


def floor_divide(x1: Any, x2: Any, /) -> Array:
    """Return the quotient of each pair of elements, rounded down; an integer divided by 0 gives 0."""
    return binary("floor_divide", x1, x2)


def greater(x1: Any, x2: Any, /) -> Array:
    """Return whether `x1` is greater than `x2`, for each pair of elements."""
    return binary("greater", x1, x2)


def greater_equal(x1: Any, x2: Any, /) -> Array:
    """Return whether `x1` is greater than or equal to `x2`, for each pair of elements."""
    return binary("greater_equal", x1, x2)


def hypot(x1: Any, x2: Any, /) -> Array:
    """Return ``sqrt(x1**2 + x2**2)`` for each pair of elements, without intermediate overflow."""
    return binary("hypot", x1, x2)


def imag(x: Array, /) -> Array:
    """Return the imaginary part of each element."""
    return unary("imag", x)


def isfinite(x: Array, /) -> Array:
    """Return whether each element is finite."""
    return unary("isfinite", x)


def isinf(x: Array, /) -> Array:
    """Return whether each element is infinite."""
    return unary("isinf", x)


def isnan(x: Array, /) -> Array:
    """Return whether each element is NaN."""
    return unary("isnan", x)


def less(x1: Any, x2: Any, /) -> Array:
    """Return whether `x1` is less than `x2`, for each pair of elements."""
    return binary("less", x1, x2)


def less_equal(x1: Any, x2: Any, /) -> Array:
    """Return whether `x1` is less than or equal to `x2`, for each pair of elements."""
    return binary("less_equal", x1, x2)


def log(x: Array, /) -> Array:
    """Return the natural logarithm of each element."""
    return unary("log", x)


def log10(x: Array, /) -> Array:
    """Return the base-10 logarithm of each element."""
    return unary("log10", x)


def log1p(x: Array, /) -> Array:
    """Return ``log(1 + x)`` for each element, accurate near 0."""
    return unary("log1p", x)


def log2(x: Array, /) -> Array:
    """Return the base-2 logarithm of each element."""
    return unary("log2", x)


def logaddexp(x1: Any, x2: Any, /) -> Array:
    """Return ``log(exp(x1) + exp(x2))`` for each pair of elements."""
    return binary("logaddexp", x1, x2)


def logical_and(x1: Any, x2: Any, /) -> Array:
    """Return the logical AND of each pair of elements."""
    return binary("logical_and", x1, x2)


def logical_not(x: Array, /) -> Array:
    """Return the logical NOT of each element."""
    return unary("logical_not", x)


def logical_or(x1: Any, x2: Any, /) -> Array:
    """Return the logical OR of each pair of elements."""
    return binary("logical_or", x1, x2)


def logical_xor(x1: Any, x2: Any, /) -> Array:
    """Return the logical XOR of each pair of elements."""
    return binary("logical_xor", x1, x2)


def maximum(x1: Any, x2: Any, /) -> Array:
    """Return the greater of each pair of elements, or NaN if either is NaN."""
    return binary("maximum", x1, x2)


def minimum(x1: Any, x2: Any, /) -> Array:
    """Return the lesser of each pair of elements, or NaN if either is NaN."""
    return binary("minimum", x1, x2)


def multiply(x1: Any, x2: Any, /) -> Array:
    """Return the product of each pair of elements."""
    return binary("multiply", x1, x2)


def negative(x: Array, /) -> Array:
    """Return the negative of each element."""
    return unary("negative", x)


def nextafter(x1: Any, x2: Any, /) -> Array:
    """Return the next representable number after `x1` towards `x2`."""
    return binary("nextafter", x1, x2)


def not_equal(x1: Any, x2: Any, /) -> Array:
    """Return whether the elements of each pair differ."""
    return binary("not_equal", x1, x2)


def positive(x: Array, /) -> Array:
    """Return each element unchanged."""
    return unary("positive", x)


def pow(x1: Any, x2: Any, /) -> Array:
    """Return `x1` to the power `x2`; with integers, results of negative powers are rounded towards 0."""
    return binary("pow", x1, x2)


def real(x: Array, /) -> Array:
    """Return the real part of each element."""
    return unary("real", x)


def reciprocal(x: Array, /) -> Array:
    """Return ``1 / x`` for each element."""
    return unary("reciprocal", x)


def remainder(x1: Any, x2: Any, /) -> Array:
    """Return the remainder of each pair of elements, with the sign of `x2`; an integer modulo 0 gives 0."""
    return binary("remainder", x1, x2)


def round(x: Array, /) -> Array:
    """Return the integer nearest to each element; ties go to the even one."""
    return unary("round", x)


def sign(x: Array, /) -> Array:
    """Return the sign of each element: -1, 0 or 1, or for a complex number its direction."""
    return unary("sign", x)


def signbit(x: Array, /) -> Array:
    """Return whether the sign bit of each element is set."""
    return unary("signbit", x)


def sin(x: Array, /) -> Array:
    """Return the sine of each element."""
    return unary("sin", x)


def sinh(x: Array, /) -> Array:
    """Return the hyperbolic sine of each element."""
    return unary("sinh", x)


def sqrt(x: Array, /) -> Array:
    """Return the square root of each element."""
    return unary("sqrt", x)


def square(x: Array, /) -> Array:
    """Return the square of each element."""
    return unary("square", x)


def subtract(x1: Any, x2: Any, /) -> Array:
    """Return the difference of each pair of elements."""
    return binary("subtract", x1, x2)


def tan(x: Array, /) -> Array:
    """Return the tangent of each element."""
    return unary("tan", x)


def tanh(x: Array, /) -> Array:
    """Return the hyperbolic tangent of each element."""
    return unary("tanh", x)


def trunc(x: Array, /) -> Array:
    """Return the integer part of each element."""
    return unary("trunc", x)
