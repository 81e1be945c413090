"""An array of the standard, and no more: it wraps a NumPy array and never meets one in arithmetic."""

from __future__ import annotations

import operator

import numpy as np


class Array:
    """An array on the only device there is."""

    __slots__ = ("_values",)
    __array_ufunc__ = None  # NumPy leaves `numpy_array * tiny_array` to this class, which refuses it

    def __init__(self, values):
        self._values = np.asarray(values)

    def to_numpy(self):
        """Return the values; memory is shared."""
        return self._values

    @property
    def dtype(self):
        """Data type of the elements."""
        return self._values.dtype

    @property
    def shape(self):
        """Number of elements along each axis."""
        return self._values.shape

    @property
    def ndim(self):
        """Number of axes."""
        return self._values.ndim

    size = property(lambda self: self._values.size)
    device = property(lambda self: "cpu")
    T = property(lambda self: Array(self._values.T))
    mT = property(lambda self: Array(self._values.mT))

    def to_device(self, device, /, *, stream=None):
        """Return the array itself: it is already there."""
        if device != "cpu":
            raise ValueError(f"device is {device!r}, expected 'cpu'")
        return self

    def __array_namespace__(self, /, *, api_version=None):
        from tensorops_tiny import xp

        return xp

    def __repr__(self):
        return f"tiny.{self._values!r}"

    def __bool__(self):
        return bool(self._values)

    def __int__(self):
        return int(self._values)

    def __float__(self):
        return float(self._values)

    def __complex__(self):
        return complex(self._values)

    def __index__(self):
        return operator.index(self._values)

    def __getitem__(self, key, /):
        return Array(self._values[unwrap(key)])

    def __setitem__(self, key, value, /):
        self._values[unwrap(key)] = unwrap(value)


def unwrap(tree):
    """Return NumPy's arrays for ours, in nested tuples and lists, too."""
    if isinstance(tree, Array):
        return tree.to_numpy()
    if isinstance(tree, tuple | list):
        return type(tree)(map(unwrap, tree))
    return tree


def wrap(tree):
    """Return our arrays for NumPy's."""
    if isinstance(tree, np.ndarray | np.generic):
        return Array(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(wrap, tree))
    if isinstance(tree, tuple | list):
        return type(tree)(map(wrap, tree))
    return tree


def _unary(name):
    function = getattr(operator, name)
    return lambda self: Array(function(self._values))


def _binary(name, *, swapped=False):
    function = getattr(operator, name)

    def method(self, other, /):
        if not isinstance(other, Array | bool | int | float | complex):
            return NotImplemented
        left, right = (unwrap(other), self._values) if swapped else (self._values, unwrap(other))
        return Array(function(left, right))

    return method


for _name in ("neg", "pos", "abs", "invert"):
    setattr(Array, f"__{_name}__", _unary(f"__{_name}__"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Array, f"__{_name}__", _binary(f"__{_name}__"))
for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
):
    setattr(Array, f"__{_name}__", _binary(f"__{_name}__"))
    setattr(Array, f"__r{_name}__", _binary(f"__{_name}__", swapped=True))
Array.__hash__ = None  # as it can be written to
