"""Calls: plans that are computed once for the layouts of a call's arguments, and launches.

A *plan* holds a kernel whose lengths, strides and offsets are set, and the layout of the result. It is found by the
operation and the layouts. A call with a plan only allocates, sets the buffers, and enqueues.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from array_api_pyopencl import _codegen, _layout
from array_api_pyopencl._codegen import CONTIGUOUS, INDIRECT, SINGLE, STRIDED, VALUE, Operand, Spec
from array_api_pyopencl._devices import Device
from array_api_pyopencl._dtypes import DType
from array_api_pyopencl._layout import Layout

MAX_PLANS = 4096  # for one device; beyond it all are dropped
_INT32 = 2**31 - 1


class Value:
    """A Python scalar among the operands: the type that an array of it would have."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype


class Launch:
    """A kernel whose lengths, strides and offsets are set, and the size of its launch."""

    __slots__ = ("buffers", "global_size", "kernel", "local_size", "set_buffers", "set_values", "values")

    def __init__(self, kernel: Any, global_size: tuple[int, ...] | None, local_size: tuple[int, ...] | None) -> None:
        self.kernel = kernel
        self.global_size = global_size  # None: there is nothing to compute
        self.local_size = local_size
        self.buffers: list[int] = []  # the positions of the arguments that each call sets: buffers
        self.values: list[int] = []  # and Python scalars, as bytes
        self.set_buffers = setter(kernel, "_set_arg_multi")
        self.set_values = setter(kernel, "_set_arg_buf_multi")

    def run(self, device: Device, *arguments: Any) -> None:
        """Enqueue the kernel on `device` with buffers and packed scalars, in the order of its arguments."""
        if self.global_size is None:
            return
        buffers = [x for x in arguments if type(x) is not bytes]
        values = [x for x in arguments if type(x) is bytes]
        with device.lock:
            self.set_buffers(_interleaved(self.buffers, buffers))
            if values:
                self.set_values(_interleaved(self.values, values))
            device.enqueue(self.kernel, self.global_size, self.local_size)


def _interleaved(slots: Sequence[int], values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(v for pair in zip(slots, values, strict=True) for v in pair)


def setter(kernel: Any, name: str) -> Any:
    """Return a function that sets several arguments at once, given as alternating positions and values.

    `Kernel.set_arg` tries buffers first, and takes ten times as long for the bytes of a number.
    """
    several = getattr(kernel, name, None)
    if several is not None:
        return several

    def one_by_one(pairs: tuple[Any, ...]) -> None:
        for i in range(0, len(pairs), 2):
            kernel.set_arg(pairs[i], pairs[i + 1])

    return one_by_one


def launch(
    device: Device,
    source: str,
    name: str,
    arguments: Sequence[Any],
    size: Sequence[int],
    group: tuple[int, ...] | None = None,
) -> Launch:
    """Return the launch of a kernel.

    In its arguments, ``None`` means a buffer and `Value` a Python scalar, both set by each call; numbers are set now.
    `size` is rounded up to whole groups; the kernel itself skips the excess work-items.
    """
    kernel = device.kernel(source, name)
    group = plain_group(device, size[0]) if group is None else group
    whole = tuple(-(-n // g) * g for n, g in zip(size, group, strict=True))
    made = Launch(kernel, whole if min(size) > 0 else None, group)
    numbers = []
    for i, argument in enumerate(arguments):
        if argument is None:
            made.buffers.append(i)
        elif argument is Value:
            made.values.append(i)
        else:
            numbers += [i, argument]
    if numbers:
        made.set_values(tuple(numbers))
    return made


def plain_group(device: Device, n: int) -> tuple[int, ...]:
    """Return the group size of a one-dimensional launch: one of a few, because each may be compiled."""
    if device.is_cpu and n >= 65536:  # a thread takes one group at a time
        return (int(min(4096, device.cl_device.max_work_group_size)),)
    return (device.work_group,)


def strided_group(device: Device, size: Sequence[int], transposed: bool) -> tuple[int, ...]:
    """Return the group size of a three-dimensional launch: one of a few, because each may be compiled.

    Where an operand is read across its rows, a group has as many work-items along the second dimension as a cache line
    has elements, so it reads each line once.
    """
    items = plain_group(device, math.prod(size))[0]
    longest = min(256 if transposed else 512, items // 16 if transposed else items)
    first = longest if size[0] >= longest else min(64 if size[0] >= 32 else 8, longest)
    second = min(16, items // first) if size[1] >= 16 else 1
    third = items // first // second
    return (first, second, third if size[2] >= third else 1)


class Plan(NamedTuple):
    """The work of a call with given layouts."""

    launch: Launch
    layout: Layout  # of the result
    pack: Any  # converts the Python scalar among the operands, if any, to the kernel's argument


def remember(device: Device, key: Any, plan: Any) -> Any:
    """Keep a plan for later calls."""
    if len(device.plans) >= MAX_PLANS:
        device.plans.clear()
    device.plans[key] = plan
    return plan


def elementwise(
    device: Device,
    expression: str,
    computes: DType,
    out: Layout,
    operands: Sequence[Layout | Value],
    meets: Sequence[DType],
    *,
    indirect: int | None = None,
) -> Launch:
    """Return the launch that computes an expression for every element of `out`.

    Parameters
    ----------
    device
        Where to compute.
    expression, computes
        C over the operands ``a``, ``b``, ``c``, and the type of its value.
    out
        The output's layout, which need not be contiguous.
    operands
        Layouts whose shapes broadcast to that of `out`, or Python scalars.
    meets
        The type to which each operand is converted when it is loaded.
    indirect
        The position of the operand whose elements are offset by the value of the first; -1 means the output.
    """
    for layout in (out, *operands):
        device.require(layout.dtype)
    sides: list[Layout | Value] = [out, *operands]
    kinds = [_kind(side, out) for side in sides]
    if indirect is not None:
        kinds[indirect + 1] = INDIRECT
    strided = [i for i, k in enumerate(kinds) if k in (STRIDED, INDIRECT)]
    lengths, strides = _steps(out, [sides[i] for i in strided]) if strided else ([out.size], [])
    inner = {i: row[-1] for i, row in zip(strided, strides, strict=True)}
    wide = out.size > _INT32 or any(isinstance(s, Layout) and s.high > _INT32 for s in sides) or indirect is not None
    described = [
        Operand(side.dtype, meet, kind, inner[i] if inner.get(i) in (0, 1) else None)
        for i, (side, meet, kind) in enumerate(zip(sides, (out.dtype, *meets), kinds, strict=True))
    ]
    spec = Spec(expression, computes, described[0], tuple(described[1:]), len(lengths), wide)
    index = np.int64 if wide else np.int32
    arguments: list[Any] = []
    for side in sides:
        arguments += [Value] if isinstance(side, Value) else [None, index(side.offset)]
    arguments += [index(n) for n in lengths]
    arguments += [index(s) for row in strides for s in row]
    source = _codegen.elementwise_source(spec)
    if not strides:
        return launch(device, source, "elementwise", arguments, (out.size,))
    size = [*reversed(lengths[-2:]), math.prod(lengths[:-2])] if len(lengths) > 1 else [*lengths, 1, 1]
    transposed = any(abs(row[-1]) > 8 for row in strides)
    return launch(device, source, "elementwise", arguments, size, strided_group(device, size, transposed))


def _kind(side: Layout | Value, out: Layout) -> str:
    if isinstance(side, Value):
        return VALUE
    if side.size == 1:
        return SINGLE
    return CONTIGUOUS if side.contiguous and side.size == out.size else STRIDED


def _steps(out: Layout, sides: Sequence[Any]) -> tuple[list[int], list[list[int]]]:
    """Return the collapsed lengths, and the strides of layouts whose shapes broadcast to that of `out`.

    The number of dimensions is one, two, three, four, eight …, because each needs its own kernel.
    """
    steps = [_layout.broadcast_strides(side.shape, side.strides, out.shape) for side in sides]
    lengths, strides = _layout.collapse(out.shape, _layout.contiguous_strides(out.shape), *steps)
    pad = max(len(lengths), 1)
    if pad > 4:
        pad = 1 << (pad - 1).bit_length()
    missing = pad - len(lengths)
    return [1] * missing + lengths, [[0] * missing + row for row in strides[1:]]


_PACK = {
    "i1": struct.Struct("b").pack,
    "i2": struct.Struct("h").pack,
    "i4": struct.Struct("i").pack,
    "i8": struct.Struct("q").pack,
    "u1": struct.Struct("B").pack,
    "u2": struct.Struct("H").pack,
    "u4": struct.Struct("I").pack,
    "u8": struct.Struct("Q").pack,
    "f4": struct.Struct("f").pack,
    "f8": struct.Struct("d").pack,
}


def packer(dtype: DType) -> Any:
    """Return the function that converts a Python scalar to the bytes of a kernel's argument.

    It raises an `OverflowError` for an integer that the type cannot hold.
    """
    pack = _unchecked_packer(dtype)

    def checked(value: Any) -> Any:
        try:
            return pack(value)
        except (struct.error, OverflowError):
            raise OverflowError(f"the Python integer {value} is out of bounds for {dtype.name}") from None

    return checked


def _unchecked_packer(dtype: DType) -> Any:
    if dtype.kind == "b":
        return lambda value: b"\x01" if value else b"\x00"
    if dtype.kind == "f":  # a float beyond the type's range is an infinity, not an error
        return lambda value: _pack_float(value, dtype)
    if dtype.kind == "c":
        return lambda value: np.asarray(value, dtype).tobytes()
    return _PACK[dtype.str[1:]]


def _pack_float(value: Any, dtype: DType) -> bytes:
    try:
        return _PACK[dtype.str[1:]](value)
    except (OverflowError, KeyError):
        with np.errstate(over="ignore"):
            return np.asarray(float(value), np.float64).astype(dtype).tobytes()
