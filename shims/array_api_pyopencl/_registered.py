"""The class of arrays, for the modules that implement its methods: `_array_object` registers it here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array_api_pyopencl._array_object import Array

__all__ = ["Array"]
