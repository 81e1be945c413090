"""An operator of another distribution: typed by `ArrayT`, or left open by `Array`."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import tensorops as tp
from tensorops.extending import Operator, operator
from tensorops.typing import Array, ArrayInput, ArrayT


@operator
def typed(x: ArrayT, weight: ArrayInput | None = None, *, power: int = 2) -> ArrayT:
    """Keep the type of an array."""
    xp = tp.get_namespace(x, weight)
    y: ArrayT = xp.pow(x, power)
    return y


@operator
def left_open(x: Array, *, power: int = 2) -> Array:
    """Say nothing of types."""
    return x**power


def _supports(x: Any, weight: Any = None, *, power: int = 2) -> str | None:
    return None


@typed.kernel("cpu", supports=_supports)
def typed_on_cpu(x: npt.NDArray[np.float32], weight: Any = None, *, power: int = 2) -> npt.NDArray[np.float32]:
    return x


def name_of(op: Operator[..., Any]) -> str:
    return op.__name__


def calls(x: npt.NDArray[np.float32]) -> None:
    assert_type(typed(x, power=3), npt.NDArray[np.float32])
    assert_type(typed.explain(x), tp.Explanation)
    assert_type(left_open(x, power=3), Any)
    assert_type(left_open.generic(x), Any)
    assert_type(left_open.explain(x), tp.Explanation)
    assert_type(name_of(typed) + name_of(left_open) + name_of(tp.silu), str)
    typed("x")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    left_open(x, powre=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    left_open.explain(x, powre=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
