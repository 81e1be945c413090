"""Numbers as codes and as bits, by operations of the Array API: what the writers of formats share.

Results are those of NumPy bit by bit however a library compiles the operations: between a product and a sum there is an
operation that keeps them from being contracted to one, with one rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorops.formats._bits import KINDS, halves, looked_up
from tensorops.libraries import creation_device
from tensorops.typing import Array, Namespace


def extreme(xp: Namespace, w: Array) -> Array:
    """Return the number of each row whose magnitude is largest, the first if there are several; one column."""
    places = xp.arange(w.shape[-1], dtype=xp.int32, device=creation_device(w))
    first = xp.astype(xp.argmax(xp.abs(w), axis=-1, keepdims=True), xp.int32)
    return xp.max(xp.where(places == first, w, xp.full_like(w, float("-inf"))), axis=-1, keepdims=True)


def quotient(xp: Namespace, x: Array, number: float) -> Array:
    """Return ``x / number``, rounded to nearest.

    XLA would multiply by the inverse of a constant, and join this division with one by the result.
    """
    is_number = x == x
    return xp.where(is_number, x / xp.where(is_number, xp.full_like(x, number), x), x)


def divided(xp: Namespace, w: Array, scale: Array) -> Array:
    """Return ``w · (1 / scale)``, in two roundings as in llama.cpp; 0 where the inverse is infinite."""
    inverse = 1.0 / xp.where(scale == 0.0, xp.full_like(scale, float("inf")), scale)
    return w * xp.where(xp.abs(inverse) == float("inf"), xp.zeros_like(inverse), inverse)


def steps(xp: Namespace, w: Array, count: int) -> tuple[Array, Array, Array]:
    """Return the size of that many steps over each row, its smallest number, and the distances from that in steps."""
    low = xp.min(w, axis=-1, keepdims=True)
    scale = quotient(xp, xp.max(w, axis=-1, keepdims=True) - low, float(count))
    return scale, low, divided(xp, w - low, scale)


def levels(xp: Namespace, x: Array, offset: float, largest: int) -> Array:
    """Return ``x + offset`` without its fraction, from 0 to `largest`, as uint8."""
    sums = xp.clip(x, -offset, float(largest)) + offset
    return xp.astype(xp.clip(xp.trunc(sums), 0.0, float(largest)), xp.uint8)


def paired(xp: Namespace, codes: Array) -> Array:
    """Return integers of 4 bits in bytes: the first half of a row in the low halves, the second in the high ones."""
    half = codes.shape[-1] // 2
    return codes[..., :half] | (codes[..., half:] << 4)


def octets(xp: Namespace, bits: Array) -> Array:
    """Return bytes of bits, eight neighbours in each, the first one lowest."""
    made = bits[..., 0::8]
    for i in range(1, 8):
        made = made | (bits[..., i::8] << i)
    return made


def exponents(xp: Namespace, a: Array, starts: Sequence[float], lowest: int) -> Array:
    """Return the number of the last of `starts`, counted from `lowest`, up to which magnitudes reach.

    The starts are about powers of two from ``2 ** lowest`` on: `log2` of libraries differs where it is nearly whole.
    """
    near = xp.round(xp.log2(xp.clip(a, starts[0], starts[-1])))
    near = xp.astype(xp.clip(near, float(lowest), float(lowest + len(starts) - 1)), xp.int32)
    is_below = a < looked_up(xp, starts, near - lowest, xp.float32)
    return xp.clip(near - xp.astype(is_below, xp.int32), lowest, lowest + len(starts) - 1)


def rounded_bits(xp: Namespace, x: Array, mantissa: int, lowest: int, highest: int) -> Array:
    """Return magnitudes, rounded to nearest, as bits of a floating-point type: int32.

    Parameters
    ----------
    xp : namespace
        Of the array.
    x : array of float32
        Numbers; of NaN, the bits are those of a NaN if the type follows IEEE 754.
    mantissa : int
        How many bits of the mantissa are stored.
    lowest, highest : int
        The exponents of normal numbers.

    Returns
    -------
    array of int32
        The bits without that of the sign.
    """
    a = xp.abs(x)
    exponent = exponents(xp, a, [2.0**e for e in range(lowest, highest + 1)], lowest)
    powers = [mantissa - e for e in range(lowest, highest + 1)]
    for part in halves(powers):  # as the inverses of large powers are not normal
        a = a * looked_up(xp, [2.0**e for e in part], exponent - lowest, xp.float32)
    units = xp.where(a == a, xp.clip(xp.round(a), 0.0, 2.0 ** (mantissa + 1)), xp.full_like(a, 3.0 * 2**mantissa))
    exponent = xp.where(a == a, exponent, xp.full_like(exponent, highest))
    return ((exponent - lowest) << mantissa) + xp.astype(units, xp.int32)


def is_negative(xp: Namespace, x: Array) -> Array:
    """Return which numbers have a sign, zeros included."""
    return xp.where(x == 0.0, 1.0 / x, x) < 0.0


def number_bytes(xp: Namespace, x: Array, nbytes: int) -> Array:
    """Return numbers, along a last axis of length 1, as that many bytes of float16 or float32, low byte first."""
    import numpy as np  # `import tensorops` does without

    if isinstance(x, np.ndarray):
        return x.astype(f"<f{nbytes}").view(np.uint8)
    bits = rounded_bits(xp, x, *KINDS[nbytes])
    found: list[Any] = [(bits >> 8 * i) & 255 for i in range(nbytes)]
    found[-1] = xp.where(is_negative(xp, x), found[-1] + 128, found[-1])
    return xp.astype(xp.concat(found, axis=-1), xp.uint8)
