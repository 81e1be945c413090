"""The standard's constants."""

from __future__ import annotations

import math

e = math.e
inf = math.inf
nan = math.nan
newaxis = None
pi = math.pi
