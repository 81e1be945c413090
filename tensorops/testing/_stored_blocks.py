"""Blocks of quantized numbers in float64, from the formats' definitions.

Each number is found by its index, independently of `tensorops.formats`. Sources: ``ggml-common.h`` and
``ggml-quants.c`` of llama.cpp, the OCP Microscaling Formats (MX) Specification 1.0, and the OCP 8-bit Floating Point
Specification 1.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorops.testing.values import Float64, float64

__all__ = ["FORMATS", "decode", "random_blocks"]

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]

_IQ4 = np.asarray([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
_E2M1 = np.asarray([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])


def _half(b: Integers, at: int) -> Float64:
    return (b[:, at : at + 2].astype(np.uint8).copy().view("<f2")).astype(np.float64)


def _nibble(b: Integers, at: Integers, upper: Integers) -> Integers:
    return b[:, at] >> 4 * upper & 15


def _of_32(b: Integers, start: int, i: Integers) -> Integers:
    return _nibble(b, start + i % 16, i // 16)


def _fifth(b: Integers, start: int, i: Integers) -> Integers:
    return (b[:, start + i // 8] >> i % 8 & 1) << 4


def _k_scales(b: Integers, g: Integers) -> tuple[Integers, Integers]:
    s = b[:, 4:16]
    low, high = s[:, g % 4], s[:, 4 + g % 4]
    last = s[:, 8 + g % 4]
    is_first = g < 4
    scale = np.where(is_first, low & 63, (last & 15) | (low >> 6) << 4)
    minimum = np.where(is_first, high & 63, (last >> 4) | (high >> 6) << 4)
    return scale, minimum


def _k4(b: Integers, i: Integers, start: int, fifth: bool) -> NDArray[Any]:
    g = i // 32
    q = _nibble(b, start + 32 * (g // 2) + i % 32, g % 2)
    if fifth:
        q = q | (b[:, 16 + i % 32] >> g & 1) << 4
    scale, minimum = _k_scales(b, g)
    return _half(b, 0) * scale * q - _half(b, 2) * minimum


def _two_bits(b: Integers, start: int, i: Integers) -> Integers:
    return b[:, start + 32 * (i // 128) + i % 32] >> 2 * (i % 128 // 32) & 3


def _q3_k(b: Integers, i: Integers) -> Any:
    q = _two_bits(b, 32, i) + 4 * (b[:, i % 32] >> i // 32 & 1) - 4
    g = i // 16
    scale = (b[:, 96 + g % 8] >> 4 * (g // 8) & 15) | (b[:, 104 + g % 4] >> 2 * (g // 4) & 3) << 4
    return _half(b, 108) * (scale - 32) * q


def _q6_k(b: Integers, i: Integers) -> Any:
    half, r = i // 128, i % 128
    q = _nibble(b, 64 * half + r % 64, r // 64) | (b[:, 128 + 32 * half + r % 32] >> 2 * (r // 32) & 3) << 4
    scale = b[:, 192 + i // 16].astype(np.uint8).view(np.int8)
    return _half(b, 208) * scale * (q - 32)


def _iq4_xs(b: Integers, i: Integers) -> Any:
    g = i // 32
    scale = (b[:, 4 + g // 2] >> 4 * (g % 2) & 15) | (b[:, 2 + g // 4] >> 2 * (g % 4) & 3) << 4
    return _half(b, 0) * (scale - 32) * _IQ4[_nibble(b, 8 + 16 * g + i % 16, i % 32 // 16)]


def _nvfp4(b: Integers, i: Integers) -> Any:
    e4m3 = b[:, i // 16]
    exponent, mantissa = e4m3 >> 3 & 15, e4m3 & 7
    scale = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    scale = np.where(e4m3 == 0x7F, 0.0, 0.5 * scale)
    return float64(scale) * _E2M1[_nibble(b, 4 + 8 * (i // 16) + i % 8, i % 16 // 8)]


def _fp8(b: Integers, i: Integers, mantissa: int, bias: int) -> Any:
    bits = b[:, 4 + i]
    exponent, fraction = (bits & 127) >> mantissa, bits & 2**mantissa - 1
    small = fraction * 2.0 ** (1 - bias - mantissa)
    value = np.where(exponent == 0, small, (2**mantissa + fraction) * 2.0 ** (exponent - bias - mantissa))
    if mantissa == 3:
        value = np.where((bits & 127) == 127, np.nan, value)
    else:
        value = np.where(exponent == 31, np.where(fraction == 0, np.inf, np.nan), value)
    scale = b[:, :4].astype(np.uint8).copy().view("<f4").astype(np.float64)
    exact = scale * np.where(bits > 127, -value, value)
    return exact.astype(np.float32)  # what the numbers are, as their products with scales need more than 24 bits


def _sparse(b: Integers, i: Integers) -> Any:
    four = i // 4
    places = b[:, four // 2] >> 4 * (four % 2)
    first, second = (_halves(b, 4 + 4 * four + 2 * k) for k in (0, 1))
    return np.where((places >> 2 & 3) == i % 4, second, np.where((places & 3) == i % 4, first, 0.0))


def _halves(b: Integers, at: Integers) -> Float64:
    return np.stack([b[:, at], b[:, at + 1]], axis=-1).astype(np.uint8).view("<f2")[..., 0].astype(np.float64)


_VALUES: dict[str, Callable[[Integers, Integers], Any]] = {
    "fp8_e4m3": lambda b, i: _fp8(b, i, 3, 7),
    "fp8_e5m2": lambda b, i: _fp8(b, i, 2, 15),
    "iq4_nl": lambda b, i: _half(b, 0) * _IQ4[_of_32(b, 2, i)],
    "iq4_xs": _iq4_xs,
    "mxfp4": lambda b, i: 2.0 ** (b[:, :1] - 128.0) * _E2M1[_of_32(b, 1, i)],
    "nvfp4": _nvfp4,
    "q2_k": lambda b, i: (
        _half(b, 80) * (b[:, i // 16] & 15) * _two_bits(b, 16, i) - _half(b, 82) * (b[:, i // 16] >> 4)
    ),
    "q3_k": _q3_k,
    "q4_0": lambda b, i: _half(b, 0) * (_of_32(b, 2, i) - 8),
    "q4_1": lambda b, i: _half(b, 0) * _of_32(b, 4, i) + _half(b, 2),
    "q4_k": lambda b, i: _k4(b, i, 16, fifth=False),
    "q5_0": lambda b, i: _half(b, 0) * ((_of_32(b, 6, i) | _fifth(b, 2, i)) - 16),
    "q5_1": lambda b, i: _half(b, 0) * (_of_32(b, 8, i) | _fifth(b, 4, i)) + _half(b, 2),
    "q5_k": lambda b, i: _k4(b, i, 48, fifth=True),
    "q6_k": _q6_k,
    "q8_0": lambda b, i: _half(b, 0) * b[:, 2 + i].astype(np.uint8).view(np.int8),
    "sparse_2_4": _sparse,
}

FORMATS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "fp8_e4m3": (128, 132, ()), "fp8_e5m2": (128, 132, ()), "sparse_2_4": (32, 36, tuple(range(4, 36, 2))),
    "iq4_nl": (32, 18, (0,)), "iq4_xs": (256, 136, (0,)), "mxfp4": (32, 17, ()), "nvfp4": (64, 36, ()),
    "q2_k": (256, 84, (80, 82)), "q3_k": (256, 110, (108,)), "q4_0": (32, 18, (0,)), "q4_1": (32, 20, (0, 2)),
    "q4_k": (256, 144, (0, 2)), "q5_0": (32, 22, (0,)), "q5_1": (32, 24, (0, 2)), "q5_k": (256, 176, (0, 2)),
    "q6_k": (256, 210, (208,)), "q8_0": (32, 34, (0,)),
}  # fmt: skip
"""Of each format, the numbers and the bytes of a block, and where it has numbers in float16."""


def decode(name: str, stored: Bytes) -> Float64:
    """Return the numbers that rows of blocks hold; shape (..., bytes) becomes (..., numbers)."""
    elements, nbytes, _ = FORMATS[name]
    blocks = np.asarray(stored).reshape(-1, nbytes).astype(np.int64)
    values = float64(_VALUES[name](blocks, np.arange(elements)))
    return values.reshape(*stored.shape[:-1], stored.shape[-1] // nbytes * elements)


def random_blocks(r: np.random.Generator, name: str, *shape: int) -> Bytes:
    """Return rows of random blocks, whose numbers are of the order of 1; `shape` ends with that of numbers."""
    elements, nbytes, halves = FORMATS[name]
    *rows, columns = shape
    stored = r.integers(0, 256, (*rows, columns // elements, nbytes), dtype=np.uint8)
    largest = {"q8_0": 128, "iq4_nl": 128, "q5_0": 16, "q5_1": 16, "q4_0": 8, "q4_1": 8, "q2_k": 45, "q3_k": 128,
               "q4_k": 945, "q5_k": 1953, "q6_k": 4096, "iq4_xs": 4096}.get(name, 1)  # fmt: skip
    for start in halves:
        factors = (r.uniform(0.5, 1.0, stored.shape[:-1]) / largest).astype("<f2")
        stored[..., start : start + 2] = factors[..., None].view(np.uint8)
    if name == "mxfp4":
        stored[..., 0] = r.integers(122, 127, stored.shape[:-1])
    elif name == "nvfp4":
        stored[..., :4] = r.integers(40, 60, (*stored.shape[:-1], 4))
    elif name == "sparse_2_4":
        stored[..., 5::2] |= r.integers(0, 2, (*stored.shape[:-1], 16), dtype=np.uint8) << 7
    elif name in ("fp8_e4m3", "fp8_e5m2"):
        is_special = stored & 0x7C == 0x7C if name == "fp8_e5m2" else stored & 0x7F == 0x7F
        stored ^= np.where(is_special, np.uint8(0x40), np.uint8(0))
        factors = r.uniform(0.5, 1.0, stored.shape[:-1]) / (448 if name == "fp8_e4m3" else 57344)
        stored[..., :4] = factors.astype("<f4")[..., None].view(np.uint8)
    return stored.reshape(*rows, columns // elements * nbytes)
