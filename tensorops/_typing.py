"""Names used in the signatures of operators, and their meaning for type checkers.

Operators are typed by these names; everything else, bodies included, computes with `Array`.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any, Protocol, TypeAlias, TypeVar

Array: TypeAlias = Any
"""An array of any supported library, of which a checker knows nothing.

No static type covers the Array API across libraries yet, so annotations use this name for readers; what an
operator accepts is checked, and reported in its own terms, when it is called.
"""

Dtype: TypeAlias = Any
"""A dtype of an array's library. Operators recognize the parameters that take one by this name."""

Namespace: TypeAlias = Any
"""A module that implements the Python Array API standard."""


class ArrayInput(Protocol):
    """What the arrays of all libraries have in common for a checker, and strings, lists and numbers lack."""

    @property
    def shape(self) -> Any: ...

    @property
    def ndim(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, key: Any, /) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=ArrayInput)
"""The type of an array, for results that have its shape as well as its library and dtype."""

KindT = TypeVar("KindT")
KindT_co = TypeVar("KindT_co", covariant=True)


class ArrayOfKind(Protocol[KindT_co]):
    """An array of the library and dtype of `KindT_co`, for results that have these, and a shape of their own.

    `x[...]` is of that type: it has the dtype of `x`, and not the shape, where a library's types tell it, nor the
    subclass: a `torch.nn.Parameter` is of the kind `torch.Tensor`.
    """

    @property
    def shape(self) -> Any: ...

    @property
    def ndim(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, key: EllipsisType, /) -> KindT_co: ...
