"""Types of arrays, for the annotations of functions and operators that take arrays of any library.

A function is annotated by `ArrayT`::

    def block(x: ArrayT, weight: ArrayT) -> ArrayT:
        xp = tensorops.get_namespace(x)
        return x + tensorops.silu(tensorops.rms_norm(x, weight)) * xp.sqrt(xp.abs(x))

The signatures of operators have the wider `ArrayInputT`, `ArrayInput` and `ArrayOfKind`, and their bodies compute with
`Array`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar, overload

__all__ = [
    "Array",
    "ArrayInput",
    "ArrayInputT",
    "ArrayNamespace",
    "ArrayObject",
    "ArrayOfKind",
    "ArrayT",
    "Dtype",
    "KindT",
    "Namespace",
]

Array: TypeAlias = Any
"""An array of any supported library, of which a checker knows nothing.

No static type covers the Array API across libraries yet, so annotations use this name for readers; what an
operator accepts is checked, and reported in its own terms, when it is called.
"""

Dtype: TypeAlias = Any
"""A dtype of an array's library. Operators recognize the parameters that take one by this name."""

Namespace: TypeAlias = Any
"""A module that implements the Python Array API standard."""


class _Metadata(Protocol):
    @property
    def shape(self) -> Any:
        """Number of elements along each axis."""

    @property
    def ndim(self) -> Any:
        """Number of axes."""

    @property
    def dtype(self) -> Any:
        """Data type of the elements."""


class ArrayInput(_Metadata, Protocol):
    """What the arrays of all libraries have in common for a checker, and strings, lists and numbers lack."""

    def __getitem__(self, key: Any, /) -> Any: ...


ArrayInputT = TypeVar("ArrayInputT", bound=ArrayInput)
"""The type of an array that an operator takes, for results that have its shape as well as its library and dtype."""

KindT = TypeVar("KindT")
KindT_co = TypeVar("KindT_co", covariant=True)


class ArrayOfKind(_Metadata, Protocol[KindT_co]):
    """An array of the library and dtype of `KindT_co`, for results that have these, and a shape of their own.

    `x[...]` is of that type: it has the dtype of `x`, and not the shape, where a library's types tell it, nor the
    subclass: a `torch.nn.Parameter` is of the kind `torch.Tensor`.
    """

    def __getitem__(self, key: EllipsisType, /) -> KindT_co: ...


class ArrayObject(ArrayInput, Protocol):
    """An array of real numbers with the standard's arithmetic: the bound of `ArrayT`, and of your own type variables.

    Arrays of complex numbers and truth values have less, as do PyOpenCL's own; `ArrayInput` takes all arrays.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each axis."""

    @property
    def ndim(self) -> int:
        """Number of axes."""

    @overload
    def __getitem__(self, key: int | slice | tuple[Any, ...] | None, /) -> Self: ...
    @overload
    def __getitem__(self, key: EllipsisType, /) -> Any: ...  # mypy would take a kind for `ArrayObject` itself

    def __lt__(self, other: Any, /) -> Any: ...
    def __le__(self, other: Any, /) -> Any: ...
    def __gt__(self, other: Any, /) -> Any: ...
    def __ge__(self, other: Any, /) -> Any: ...

    def __float__(self) -> float: ...
    def __int__(self) -> int: ...

    def __abs__(self) -> Self: ...
    def __neg__(self) -> Self: ...
    def __pos__(self) -> Self: ...

    def __add__(self, other: Any, /) -> Self: ...
    def __sub__(self, other: Any, /) -> Self: ...
    def __mul__(self, other: Any, /) -> Self: ...
    def __truediv__(self, other: Any, /) -> Self: ...
    def __floordiv__(self, other: Any, /) -> Self: ...
    def __mod__(self, other: Any, /) -> Self: ...
    def __pow__(self, other: Any, /) -> Self: ...
    def __matmul__(self, other: Any, /) -> Self: ...

    def __radd__(self, other: Any, /) -> Self: ...
    def __rsub__(self, other: Any, /) -> Self: ...
    def __rmul__(self, other: Any, /) -> Self: ...
    def __rtruediv__(self, other: Any, /) -> Self: ...
    def __rfloordiv__(self, other: Any, /) -> Self: ...
    def __rmod__(self, other: Any, /) -> Self: ...
    def __rpow__(self, other: Any, /) -> Self: ...


ArrayT = TypeVar("ArrayT", bound=ArrayObject)
"""The type of an array in a function for every library, and of results of the same library and dtype."""


class ArrayNamespace(Generic[ArrayT]):
    """The namespace of a floating-point array, for checkers: functions whose results have the array's dtype.

    Everything else, such as ``astype`` and ``argmax``, is `Any`.
    """

    def __getattr__(self, name: str, /) -> Any: ...

    e: float
    inf: float
    nan: float
    pi: float

    abs: Callable[..., ArrayT]
    acos: Callable[..., ArrayT]
    acosh: Callable[..., ArrayT]
    add: Callable[..., ArrayT]
    asin: Callable[..., ArrayT]
    asinh: Callable[..., ArrayT]
    atan: Callable[..., ArrayT]
    atan2: Callable[..., ArrayT]
    atanh: Callable[..., ArrayT]
    broadcast_to: Callable[..., ArrayT]
    ceil: Callable[..., ArrayT]
    clip: Callable[..., ArrayT]
    concat: Callable[..., ArrayT]
    copysign: Callable[..., ArrayT]
    cos: Callable[..., ArrayT]
    cosh: Callable[..., ArrayT]
    cumulative_prod: Callable[..., ArrayT]
    cumulative_sum: Callable[..., ArrayT]
    diff: Callable[..., ArrayT]
    divide: Callable[..., ArrayT]
    empty_like: Callable[..., ArrayT]
    exp: Callable[..., ArrayT]
    expand_dims: Callable[..., ArrayT]
    expm1: Callable[..., ArrayT]
    flip: Callable[..., ArrayT]
    floor: Callable[..., ArrayT]
    floor_divide: Callable[..., ArrayT]
    full_like: Callable[..., ArrayT]
    hypot: Callable[..., ArrayT]
    log: Callable[..., ArrayT]
    log10: Callable[..., ArrayT]
    log1p: Callable[..., ArrayT]
    log2: Callable[..., ArrayT]
    logaddexp: Callable[..., ArrayT]
    matmul: Callable[..., ArrayT]
    matrix_transpose: Callable[..., ArrayT]
    max: Callable[..., ArrayT]
    maximum: Callable[..., ArrayT]
    mean: Callable[..., ArrayT]
    min: Callable[..., ArrayT]
    minimum: Callable[..., ArrayT]
    moveaxis: Callable[..., ArrayT]
    multiply: Callable[..., ArrayT]
    negative: Callable[..., ArrayT]
    nextafter: Callable[..., ArrayT]
    ones_like: Callable[..., ArrayT]
    permute_dims: Callable[..., ArrayT]
    positive: Callable[..., ArrayT]
    pow: Callable[..., ArrayT]
    prod: Callable[..., ArrayT]
    reciprocal: Callable[..., ArrayT]
    remainder: Callable[..., ArrayT]
    repeat: Callable[..., ArrayT]
    reshape: Callable[..., ArrayT]
    roll: Callable[..., ArrayT]
    round: Callable[..., ArrayT]
    sign: Callable[..., ArrayT]
    sin: Callable[..., ArrayT]
    sinh: Callable[..., ArrayT]
    sort: Callable[..., ArrayT]
    sqrt: Callable[..., ArrayT]
    square: Callable[..., ArrayT]
    squeeze: Callable[..., ArrayT]
    stack: Callable[..., ArrayT]
    std: Callable[..., ArrayT]
    subtract: Callable[..., ArrayT]
    sum: Callable[..., ArrayT]
    take: Callable[..., ArrayT]
    take_along_axis: Callable[..., ArrayT]
    tan: Callable[..., ArrayT]
    tanh: Callable[..., ArrayT]
    tensordot: Callable[..., ArrayT]
    tile: Callable[..., ArrayT]
    tril: Callable[..., ArrayT]
    triu: Callable[..., ArrayT]
    trunc: Callable[..., ArrayT]
    var: Callable[..., ArrayT]
    vecdot: Callable[..., ArrayT]
    where: Callable[..., ArrayT]
    zeros_like: Callable[..., ArrayT]
