"""Arithmetic on ``mx.array`` where MLX's own differs from the standard or is missing.

Everything here is lazy and consists of MLX operations, so it can be traced. Arguments are promoted beforehand where it
matters: both arguments of a function have the dtype of its result.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

from array_api_mlx._dtypes import FLOATING
from array_api_mlx._shapeless import require_lengths

_SIGNED_BITS = {mx.float16: mx.int16, mx.bfloat16: mx.int16, mx.float32: mx.int32, mx.float64: mx.int64}
_INFINITY_BITS = {mx.float16: 0x7C00, mx.bfloat16: 0x7F80, mx.float32: 0x7F800000, mx.float64: 0x7FF0000000000000}


def constant(value: complex, like: Any) -> Any:
    """Return a number as an array with the dtype of another."""
    return mx.array(value, dtype=like.dtype)


def promote(a: Any, b: Any) -> tuple[Any, Any]:
    """Convert both to the dtype that MLX promotes them to."""
    if a.dtype == b.dtype:
        return a, b
    dtype = mx.result_type(a, b)
    return a.astype(dtype), b.astype(dtype)


# --------------------------------------------------------------------------------------------- signs and bits


def signbit(a: Any) -> Any:
    """Return whether the sign bit of floating-point numbers is set."""
    return mx.stop_gradient(a).view(_SIGNED_BITS[a.dtype]) < 0 if a.ndim else signbit(a[None])[0]


def copysign(a: Any, b: Any) -> Any:
    """Return magnitudes with the signs of other numbers."""
    a, b = promote(a, b)
    magnitude = mx.abs(a)
    return mx.where(signbit(b), -magnitude, magnitude)


def nextafter(a: Any, b: Any) -> Any:
    """Return the next representable number towards another."""
    a, b = mx.broadcast_arrays(*promote(a, b))
    if not a.ndim:
        return nextafter(a[None], b[None])[0]
    integer = _SIGNED_BITS[a.dtype]
    bits = a.view(integer)
    one = mx.array(1, dtype=integer)
    away = (b > a) == (a > 0)  # whether the magnitude grows by one unit in the last place, or shrinks
    smallest = mx.where(b > 0, one, one | mx.array(mx.iinfo(integer).min, dtype=integer)).view(a.dtype)
    stepped = mx.where(away, bits + one, bits - one).view(a.dtype)
    # On some devices MLX flushes denormal numbers in comparisons; testing the bits for zero avoids that.
    is_zero = (bits << one) == 0
    result = mx.where(is_zero, smallest, stepped)
    result = mx.where(a == b, b, result)
    return mx.where(mx.isnan(a) | mx.isnan(b), constant(math.nan, a), result)


def sign(a: Any) -> Any:
    """Return -1, 0 or 1; NaN stays NaN, and a complex number is divided by its magnitude."""
    if a.dtype == mx.complex64:
        magnitude = mx.abs(a)
        zero = magnitude == 0
        return mx.where(zero, constant(0, a), a / mx.where(zero, constant(1, magnitude), magnitude))
    if a.dtype in _SIGNED_BITS:
        return mx.where(mx.isnan(a), a, mx.sign(a))
    return mx.sign(a)


# ------------------------------------------------------------------------------------------- division


def remainder(a: Any, b: Any) -> Any:
    """Return the remainder of `floor_divide`, with the sign of the divisor; 0 for an integer divided by 0."""
    a, b = promote(a, b)
    result = mx.remainder(a, b)
    if a.dtype not in _SIGNED_BITS:
        return mx.where(b == 0, constant(0, a), result)
    return mx.where(result == 0, copysign(result, b), result)


def floor_divide(a: Any, b: Any) -> Any:
    """Return the quotient rounded towards negative infinity, such that ``a - b * floor_divide(a, b)`` is exact."""
    a, b = promote(a, b)
    if a.dtype not in _SIGNED_BITS:
        return mx.where(b == 0, constant(0, a), mx.floor_divide(a, mx.where(b == 0, constant(1, a), b)))
    quotient = mx.divide(a, b)
    exact = mx.round((a - remainder(a, b)) / b)  # the division cannot round up to the next integer
    exact = mx.where(exact == 0, copysign(exact, quotient), exact)
    return mx.where(mx.isfinite(exact), exact, mx.floor(quotient))


def reciprocal(a: Any) -> Any:
    """Return the reciprocal of each number."""
    return mx.divide(constant(1, a), a)


# ------------------------------------------------------------------------------------------- shifts


def left_shift(a: Any, b: Any) -> Any:
    """Shift bits to the left; shifts by the width or more give 0."""
    a, b = promote(a, b)
    return mx.where(b < constant(8 * a.dtype.size, b), mx.left_shift(a, b), constant(0, a))


def right_shift(a: Any, b: Any) -> Any:
    """Shift bits to the right; shifts by the width or more leave only the sign."""
    a, b = promote(a, b)
    most = constant(8 * a.dtype.size - 1, b)
    shifted = mx.right_shift(a, mx.minimum(b, most))
    return mx.where((b > most) & (a >= 0), constant(0, a), shifted)


# ------------------------------------------------------------------------------------------- transcendental functions
# MLX's CPU kernels compute exp, sin and cos of float64 with polynomials for float32. Its expm1 and tan of float64 are
# accurate to the last digits, and the others are computed from them.


def exp(a: Any) -> Any:
    """Return the exponential."""
    if a.dtype != mx.float64:
        return mx.exp(a)
    magnitude = mx.where(a < 0, -a, a)  # to avoid cancellation; the derivative of mx.abs at 0 is 0
    grown = mx.expm1(magnitude) + constant(1, a)
    return mx.where(a < 0, mx.reciprocal(grown), grown)


def sin(a: Any) -> Any:
    """Return the sine; the sine of -0 is -0."""
    if a.dtype == mx.float64:
        t = mx.tan(a * constant(0.5, a))
        return (t + t) / (constant(1, a) + t * t)
    return mx.sin(a) if a.dtype == mx.complex64 else mx.where(a == 0, a, mx.sin(a))


def cos(a: Any) -> Any:
    """Return the cosine."""
    if a.dtype != mx.float64:
        return mx.cos(a)
    t = mx.tan(a * constant(0.5, a))
    one = constant(1, a)
    return (one - t) * (one + t) / (one + t * t)


def expm1(a: Any) -> Any:
    """Return the exponential less one, accurate near zero."""
    if a.dtype != mx.complex64:
        return mx.expm1(a)
    x, y = mx.real(a), mx.imag(a)
    half = mx.sin(y * constant(0.5, y))
    turned = y != 0
    grown = mx.exp(x)
    near = mx.expm1(x) * mx.cos(y) - constant(2, y) * half * half
    far = mx.where(mx.isinf(x), mx.real(mx.exp(a)) - constant(1, x), near)
    imag = mx.where(mx.isinf(x), mx.imag(mx.exp(a)), grown * mx.sin(y))
    zero = constant(0, x)  # added to turn -0 into 0
    return as_complex(mx.where(turned, far, mx.expm1(x) + zero), mx.where(turned, imag, y))


def log1p(a: Any) -> Any:
    """Return the logarithm of each number plus one, accurate near zero."""
    if a.dtype != mx.complex64:
        return mx.log1p(a)
    x, y = mx.real(a), mx.imag(a)
    small = mx.abs(a) < constant(0.5, x)
    near = constant(0.5, x) * mx.log1p(x * (constant(2, x) + x) + y * y)
    whole = mx.log(as_complex(x + constant(1, x), y))
    return as_complex(mx.where(small, near, mx.real(whole)), mx.where(mx.isnan(x) & (y == 0), y, mx.imag(whole)))


def tanh(a: Any) -> Any:
    """Return the hyperbolic tangent; at infinity its imaginary part also has the sign of that of `a`."""
    if a.dtype != mx.complex64:
        return mx.tanh(a)
    x, y = mx.real(a), mx.imag(a)
    limit = as_complex(copysign(constant(1, x), x), copysign(constant(0, y), y))
    return mx.where(mx.isinf(x) & mx.isfinite(y), limit, mx.tanh(a))


def logaddexp(a: Any, b: Any) -> Any:
    """Return the logarithm of the sum of two exponentials."""
    a, b = promote(a, b)
    if a.dtype != mx.float64:
        return mx.logaddexp(a, b)
    high = mx.maximum(a, b)
    gap = mx.minimum(a, b) - high
    total = high + mx.log1p(exp(gap))
    return mx.where(mx.isinf(high) | (a == b), mx.where(mx.isinf(high), high, high + constant(math.log(2), a)), total)


def hypot(a: Any, b: Any) -> Any:
    """Return the square root of the sum of squares, without intermediate overflow."""
    a, b = promote(a, b)
    a, b = mx.abs(a), mx.abs(b)
    high, low = mx.maximum(a, b), mx.minimum(a, b)
    zero = high == 0
    ratio = low / mx.where(zero, constant(1, high), high)
    length = high * mx.sqrt(constant(1, high) + ratio * ratio)
    infinite = mx.isinf(a) | mx.isinf(b)
    return mx.where(infinite, constant(math.inf, a), mx.where(zero, high, length))


def as_complex(real: Any, imag: Any) -> Any:
    """Return complex numbers from their parts: a sum would turn an infinite part into NaN."""
    real, imag = mx.broadcast_arrays(real.astype(mx.float32), imag.astype(mx.float32))
    return mx.stack([real, imag], axis=-1).view(mx.complex64)[..., 0]


# -------------------------------------------------------------------------------------------- products

_BLOCK = 1 << 22
"""The maximum number of products that integer `matmul` holds at a time."""


def matmul(a: Any, b: Any) -> Any:
    """Return the matrix product, also of integers, for which MLX has none."""
    if not a.ndim or not b.ndim or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ValueError(f"matmul: shapes {a.shape} and {b.shape} do not match")
    a, b = promote(a, b)
    if a.dtype in FLOATING:
        return mx.matmul(a, b)
    require_lengths("matmul of integers")
    left, right = (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    depth = left.shape[-1]
    batch = mx.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    shape = (*batch, left.shape[-2], right.shape[-1])
    step = max(1, _BLOCK // max(1, math.prod(shape)))
    result = mx.zeros(shape, dtype=a.dtype)
    for k in range(0, depth, step):
        products = left[..., :, k : k + step, None] * right[..., None, k : k + step, :]
        result = result + mx.sum(products, axis=-2).astype(a.dtype)
    if b.ndim == 1:
        result = result[..., 0]
    return result[..., 0, :] if a.ndim == 1 and b.ndim > 1 else result[..., 0] if a.ndim == 1 else result


def power(a: Any, b: Any) -> Any:
    """Return powers; any number to the power of zero is one, including complex numbers."""
    a, b = promote(a, b)
    if a.dtype != mx.complex64:
        return mx.power(a, b)
    one = constant(1, a)
    return mx.where(b == 0, one, mx.power(a, b))
