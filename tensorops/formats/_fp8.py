"""Numbers of 8 bits in floating point, 128 in a block after their scale in float32."""

from __future__ import annotations

from tensorops._dtypes import dtype_name
from tensorops.formats._bits import looked_up, number
from tensorops.formats._format import Format, Groups
from tensorops.formats._packing import divided, is_negative, number_bytes, quotient, rounded_bits
from tensorops.typing import Array, Namespace

ELEMENTS, SCALE_BYTES = 128, 4


def fp8_blocks(xp: Namespace, weight: Array, scales: Array) -> Array:
    """Return blocks of format ``"fp8_e4m3"`` or ``"fp8_e5m2"`` of numbers whose scales are an array of their own.

    Parameters
    ----------
    xp : namespace
        Of the arrays.
    weight : array of uint8, shape (out, in)
        The bits of the numbers; 128 divides `in`.
    scales : array, floating point
        Factors of the numbers: one for all; or one for each row, shape (out,) or (out, 1); or one for each block of
        128 × 128, shape (⌈out / 128⌉, in / 128), as ``weight_scale_inv`` in folders of models.

    Returns
    -------
    array of uint8, shape (out, in / 128 · 132)
        The blocks.

    Raises
    ------
    TypeError
        If `weight` is not uint8.
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> from tensorops import formats
    >>> one = np.full((2, 128), 0x38, dtype=np.uint8)  # 1.0 in E4M3
    >>> blocks = formats.fp8_blocks(np, one, np.asarray([0.5, 2.0]))
    >>> tensorops.quantized_linear(np.ones(128), blocks, format="fp8_e4m3")
    array([ 64., 256.])
    """
    if weight.dtype != xp.uint8:
        raise TypeError(f"fp8_blocks: weight has dtype {dtype_name(weight)}, expected uint8, the bits of the numbers")
    if weight.ndim != 2 or weight.shape[1] % ELEMENTS:
        raise ValueError(f"fp8_blocks: weight has shape {tuple(weight.shape)}, expected (out, in) with 128 dividing in")
    (rows, columns), shape = weight.shape, tuple(scales.shape)
    count = columns // ELEMENTS
    if shape in ((), (1,), (1, 1)):
        scales = xp.reshape(scales, (1, 1))
    elif shape in ((rows,), (rows, 1)):
        scales = xp.reshape(scales, (rows, 1))
    elif shape == (-(-rows // ELEMENTS), count):
        scales = xp.repeat(scales, ELEMENTS, axis=0)[:rows, :]
    else:
        raise ValueError(f"fp8_blocks: scales has shape {shape}, which is not one for all, rows or blocks of 128 × 128")
    each = xp.broadcast_to(xp.astype(scales, xp.float32), (rows, count))
    stored = number_bytes(xp, xp.expand_dims(each, axis=-1), SCALE_BYTES)
    blocks = xp.concat((stored, xp.reshape(weight, (rows, count, ELEMENTS))), axis=-1)
    return xp.reshape(blocks, (rows, count * (ELEMENTS + SCALE_BYTES)))


def fp8_format(
    name: str, mantissa: int, lowest: int, highest: int, largest: float, specials: dict[int, float]
) -> Format:
    """Return the format of one kind of these numbers.

    Parameters
    ----------
    name : str
        Its name.
    mantissa, lowest, highest : int
        As for `rounded_bits`.
    largest : float
        The largest number.
    specials : dict
        The values of bits that follow no rule.
    """

    def value(bits: int) -> float:
        exponent, fraction = bits >> mantissa, bits & ((1 << mantissa) - 1)
        if exponent:
            fraction, exponent = fraction + (1 << mantissa), exponent - 1
        return specials.get(bits, fraction * 2.0 ** (exponent + lowest - mantissa))

    table = [value(bits) for bits in range(128)]
    table += [-each for each in table]

    def unpack(xp: Namespace, blocks: Array) -> Groups:
        codes = looked_up(xp, table, blocks[..., SCALE_BYTES:], xp.float32)
        return Groups(codes, number(xp, blocks[..., :SCALE_BYTES], SCALE_BYTES), None)

    def pack(xp: Namespace, w: Array) -> Array:
        scale = quotient(xp, xp.max(xp.abs(w), axis=-1, keepdims=True), largest)
        scaled = xp.clip(divided(xp, w, scale), -largest, largest)
        bits = rounded_bits(xp, scaled, mantissa, lowest, highest)
        bits = xp.astype(xp.where(is_negative(xp, scaled), bits + 128, bits), xp.uint8)
        return xp.concat((number_bytes(xp, scale, SCALE_BYTES), bits), axis=-1)

    nbytes = ELEMENTS + SCALE_BYTES
    return Format(name, elements=ELEMENTS, nbytes=nbytes, group_size=ELEMENTS, bits=0, unpack=unpack, pack=pack)
