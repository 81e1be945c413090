"""Elementwise functions: each is one kernel over its operands, broadcast and strided as they are."""

from __future__ import annotations

from typing import Any

from array_api_pyopencl import _calls
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._calls import binary, unary


def abs(x: Array, /) -> Array:
    """Return for each element the absolute value, which is real."""
    return unary("abs", x)


def acos(x: Array, /) -> Array:
    """Return for each element the inverse cosine."""
    return unary("acos", x)


def acosh(x: Array, /) -> Array:
    """Return for each element the inverse hyperbolic cosine."""
    return unary("acosh", x)


def add(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the sum."""
    return binary("add", x1, x2)


def asin(x: Array, /) -> Array:
    """Return for each element the inverse sine."""
    return unary("asin", x)


def asinh(x: Array, /) -> Array:
    """Return for each element the inverse hyperbolic sine."""
    return unary("asinh", x)


def atan(x: Array, /) -> Array:
    """Return for each element the inverse tangent."""
    return unary("atan", x)


def atan2(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the angle of the point ``(x2, x1)``."""
    return binary("atan2", x1, x2)


def atanh(x: Array, /) -> Array:
    """Return for each element the inverse hyperbolic tangent."""
    return unary("atanh", x)


def bitwise_and(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the bits set in both."""
    return binary("bitwise_and", x1, x2)


def bitwise_invert(x: Array, /) -> Array:
    """Return for each element every bit inverted; a truth value negated."""
    return unary("bitwise_invert", x)


def bitwise_left_shift(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the bits of `x1` moved up by `x2`, all lost beyond the width."""
    return binary("bitwise_left_shift", x1, x2)


def bitwise_or(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the bits set in either."""
    return binary("bitwise_or", x1, x2)


def bitwise_right_shift(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the bits of `x1` moved down by `x2`, all but the sign lost beyond the width."""
    return binary("bitwise_right_shift", x1, x2)


def bitwise_xor(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the bits set in one of both."""
    return binary("bitwise_xor", x1, x2)


def ceil(x: Array, /) -> Array:
    """Return for each element the least integer that is not less."""
    return unary("ceil", x)


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:  # noqa: A002 (the standard's names)
    """Return each element, but not less than `min` and not greater than `max`.

    Parameters
    ----------
    x
        Real numbers.
    min, max
        Bounds, arrays or scalars that broadcast with `x` and are of its kind; ``None`` is no bound.
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
    """Return for each element the complex conjugate."""
    return unary("conj", x)


def copysign(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the magnitude of `x1` with the sign of `x2`."""
    return binary("copysign", x1, x2)


def cos(x: Array, /) -> Array:
    """Return for each element the cosine."""
    return unary("cos", x)


def cosh(x: Array, /) -> Array:
    """Return for each element the hyperbolic cosine."""
    return unary("cosh", x)


def divide(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the quotient; of integers it is of the default floating-point type."""
    return binary("divide", x1, x2)


def equal(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements whether both are equal."""
    return binary("equal", x1, x2)


def exp(x: Array, /) -> Array:
    """Return for each element the exponential."""
    return unary("exp", x)


def expm1(x: Array, /) -> Array:
    """Return for each element ``exp(x) - 1``, precise near 0."""
    return unary("expm1", x)


def floor(x: Array, /) -> Array:
    """Return for each element the greatest integer that is not greater."""
    return unary("floor", x)


def floor_divide(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the quotient rounded down; of an integer and 0 it is 0."""
    return binary("floor_divide", x1, x2)


def greater(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements whether `x1` is greater."""
    return binary("greater", x1, x2)


def greater_equal(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements whether `x1` is not less."""
    return binary("greater_equal", x1, x2)


def hypot(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements ``sqrt(x1**2 + x2**2)`` without overflow on the way."""
    return binary("hypot", x1, x2)


def imag(x: Array, /) -> Array:
    """Return for each element the imaginary part."""
    return unary("imag", x)


def isfinite(x: Array, /) -> Array:
    """Return for each element whether it is neither infinite nor NaN."""
    return unary("isfinite", x)


def isinf(x: Array, /) -> Array:
    """Return for each element whether it is infinite."""
    return unary("isinf", x)


def isnan(x: Array, /) -> Array:
    """Return for each element whether it is NaN."""
    return unary("isnan", x)


def less(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements whether `x1` is less."""
    return binary("less", x1, x2)


def less_equal(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements whether `x1` is not greater."""
    return binary("less_equal", x1, x2)


def log(x: Array, /) -> Array:
    """Return for each element the natural logarithm."""
    return unary("log", x)


def log10(x: Array, /) -> Array:
    """Return for each element the logarithm to base 10."""
    return unary("log10", x)


def log1p(x: Array, /) -> Array:
    """Return for each element ``log(1 + x)``, precise near 0."""
    return unary("log1p", x)


def log2(x: Array, /) -> Array:
    """Return for each element the logarithm to base 2."""
    return unary("log2", x)


def logaddexp(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements ``log(exp(x1) + exp(x2))``."""
    return binary("logaddexp", x1, x2)


def logical_and(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements whether both are true."""
    return binary("logical_and", x1, x2)


def logical_not(x: Array, /) -> Array:
    """Return for each element the negated truth value."""
    return unary("logical_not", x)


def logical_or(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements whether either is true."""
    return binary("logical_or", x1, x2)


def logical_xor(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements whether one of both is true."""
    return binary("logical_xor", x1, x2)


def maximum(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the greater one, or NaN if one is."""
    return binary("maximum", x1, x2)


def minimum(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the lesser one, or NaN if one is."""
    return binary("minimum", x1, x2)


def multiply(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the product."""
    return binary("multiply", x1, x2)


def negative(x: Array, /) -> Array:
    """Return for each element the negated value."""
    return unary("negative", x)


def nextafter(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the next representable number after `x1` in the direction of `x2`."""
    return binary("nextafter", x1, x2)


def not_equal(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements whether they differ."""
    return binary("not_equal", x1, x2)


def positive(x: Array, /) -> Array:
    """Return for each element the value itself."""
    return unary("positive", x)


def pow(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements `x1` to the power `x2`; for integers, a negative one rounds to 0."""
    return binary("pow", x1, x2)


def real(x: Array, /) -> Array:
    """Return for each element the real part."""
    return unary("real", x)


def reciprocal(x: Array, /) -> Array:
    """Return for each element ``1 / x``."""
    return unary("reciprocal", x)


def remainder(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the remainder with the sign of `x2`; of an integer by 0 it is 0."""
    return binary("remainder", x1, x2)


def round(x: Array, /) -> Array:
    """Return for each element the nearest integer, of two the even one."""
    return unary("round", x)


def sign(x: Array, /) -> Array:
    """Return for each element -1, 0 or 1, or for a complex number its direction."""
    return unary("sign", x)


def signbit(x: Array, /) -> Array:
    """Return for each element whether the sign bit is set."""
    return unary("signbit", x)


def sin(x: Array, /) -> Array:
    """Return for each element the sine."""
    return unary("sin", x)


def sinh(x: Array, /) -> Array:
    """Return for each element the hyperbolic sine."""
    return unary("sinh", x)


def sqrt(x: Array, /) -> Array:
    """Return for each element the square root."""
    return unary("sqrt", x)


def square(x: Array, /) -> Array:
    """Return for each element the square."""
    return unary("square", x)


def subtract(x1: Any, x2: Any, /) -> Array:
    """Return for each pair of elements the difference."""
    return binary("subtract", x1, x2)


def tan(x: Array, /) -> Array:
    """Return for each element the tangent."""
    return unary("tan", x)


def tanh(x: Array, /) -> Array:
    """Return for each element the hyperbolic tangent."""
    return unary("tanh", x)


def trunc(x: Array, /) -> Array:
    """Return for each element the integer part."""
    return unary("trunc", x)
