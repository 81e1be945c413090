"""The constants of the standard."""

from __future__ import annotations

import math

e = math.e
pi = math.pi
inf = math.inf
nan = math.nan
newaxis = None
