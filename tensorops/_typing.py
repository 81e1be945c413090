"""Names used in the signatures of operators."""

from __future__ import annotations

from typing import Any, TypeAlias

Array: TypeAlias = Any
"""An array of any supported library.

No static type covers the Array API across libraries yet, so annotations use this name for readers; what an
operator accepts is checked, and reported in its own terms, when it is called.
"""

Namespace: TypeAlias = Any
"""A module that implements the Python Array API standard."""
