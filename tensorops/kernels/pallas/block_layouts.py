"""Where blocks of formats have codes and scales, for kernels: `tensorops.formats` as places of bytes.

Formulas are elementwise: what the compiler for TPUs cannot do is to divide the lanes of a register into blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tensorops import formats
from tensorops.formats.iq4_nl import TABLE
from tensorops.formats.mxfp4 import E2M1
from tensorops.kernels.pallas.blocks import LANES

Bytes = dict[str, jax.Array]
Places = np.ndarray[Any, np.dtype[np.int64]]


class Upper(NamedTuple):
    """Upper bits of codes, which are in other bytes than the lower ones.

    Parameters
    ----------
    byte, shift
        Functions of the numbers of codes in a block: the byte that has their upper bits, and by how many bits these are
        shifted there.
    bits
        How many there are.
    """

    byte: Callable[[Places], Places]
    shift: Callable[[Places], Places]
    bits: int


@dataclass(frozen=True)
class Layout:
    """A format, as a kernel reads it.

    Parameters
    ----------
    name
        The format.
    start
        The first byte of codes, or of their lower bits.
    bits
        Of these, how many a code has: a byte has ``8 / bits`` codes.
    run
        How many neighbouring bytes have neighbouring codes in their lowest bits; the next codes are in the next bits of
        the same bytes.
    scales
        Takes bytes by name, as int32, and numbers of groups in their blocks; returns scales, and minima or ``None``.
    places
        The bytes in a block by name, for each group of a block.
    offset
        What is subtracted from codes.
    upper
        The upper bits of codes.
    table
        What codes stand for.
    """

    name: str
    start: int
    bits: int
    run: int
    scales: Callable[[Bytes, jax.Array], tuple[jax.Array, jax.Array | None]]
    places: Callable[[Places], dict[str, Places]]
    offset: int = 0
    upper: Upper | None = None
    table: tuple[int, ...] = ()

    def columns(self, field: int) -> Places:
        """Return for each byte of a block the number of the code that it has in a field, or -1."""
        of, count = formats.get(self.name), 8 // self.bits
        byte = np.arange(of.elements // count)
        found = np.full(of.nbytes, -1)
        found[self.start + byte] = byte // self.run * self.run * count + field * self.run + byte % self.run
        return found

    def numbers(self, stored: jax.Array, field: int, upper: jax.Array | None) -> jax.Array:
        """Return what the codes in a field of bytes stand for, in float32; `upper` bits are shifted already."""
        if self.bits == 8:
            return ((stored ^ 128) - 128).astype(jnp.float32)
        codes = (stored >> field * self.bits) & ((1 << self.bits) - 1)
        if self.upper is not None and upper is not None:
            codes |= (upper & ((1 << self.upper.bits) - 1)) << self.bits
        if not self.table:
            return (codes - self.offset).astype(jnp.float32)
        lanes = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
        table = jnp.zeros((1, LANES), jnp.float32)
        for i, value in enumerate(self.table):
            table = jnp.where(lanes == i, float(value), table)
        table = jnp.broadcast_to(table, (codes.shape[0], LANES))
        parts = [codes[:, i : i + LANES] for i in range(0, codes.shape[1], LANES)]
        return jnp.concatenate([jnp.take_along_axis(table, part, axis=1) for part in parts], axis=1)


def _half(b: Bytes, name: str) -> jax.Array:
    return float16(b[name + "0"] | b[name + "1"] << 8)


def float16(bits: jax.Array) -> jax.Array:
    """Return float16 in float32, from their bits in int32, of which only the lower 16 count."""
    magnitude, exponent = bits & 0x7FFF, bits & 0x7C00
    # The exponent is 112 more in float32, and all ones again for infinity and NaN.
    more = jnp.where(exponent == 0x7C00, 2 * 112 << 23, 112 << 23)
    normal = jax.lax.bitcast_convert_type((magnitude << 13) + more, jnp.float32)
    found = jnp.where(exponent == 0, magnitude.astype(jnp.float32) * 2.0**-24, normal)
    return jnp.where((bits & 0x8000) != 0, -found, found)


def _scale(b: Bytes, j: jax.Array) -> tuple[jax.Array, None]:
    return _half(b, "d"), None


def _scale_and_minimum(b: Bytes, j: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _half(b, "d"), _half(b, "m")


def _six_bits(b: Bytes, j: jax.Array) -> tuple[jax.Array, jax.Array]:
    low, high, last = b["low"], b["high"], b["last"]
    scale = jnp.where(j < 4, low & 63, (last & 15) | (low >> 6) << 4)
    minimum = jnp.where(j < 4, high & 63, (last >> 4) | (high >> 6) << 4)
    return _half(b, "d") * scale.astype(jnp.float32), -(_half(b, "m") * minimum.astype(jnp.float32))


def _q2_k(b: Bytes, j: jax.Array) -> tuple[jax.Array, jax.Array]:
    scale, minimum = (part.astype(jnp.float32) for part in (b["own"] & 15, b["own"] >> 4))
    return _half(b, "d") * scale, -(_half(b, "m") * minimum)


def _q3_k(b: Bytes, j: jax.Array) -> tuple[jax.Array, None]:
    scale = (b["lower"] >> 4 * (j >> 3) & 15) | (b["upper"] >> 2 * (j >> 2) & 3) << 4
    return _half(b, "d") * (scale - 32).astype(jnp.float32), None


def _q6_k(b: Bytes, j: jax.Array) -> tuple[jax.Array, None]:
    return _half(b, "d") * ((b["own"] ^ 128) - 128).astype(jnp.float32), None


def _iq4_xs(b: Bytes, j: jax.Array) -> tuple[jax.Array, None]:
    scale = (b["lower"] >> 4 * (j & 1) & 15) | (b["upper"] >> 2 * (j & 3) & 3) << 4
    return _half(b, "d") * (scale - 32).astype(jnp.float32), None


def _e8m0(b: Bytes, j: jax.Array) -> tuple[jax.Array, None]:  # codes are twice the numbers
    exponent = b["own"]
    bits = jnp.where(exponent < 2, 0x200000 << (exponent & 1), (exponent - 1) << 23)
    return jax.lax.bitcast_convert_type(bits, jnp.float32), None


def _e4m3(b: Bytes, j: jax.Array) -> tuple[jax.Array, None]:
    exponent, mantissa = b["own"] >> 3 & 15, b["own"] & 7
    normal = jax.lax.bitcast_convert_type((exponent + 119) << 23 | mantissa << 20, jnp.float32)
    found = jnp.where(exponent == 0, mantissa.astype(jnp.float32) * 2.0**-10, normal)
    return jnp.where(b["own"] == 0x7F, 0.0, found), None


def _halves(**starts: int) -> Callable[[Places], dict[str, Places]]:
    return lambda j: {f"{name}{i}": 0 * j + start + i for name, start in starts.items() for i in (0, 1)}


def _with_own(first: int, **starts: int) -> Callable[[Places], dict[str, Places]]:
    return lambda j: {**_halves(**starts)(j), "own": first + j}


def _with_six_bits(j: Places) -> dict[str, Places]:
    return {**_halves(d=0, m=2)(j), "low": 4 + j % 4, "high": 8 + j % 4, "last": 12 + j % 4}


def _with_two(lower: Callable[[Places], Places], upper: Callable[[Places], Places], d: int) -> Any:
    return lambda j: {**_halves(d=d)(j), "lower": lower(j), "upper": upper(j)}


def _fifth(start: int) -> Upper:
    return Upper(lambda i: start + i // 8, lambda i: i % 8, 1)


def _by_run(start: int) -> Upper:
    return Upper(lambda i: start + i % 32, lambda i: i // 32, 1)


_UPPER_OF_Q6_K = Upper(lambda i: 128 + i // 128 * 32 + i % 32, lambda i: i % 128 // 32 * 2, 2)

LAYOUTS = {
    each.name: each
    for each in (
        Layout("iq4_nl", 2, 4, 16, _scale, _halves(d=0), table=TABLE),
        Layout("iq4_xs", 8, 4, 16, _iq4_xs, _with_two(lambda j: 4 + j // 2, lambda j: 2 + j // 4, 0), table=TABLE),
        Layout("mxfp4", 1, 4, 16, _e8m0, _with_own(0), table=E2M1),
        Layout("nvfp4", 4, 4, 8, _e4m3, _with_own(0), table=E2M1),
        Layout("q2_k", 16, 2, 32, _q2_k, _with_own(0, d=80, m=82)),
        Layout("q3_k", 32, 2, 32, _q3_k, _with_two(lambda j: 96 + j % 8, lambda j: 104 + j % 4, 108), 4, _by_run(0)),
        Layout("q4_0", 2, 4, 16, _scale, _halves(d=0), 8),
        Layout("q4_1", 4, 4, 16, _scale_and_minimum, _halves(d=0, m=2)),
        Layout("q4_k", 16, 4, 32, _six_bits, _with_six_bits),
        Layout("q5_0", 6, 4, 16, _scale, _halves(d=0), 16, _fifth(2)),
        Layout("q5_1", 8, 4, 16, _scale_and_minimum, _halves(d=0, m=2), 0, _fifth(4)),
        Layout("q5_k", 48, 4, 32, _six_bits, _with_six_bits, 0, _by_run(16)),
        Layout("q6_k", 0, 4, 64, _q6_k, _with_own(192, d=208), 32, _UPPER_OF_Q6_K),
        Layout("q8_0", 2, 8, 32, _scale, _halves(d=0)),
    )
}
"""The layouts of formats by name."""
