"""An operator for the arrays of every library. It needs no backend, and only public modules of tensorops."""

from __future__ import annotations

import tensorops
from tensorops.extending import elementwise, narrow, operator, require_floating, widen
from tensorops.typing import Array, ArrayInputT


def _check(name: str, x: Array) -> None:
    require_floating(name, x=x)


@operator(check=_check, rows=elementwise("x"))
def softsign(x: ArrayInputT) -> ArrayInputT:
    """Softsign, a sigmoid with slow tails: x / (1 + |x|)."""
    xp = tensorops.get_namespace(x)
    (wide,) = widen(xp, x)  # half types compute in float32
    y = wide / (1.0 + xp.abs(wide))
    result: ArrayInputT = narrow(xp, xp.where(xp.isinf(wide), xp.sign(wide), y), x)  # inf / inf is NaN
    return result
