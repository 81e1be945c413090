"""Everything that the author of an operator needs besides `tensorops`, in this or another distribution.

Names for backends and array libraries are in `tensorops.backends`, for kernels in `tensorops.kernels`, for annotations
in `tensorops.typing`, and for tests in `tensorops.testing`.
"""

from tensorops._dtypes import dtype_name, narrow, widen
from tensorops._operator import Operator, operator
from tensorops._row_axes import RowAxes, elementwise, every_axis, last_axes
from tensorops._validation import (
    as_bool,
    as_choice,
    as_floating_dtype,
    as_integer,
    as_number,
    normalize_axes,
    normalize_axis,
    require_broadcastable,
    require_floating,
    require_integer,
    require_ndim,
    require_same_dtype,
    require_same_shape,
)

__all__ = [
    "Operator",
    "RowAxes",
    "as_bool",
    "as_choice",
    "as_floating_dtype",
    "as_integer",
    "as_number",
    "dtype_name",
    "elementwise",
    "every_axis",
    "last_axes",
    "narrow",
    "normalize_axes",
    "normalize_axis",
    "operator",
    "require_broadcastable",
    "require_floating",
    "require_integer",
    "require_ndim",
    "require_same_dtype",
    "require_same_shape",
    "widen",
]
