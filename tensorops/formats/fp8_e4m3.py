"""fp8_e4m3: 128 numbers of 8 bits with 4 of exponent and 3 of mantissa, after their scale in float32.

There are no infinities, and the largest number of each sign is NaN: what libraries call ``float8_e4m3fn``.

Source: OCP 8-bit Floating Point Specification (OFP8) 1.0, 2023.
"""

from __future__ import annotations

from math import nan

from tensorops.formats._fp8 import fp8_format

FORMAT = fp8_format("fp8_e4m3", 3, -6, 8, 448.0, {0x7F: nan})
