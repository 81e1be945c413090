"""Records a step on NumPy arrays: calls of compiled operators, and the memory that they read and write.

The step runs once, for real. An array is known by its memory: that of an argument, of a result of a recorded call, or,
if neither, of a constant.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from operator import index as as_index
from typing import Any

import numpy as np

from tensorops import formats
from tensorops._operator import Operator
from tensorops._trees import map_arrays
from tensorops.backends import to_backend
from tensorops.backends.settings import Settings
from tensorops.kernels.cpu import _native, panels
from tensorops.kernels.cpu.rows import rows_of
from tensorops.libraries import library_of
from tensorops.ops.quantization import dequantize
from tensorops.persistent import _row_blocks
from tensorops.persistent._calls import Call, Memory, Place, try_alone
from tensorops.persistent._captured import CaptureError
from tensorops.persistent._planned import Planned, make_plan
from tensorops.persistent._recorded import Recorded

_ARITHMETIC = ("float32", "float64", "int32", "int64")
_NUMPY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
}
_OF_FLOATS = ("minimum", "maximum")
_COMPILED = frozenset(_native.operators())
_MOST_AXES = 8  # of an array with strides
_MOST_PACKED = 64  # the rows of x up to which panels were measured to be faster


def _is_interleaved(format: str | None) -> bool:
    """Return whether rows cannot be taken before they are read: several belong together."""
    return format is not None and isinstance(formats.get(format), formats.Interleaved)


@dataclass(eq=False)
class Recorder:
    """What a step did so far."""

    settings: Settings  # those in force around the step
    written: frozenset[int]  # the arguments that it may write
    repacks: bool = False  # whether constant weights may be read in another order, from a copy
    panels: MutableMapping[Any, Any] = field(default_factory=dict)  # these copies, by format, addresses and shapes
    calls: list[Call] = field(default_factory=list)
    asked: str = ""  # the operator called last
    _blocks: list[Memory] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _current: str = ""
    _tried: set[Any] = field(default_factory=set)

    # --------------------------------------------------------------------- memory

    def argument(self, number: int, owner: int, array: np.ndarray[Any, Any]) -> Recorded:
        """Make an array known by its number among all of the arguments, and by the argument that it is in."""
        self._know(Memory(array, argument=number, owner=owner))
        return Recorded(array, self)

    def _know(self, memory: Memory) -> Memory:
        at = bisect.bisect_left(self._starts, memory.address)
        self._starts.insert(at, memory.address)
        self._blocks.insert(at, memory)
        return memory

    def _find(self, value: np.ndarray[Any, Any]) -> Memory | None:
        start = int(value.__array_interface__["data"][0])
        at = bisect.bisect_right(self._starts, start) - 1
        if at < 0:
            return None
        memory = self._blocks[at]
        return memory if start < memory.address + max(memory.array.nbytes, 1) else None

    def _new(self, shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
        """Return new memory between calls."""
        return self._own(np.empty(tuple(shape), dtype))

    def _own(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not value.flags.c_contiguous or value.base is not None:
            value = np.array(value, order="C")
        if not value.nbytes:
            raise CaptureError(f"{self._current}: an empty array cannot be recorded")
        self._know(Memory(value, is_own=True, first=len(self.calls), last=len(self.calls)))
        return value

    def place(self, x: Any, shape: tuple[int, ...] | None = None) -> Place:
        """Return where an array is, contiguous; a copy is recorded of one that is not."""
        if not isinstance(x, Recorded):
            return self._constant(np.asarray(_on_host(x)), shape)
        value = x.value if x.value.flags.c_contiguous else self._contiguous(x).value
        memory = self._find(value)
        assert memory is not None  # what is recorded has known memory
        return Place(memory, value, value.shape if shape is None else shape)

    def _constant(self, value: np.ndarray[Any, Any], shape: tuple[int, ...] | None) -> Place:
        memory = self._find(value)
        if memory is not None and (memory.is_own or memory.argument is not None):
            raise CaptureError(
                f"{self._current}: an array shares memory with one of the step, but was made outside of what can be "
                "recorded"
            )
        if memory is None or not value.flags.c_contiguous:
            value = np.ascontiguousarray(value).reshape(value.shape)
            memory = self._know(Memory(value)) if self._find(value) is None else self._find(value)
        assert memory is not None
        if value.nbytes > memory.array.nbytes:  # a larger view of memory that is known by a smaller one
            at = self._blocks.index(memory)
            self._blocks[at] = memory = Memory(value)
        return Place(memory, value, value.shape if shape is None else shape)

    def _contiguous(self, x: Recorded) -> Recorded:
        made = self._new(x.shape, x.dtype)
        made[...] = x.value
        self._copy(x.value, made)
        return Recorded(made, self)

    def _copy(self, source: np.ndarray[Any, Any], target: np.ndarray[Any, Any]) -> None:
        """Record a copy between arrays with strides; the values have been copied."""
        if source.ndim > _MOST_AXES:
            raise CaptureError(f"{self._current}: an array of more than {_MOST_AXES} axes cannot be copied")
        places = [self._strided(a) for a in (source, target)]
        axes = _elementwise(source.shape, target.shape)
        self._add(self._current or "copy", "copy", {"x": places[0]}, places[1:], row_axes=axes)

    def _strided(self, value: np.ndarray[Any, Any]) -> Place:
        memory = self._find(value)
        if memory is None:
            return self._constant(value, None)
        return Place(memory, value, value.shape)

    def _add(
        self,
        operator: str,
        compiled: str,
        arguments: dict[str, Place],
        results: Sequence[Place],
        options: dict[str, Any] | None = None,
        exchange: Callable[..., Any] | None = None,
        row_axes: tuple[int | None, ...] = (),
    ) -> None:
        places = tuple(arguments.values())
        for place in (*places, *results):
            place.memory.last = len(self.calls)
        for place in results:
            self._require_writable(operator, place.memory)
        by_rows = _by_rows(places, results, row_axes)
        given = tuple((options or {}).items())
        self.calls.append(Call(operator, compiled, tuple(arguments), places, tuple(results), given, exchange, by_rows))

    def _require_writable(self, operator: str, memory: Memory | None) -> None:
        assert memory is not None  # what is recorded has known memory
        if memory.argument is not None and memory.owner not in self.written:
            raise CaptureError(f"{operator}: the step writes to argument {memory.owner}, which is not in `donate`")
        if memory.argument is None and not memory.is_own:
            raise CaptureError(f"{operator}: the step writes to an array that is not one of its arguments")

    # ------------------------------------------------- what a step may do to arrays

    def reshape(self, x: Recorded, shape: tuple[int, ...]) -> Recorded:
        """Return the elements in another shape, of a copy if their order requires it."""
        viewed = x.value.view()
        try:
            viewed.shape = tuple(map(as_index, shape))
        except AttributeError:
            self._current = "reshape"
            return x.view(self._contiguous(x).value.reshape(shape))
        return x.view(viewed)

    def copied(self, x: Recorded) -> Recorded:
        """Return a copy."""
        self._current = "copy"
        return self._contiguous(x)

    def converted(self, x: Recorded, dtype: np.dtype[Any]) -> Recorded:
        """Return an array in another dtype."""
        self._current = "astype"
        whole = x.dtype.kind in "iu"
        if dtype.name not in (*_ARITHMETIC, "float16", "bfloat16") or (dtype.kind == "i" and not whole):
            raise CaptureError(f"astype from {x.dtype.name} to {dtype.name} cannot be recorded")
        with np.errstate(all="ignore"):
            made = self._own(x.value.astype(dtype))
        axes = _elementwise(made.shape, made.shape)
        self._add("astype", "convert", {"x": self.place(x)}, [self.place(Recorded(made, self))], row_axes=axes)
        return Recorded(made, self)

    def arithmetic(self, name: str, a: Any, b: Any) -> Recorded:
        """Record a sum, difference, product, minimum or maximum, with NumPy's rules for dtypes and shapes."""
        self._current = name
        given = [x if isinstance(x, Recorded) or type(x) in (bool, int, float) else np.asarray(x) for x in (a, b)]
        dtype = np.result_type(*(x.dtype if isinstance(x, Recorded | np.ndarray) else x for x in given))
        if dtype.name in ("float16", "bfloat16"):  # as NumPy does, each is rounded once
            wide = [self._as(x, np.dtype(np.float32)) for x in given]
            return self.converted(self.arithmetic(name, *wide), dtype)
        if dtype.name not in _ARITHMETIC or (name in _OF_FLOATS and dtype.kind != "f"):
            kinds = " and ".join(str(getattr(x, "dtype", type(x).__name__)) for x in given)
            raise CaptureError(f"{name} of {kinds} gives {dtype.name}, which cannot be recorded")
        a, b = (self._as(x, dtype) for x in given)
        shape = np.broadcast_shapes(a.shape, b.shape)
        a, b = (x if x.shape == shape or x.size == 1 else self._broadcast(x, shape) for x in (a, b))
        self._current = name
        values = [x.value if isinstance(x, Recorded) else x for x in (a, b)]
        with np.errstate(all="ignore"):
            made = self._own(np.asarray(_NUMPY[name](*values)).reshape(shape))
        axes = _elementwise(a.shape, b.shape, shape)
        places = {"a": self.place(a), "b": self.place(b)}
        self._add(name, name, places, [self.place(Recorded(made, self))], row_axes=axes)
        return Recorded(made, self)

    def _as(self, x: Any, dtype: np.dtype[Any]) -> Any:
        """Return an operand in a dtype."""
        if not isinstance(x, Recorded):
            return np.asarray(x, dtype)
        return x if x.dtype == dtype else self.converted(x, dtype)

    def _broadcast(self, x: Any, shape: tuple[int, ...]) -> Any:
        if not isinstance(x, Recorded):
            return np.array(np.broadcast_to(x, shape))
        return self._contiguous(x.view(np.broadcast_to(x.value, shape)))

    def take(self, x: Any, indices: Any, axis: int) -> Recorded:
        """Record parts of an array by their indices along an axis."""
        self._current = self._current if self._current == "embedding" else "take"
        value = x.value if isinstance(x, Recorded) else np.asarray(x)
        numbers = indices.value if isinstance(indices, Recorded) else np.asarray(indices)
        if numbers.dtype.kind not in "iu":
            raise CaptureError(f"{self._current}: indices have dtype {numbers.dtype.name}; masks cannot be recorded")
        axis %= value.ndim
        made = self._own(np.take(value, numbers, axis))
        outer, inner = int(np.prod(value.shape[:axis])), int(np.prod(value.shape[axis + 1 :]))
        source = self.place(x, (outer, value.shape[axis], inner))
        at = self.place(indices, (numbers.size,))
        target = self.place(Recorded(made, self), (outer, numbers.size, inner))
        self._add(self._current, "take", {"x": source, "indices": at}, [target])
        return Recorded(made, self)

    def put(self, x: Recorded, indices: Recorded, axis: int, new: Any) -> None:
        """Record the assignment of parts of an array, at indices along an axis."""
        self._current = "assignment"
        if indices.dtype.kind not in "iu":
            raise CaptureError(f"{self._current}: indices have dtype {indices.dtype.name}; masks cannot be recorded")
        if not x.value.flags.c_contiguous:
            raise CaptureError("an assignment to a part of an array with strides cannot be recorded")
        self._require_writable(self._current, self._find(x.value))
        key: Any = (*[slice(None)] * axis, indices.value)
        shape = x.value[key].shape
        new = self._fitting(new, shape, x.dtype)
        x.value[key] = new.value if isinstance(new, Recorded) else new
        self._current = "assignment"
        outer, inner = int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis + 1 :]))
        parts = self.place(new, (outer, indices.size, inner))
        at = self.place(indices, (indices.size,))
        self._add("assignment", "put", {"x": parts, "indices": at}, [self.place(x, (outer, x.shape[axis], inner))])

    def write(self, x: Recorded, new: Any) -> None:
        """Record the assignment of a view of an array."""
        self._current = "assignment"
        self._require_writable(self._current, self._find(x.value))
        new = self._fitting(new, x.shape, x.dtype)
        value = new.value if isinstance(new, Recorded) else new
        if np.may_share_memory(value, x.value):
            new = self.copied(new)
            value = new.value
        x.value[...] = value
        self._copy(value, x.value)

    def _fitting(self, new: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        if not isinstance(new, Recorded):
            return np.array(np.broadcast_to(np.asarray(new, dtype), shape))
        if new.dtype != dtype:
            new = self.converted(new, dtype)
        return new if new.shape == shape else new.view(np.broadcast_to(new.value, shape))

    def concat(self, arrays: list[Any], axis: int | None) -> Recorded:
        """Record a join of arrays."""
        self._current = "concat"
        if axis is None:
            arrays, axis = [a.reshape(-1) for a in arrays], 0
        values = [a.value if isinstance(a, Recorded) else np.asarray(a) for a in arrays]
        if len({v.dtype for v in values}) > 1:
            raise CaptureError("concat of several dtypes cannot be recorded")
        made = self._own(np.concatenate(values, axis))
        begin, axis = 0, axis % made.ndim
        for value in values:
            key: Any = (*[slice(None)] * axis, slice(begin, begin + value.shape[axis]))
            self._copy(value, made[key])
            begin += value.shape[axis]
        return Recorded(made, self)

    def exchange(self, name: str, function: Callable[..., Any], x: Recorded, shape: tuple[int, ...]) -> Recorded:
        """Record that ranks exchange an array: a function that reads it and fills another one, in Python in each run.

        Nothing is sent now, so that no rank waits for another one while it compiles.
        """
        self._current = name
        source = self.place(x)
        if not source.memory.is_own:
            source = self.place(self._contiguous(x))
        made = self._own(np.resize(x.value, shape))
        self._add(name, "Python", {"x": source}, [self.place(Recorded(made, self))], exchange=function)
        return Recorded(made, self)

    # ------------------------------------------------------------------- operators

    def call(self, operator: Operator[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator and record it."""
        try:
            return self._call(operator, args, kwargs)
        except TypeError as error:  # which the operator would take for a kernel that declines
            raise CaptureError(str(error)) from error

    def _call(self, operator: Operator[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not any(isinstance(value, Recorded) for value in (*args, *kwargs.values())):
            return NotImplemented  # of constants
        args, kwargs = map_arrays(_on_host, (args, kwargs))
        name = operator.__name__
        if name not in _COMPILED:
            if not operator.calls:
                raise CaptureError(f"{name} has no kernel that can be recorded")
            arguments = operator.bind(args, kwargs)
            known = {key: self._as_recorded(value) for key, value in arguments.items()}
            return operator.compute(**known)
        arguments = operator.canonical(*args, **kwargs)
        self._current = name
        if name == "embedding" and not _is_interleaved(arguments["format"]):
            ids = arguments["ids"]
            flat = ids.reshape((-1,))
            rows = self.take(arguments["weight"], flat, 0)
            if (format := arguments["format"]) is not None:
                rows = dequantize(rows, format=format)
            return rows.reshape((*ids.shape, rows.shape[-1]))
        return self._record(operator, arguments)

    def _as_recorded(self, value: Any) -> Any:
        """Return a constant as one of the step's arrays, as a body takes arrays of one library only."""
        if not isinstance(value, np.ndarray):
            return value
        return Recorded(self._constant(value, None).value, self)

    def _record(self, operator: Operator[..., Any], arguments: dict[str, Any]) -> Any:
        name = operator.__name__
        if isinstance(arguments.get("rng"), np.random.Generator):
            raise CaptureError(f"{name}: numbers of a generator would stay the same; pass an array of them as `rng`")
        if self.repacks and name == "quantized_linear":
            if (packed := self._packed(arguments)) is not None:
                return packed
            arguments = self._interleaved(arguments)
        rows = rows_of(operator, arguments)
        arrays = [key for key, value in arguments.items() if isinstance(value, Recorded | np.ndarray)]
        order = list(rows.arrays) if rows else arrays
        strided = {each: self._strided(arguments[each].value) for each in order if _has_strides(arguments[each])}
        places = {each: strided.get(each) or self.place(arguments[each]) for each in order}
        values = {key: value.value if isinstance(value, Recorded) else value for key, value in arguments.items()}
        result = operator.apply(self._run_with(operator), values)
        several = result if isinstance(result, tuple) else (result,)
        made = [self._own(y) for y in several if y is not None]
        results = [self.place(Recorded(y, self)) for y in made]
        options = {key: value for key, value in arguments.items() if key not in arrays and value is not None}
        if strided:
            call = Call(name, name, tuple(places), tuple(places.values()), tuple(results), tuple(options.items()))
            try:
                self._try(call)
            except CaptureError:  # it needs them contiguous
                places |= {each: self.place(arguments[each]) for each in strided}
        shapes, made_shapes = ([place.shape for place in each] for each in (places.values(), results))
        axes = _row_blocks.row_axis_of(rows, shapes, made_shapes) if rows else ()
        self._current = name
        self._add(name, name, places, results, options, row_axes=axes)
        self._try(self.calls[-1])
        left = iter(made)
        recorded = tuple(None if y is None else Recorded(next(left), self) for y in several)
        return recorded if isinstance(result, tuple) else recorded[0]

    def _try(self, call: Call) -> None:
        """Run a call by itself unless one like it was; raise if it does not compute what the operator does."""
        if call.alike not in self._tried:
            try_alone(call)
            self._tried.add(call.alike)

    def _packed(self, arguments: dict[str, Any]) -> Recorded | None:
        """Record a product with constant weights in panels, or return ``None`` if these are not faster here."""
        x, weights = arguments["x"], {name: arguments[name] for name in ("weight", "scales", "biases")}
        if weights["scales"] is None:  # but blocks
            return None
        if math.prod(x.shape[:-1]) > _MOST_PACKED or any(isinstance(w, Recorded) for w in weights.values()):
            return None
        memory = (None if w is None else (w.__array_interface__["data"][0], w.shape) for w in weights.values())
        key = (arguments["bits"], arguments["group_size"], *memory)
        packed = self.panels.get(key)
        if packed is None:
            found = panels.pack(**weights, bits=arguments["bits"], group_size=arguments["group_size"])
            if not isinstance(found, panels.Panels):
                return None
            self.panels[key] = packed = found.panels
        value = _native.panel_linear(x.value if x.value.flags.c_contiguous else np.ascontiguousarray(x.value), packed)
        if value is NotImplemented:
            return None
        places = {"x": self.place(x), "panels": self.place(packed.memory)}
        made = self._own(value)
        facts = ("bits", "group_size", "biased", "scale_dtype")
        options = {"outputs": packed.shape[0], **{name: getattr(packed, name) for name in facts}}
        self._add("quantized_linear", "panel_linear", places, [self.place(Recorded(made, self))], options)
        try_alone(self.calls[-1])
        return Recorded(made, self)

    def _interleaved(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a product with constant blocks interleaved, if these are multiplied faster here."""
        weight, format = arguments["weight"], arguments["format"]
        if isinstance(weight, Recorded) or arguments["scales"] is not None:
            return arguments
        key = (format, weight.__array_interface__["data"][0], weight.shape, weight.strides)
        blocks = self.panels.get(key)
        if blocks is None:
            found = panels.pack(weight=weight, format=format)
            if not isinstance(found, panels.InterleavedBlocks):
                return arguments
            self.panels[key] = blocks = found.blocks
        return arguments | {"weight": blocks, "format": format + formats.Interleaved.ENDING}

    def _run_with(self, operator: Operator[..., Any]) -> Callable[..., Any]:
        from tensorops.backends.settings import activate

        def run(*args: Any, **kwargs: Any) -> Any:
            with activate(self.settings):
                return operator(*args, **kwargs)

        return run

    # --------------------------------------------------------------------- results

    def results_of_calls(self) -> tuple[list[tuple[int, str, bool]], list[np.ndarray[Any, Any]], list[Recorded]]:
        """Return facts about each call, a copy of its result, and its result.

        The facts are its number, its operator, and whether it makes integers of floating-point numbers. Left out is
        what calls write to arguments, or into parts of other results.
        """
        found, seen = [], set()
        for number, call in enumerate(self.calls):
            for place in call.results:
                if place.memory.is_own and id(place.memory) not in seen and place.value.nbytes == place.memory.nbytes:
                    seen.add(id(place.memory))
                    reads_floats = any(p.value.dtype.kind not in "biu" for p in call.arguments)
                    chooses = place.value.dtype.kind in "iu" and reads_floats
                    found.append(((number, call.operator, chooses), np.array(place.value), Recorded(place.value, self)))
        names, values, recorded = zip(*found, strict=True) if found else ((), (), ())
        return list(names), list(values), list(recorded)

    def plan(self, kept: Sequence[Recorded], threads: int) -> Planned:
        """Make a plan of the calls; `kept` are the results of the step, in memory that stays."""
        return make_plan(self.calls, self._blocks, [self.place(x) for x in kept], threads)


def _on_host(x: Any) -> Any:
    """Return a constant of another library as an array of NumPy, with the same memory where that is possible."""
    return x if isinstance(x, Recorded | np.ndarray) else to_backend(x, "numpy") if library_of(x) is not None else x


def _elementwise(*shapes: tuple[int, ...]) -> tuple[int | None, ...]:
    """Return the axis of the rows for each array of an elementwise call; those with one element are needed whole."""
    axis = next((axis for axis, n in enumerate(shapes[-1]) if n > 1), None)
    return () if axis is None else tuple(axis if shape == shapes[-1] else None for shape in shapes)


def _by_rows(arguments: Sequence[Place], results: Sequence[Place], axes: tuple[int | None, ...]) -> _row_blocks.Call:
    """Return how a call goes through rows, of which `axes` are those of the arrays."""
    uses = []
    places = [*((place, False) for place in arguments), *((place, True) for place in results)]
    for (place, is_written), axis in zip(places, axes, strict=False):
        rows = _row_blocks.rows_of(axis, place.offset, place.shape, place.strides, place.value.itemsize)
        if rows is None:
            return _row_blocks.WHOLE
        uses.append(_row_blocks.Use(place.memory, rows, is_written))
    whole = sum(place.value.nbytes for (place, _), use in zip(places, uses, strict=False) if not use.rows.step)
    if not axes or axes[-1] is None or whole > _row_blocks.MOST_WHOLE_BYTES:
        return _row_blocks.WHOLE
    return _row_blocks.call_of(results[-1].shape[axes[-1]], uses)


def _has_strides(x: Any) -> bool:
    """Return whether an array is not contiguous, and compiled operators read it all the same."""
    if not isinstance(x, Recorded) or x.value.flags.c_contiguous or not 2 <= x.ndim <= _MOST_AXES:
        return False
    return bool(x.value.strides[-1] == x.value.itemsize or x.shape[-1] == 1)
