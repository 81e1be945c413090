"""Benchmark arguments of everyday sizes for the operators.

Cases are small and difficult; workloads are large and ordinary.
"""

from __future__ import annotations

from tensorops._messages import nearest
from tensorops.testing.entries import Maker, Workload
from tensorops.testing.tables import WORKLOADS

__all__ = ["WORKLOADS", "Workload", "workload"]


def workload(operator: str, rows: int, features: int, dtype_name: str = "float32") -> Workload:
    """Return arguments of an operator as NumPy arrays, identical every time.

    Parameters
    ----------
    operator : str
        Its name.
    rows, features : int
        The shape of its main input. Attention has as many queries as rows, and heads of 64 features; the features of
        losses and sampling are classes.
    dtype_name : str
        The dtype of floating inputs.

    Raises
    ------
    ValueError
        If the operator has no workload, or none of this shape.

    Examples
    --------
    >>> [x.shape for x in workload("linear", 2, 64).args]
    [(2, 64), (64, 64)]
    """
    if operator not in WORKLOADS:
        near = nearest(operator, WORKLOADS)
        raise ValueError(f"no workload for {operator!r}{near}; valid names: {', '.join(WORKLOADS)}")
    return WORKLOADS[operator](Maker(rows, features, dtype_name))
