"""Numbers in bytes, by operations of the Array API, which has no views of other dtypes; NumPy has, as files need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorops.libraries import creation_device
from tensorops.typing import Array, Namespace


def signed(xp: Namespace, stored: Array) -> Array:
    """Return bytes as int8, from two's complement."""
    import numpy as np  # `import tensorops` does without

    if isinstance(stored, np.ndarray):
        return stored.view(np.int8)
    return xp.astype(xp.astype(stored ^ 128, xp.int16) - 128, xp.int8)


def in_bytes(xp: Namespace, codes: Array) -> Array:
    """Return int8 as bytes, in two's complement."""
    import numpy as np

    if isinstance(codes, np.ndarray):
        return codes.view(np.uint8)
    return xp.astype(xp.astype(codes, xp.int16) & 255, xp.uint8)


KINDS = {2: (10, -14, 15), 4: (23, -126, 127)}
"""Of float16 and float32, by their bytes: bits of the mantissa, and the exponents of normal numbers."""


def half(xp: Namespace, stored: Array) -> Array:
    """Return two bytes along the last axis, low byte first, as float16 in float32; that axis has length 1 then."""
    return number(xp, stored, 2)


def number(xp: Namespace, stored: Array, nbytes: int) -> Array:
    """Return that many bytes along the last axis, low byte first, as a number in float32."""
    import numpy as np  # `import tensorops` does without

    if isinstance(stored, np.ndarray):
        return np.ascontiguousarray(stored).view(f"<f{nbytes}").astype(np.float32)
    mantissa_bits, lowest, highest = KINDS[nbytes]
    wide = xp.astype(stored, xp.int32)
    bits = wide[..., nbytes - 1 :] & 127
    for i in reversed(range(nbytes - 1)):
        bits = (bits << 8) | wide[..., i : i + 1]
    mantissa, exponent = bits & ((1 << mantissa_bits) - 1), bits >> mantissa_bits
    last = highest - lowest + 2  # the exponent of infinity and NaN
    powers = [max(e, 1) + lowest - 1 - mantissa_bits for e in range(last)]
    are_normal = (exponent > 0) & ((exponent < last) | (mantissa == 0))
    magnitude = xp.astype(xp.where(are_normal, mantissa + (1 << mantissa_bits), mantissa), xp.float32)
    for part in halves(powers):  # as the smallest powers of float32 are not normal
        magnitude = magnitude * looked_up(xp, [*(2.0**e for e in part), float("inf")], exponent, xp.float32)
    magnitude = xp.where((exponent == last) & (mantissa > 0), xp.full_like(magnitude, float("nan")), magnitude)
    return xp.where(wide[..., nbytes - 1 :] > 127, -magnitude, magnitude)


def halves(powers: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return two lists of exponents whose sums are those given."""
    return [e // 2 for e in powers], [e - e // 2 for e in powers]


def pairs(xp: Namespace, codes: Array) -> Array:
    """Return integers of 4 bits two in a byte, low half first."""
    import numpy as np

    if isinstance(codes, np.ndarray):  # neighbours as one integer of 16 bits: not by bytes, and without gaps
        both = np.ascontiguousarray(codes, dtype=np.uint8).view("<u2")
        return (both | (both >> 4)).astype(np.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def nibbles(xp: Namespace, stored: Array) -> Array:
    """Return the low halves of bytes, and after them the high ones, along the last axis."""
    return xp.concat((stored & 15, stored >> 4), axis=-1)


def fields(xp: Namespace, stored: Array, bits: int) -> Array:
    """Return the fields of that many bits of bytes, shape (..., 8 / bits, bytes): first all lowest, then the next."""
    shifts = range(0, 8, bits)
    return xp.stack([(stored >> shift) & ((1 << bits) - 1) for shift in shifts], axis=-2)


def joined(xp: Namespace, x: Array, axes: int) -> Array:
    """Return an array with its last axes made one."""
    return xp.reshape(x, (*x.shape[:-axes], -1))


def looked_up(xp: Namespace, table: Sequence[float], codes: Array, dtype: Any) -> Array:
    """Return the entries of a table that codes number."""
    values = xp.asarray(table, dtype=dtype, device=creation_device(codes))
    numbers = xp.reshape(xp.astype(codes, xp.int32), (-1,))
    return xp.reshape(xp.take(values, numbers, axis=0), codes.shape)


def six_bit_scales(xp: Namespace, stored: Array) -> tuple[Array, Array]:
    """Return the eight scales and the eight minima that twelve bytes of q4_k and q5_k hold.

    The lower six bits of the first eight bytes are four scales and four minima. The others have their lower four bits
    in the last four bytes, scales in the low halves, and their upper two in the upper bits of the first eight.
    """
    low, high = stored[..., :4], stored[..., 4:8]
    last = stored[..., 8:]
    scales = xp.concat((low & 63, (last & 15) | ((low >> 6) << 4)), axis=-1)
    minima = xp.concat((high & 63, (last >> 4) | ((high >> 6) << 4)), axis=-1)
    return scales, minima
