"""What operators are timed with: arguments of everyday sizes.

Cases are small, and made to be difficult; workloads are large, and made to be ordinary.
"""

from __future__ import annotations

from tensorops._messages import nearest
from tensorops.testing.entries import Maker, Workload
from tensorops.testing.tables import WORKLOADS

__all__ = ["WORKLOADS", "Workload", "workload"]


def workload(operator: str, rows: int, features: int, dtype_name: str = "float32") -> Workload:
    """Return arguments of an operator, as NumPy arrays, the same ones every time.

    Parameters
    ----------
    operator : str
        Its name.
    rows, features : int
        The shape of its main input. Attention takes as many queries as rows, and heads of 64 features; the features
        of losses and of sampling are classes.
    dtype_name : str
        The dtype of floating inputs.

    Raises
    ------
    ValueError
        If there is none for the operator, or its shape cannot be had.

    Examples
    --------
    >>> [x.shape for x in workload("linear", 2, 64).args]
    [(2, 64), (64, 64)]
    """
    if operator not in WORKLOADS:
        near = nearest(operator, WORKLOADS)
        raise ValueError(f"no workload for {operator!r}{near}; valid names: {', '.join(WORKLOADS)}")
    return WORKLOADS[operator](Maker(rows, features, dtype_name))
