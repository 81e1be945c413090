"""fp8_e5m2: 128 numbers of 8 bits with 5 of exponent and 2 of mantissa, after their scale in float32.

They are the upper bytes of float16.

Source: OCP 8-bit Floating Point Specification (OFP8) 1.0, 2023.
"""

from __future__ import annotations

from math import inf, nan

from tensorops.formats._fp8 import fp8_format

FORMAT = fp8_format("fp8_e5m2", 2, -14, 15, 57344.0, {0x7C: inf, 0x7D: nan, 0x7E: nan, 0x7F: nan})
