"""Reductions as generated kernels: the kept dimensions run in parallel, the reduced ones in parts if few are kept.

A work-item reduces one part for one element of the result; if there are several parts, a second launch reduces them.
On CPUs a part is a run of neighbours, read as vectors where it is contiguous. Elsewhere the parts are interleaved, so
that neighbouring work-items read neighbouring elements.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from array_api_pyopencl import _calls, _codegen, _dtypes, _launch, _layout, _registered as _objects
from array_api_pyopencl._devices import Device
from array_api_pyopencl._dtypes import C_TYPES, DType
from array_api_pyopencl._expressions import convert, expression, library, substitute
from array_api_pyopencl._launch import Launch
from array_api_pyopencl._layout import Layout, Shape


class Reduction(NamedTuple):
    """How two accumulated values are combined, as C over ``acc`` and ``v`` of the accumulated type."""

    combine: dict[str, str]  # by kind
    vector: dict[str, str]  # by kind, for vectors of 16; kinds without an entry are not vectorized
    load: str = "v"  # the value of an element that is accumulated; ``m`` is the mean
    identity: int | None = None  # the value of an empty reduction


def _same(text: str, kinds: str) -> dict[str, str]:
    return dict.fromkeys(kinds, text)


_SUM = _same("acc + v", "iufc")
_GREATEST = {"f": "(isnan(v) || v > acc ? v : acc)"} | _same("(v > acc ? v : acc)", "iu")
_LEAST = {"f": "(isnan(v) || v < acc ? v : acc)"} | _same("(v < acc ? v : acc)", "iu")

REDUCTIONS = {
    "sum": Reduction(_SUM, _same("acc + v", "iuf"), identity=0),
    "squares": Reduction(_SUM, _same("acc + v", "f"), load="(v - m) * (v - m)", identity=0),
    "prod": Reduction(_same("acc * v", "iuf") | {"c": "c_mul(acc, v)"}, _same("acc * v", "iuf"), identity=1),
    "max": Reduction(_GREATEST, {"f": "select(acc, v, isnan(v) | (v > acc))"} | _same("max(acc, v)", "iu")),
    "min": Reduction(_LEAST, {"f": "select(acc, v, isnan(v) | (v < acc))"} | _same("min(acc, v)", "iu")),
    "any": Reduction(_same("acc | v", "b"), _same("acc | v", "b"), identity=0),
    "all": Reduction(_same("acc & v", "b"), _same("acc & v", "b"), identity=1),
}

_VECTOR = 16
_PART = 4096  # elements that are worth a separate work-item


class _Shape(NamedTuple):
    """The collapsed dimensions of a reduction, with strides in elements."""

    kept: list[int]
    kept_strides: list[int]
    reduced: list[int]
    reduced_strides: list[int]


def reduce(
    name: str,
    x: Any,
    axes: Sequence[int],
    keepdims: bool,
    accumulate: DType,
    *,
    load: str = "copy",
    out: DType | None = None,
    mean: Any = None,
    finish: str = "acc",
    scale: float = 0.0,
) -> _objects.Array:
    """Return the reduction of `x` along some axes.

    Parameters
    ----------
    name
        The key in `REDUCTIONS`.
    x, axes, keepdims
        As in the standard, the axes counted from the front.
    accumulate
        The type of the accumulator.
    load
        The function of each element that is converted to that type: ``copy`` or ``nonzero``.
    out
        The type of the result, if different.
    mean
        For ``squares``, the contiguous means, one for each element of the result.
    finish, scale
        C over ``acc`` and the number ``scale`` that computes the result from the accumulated value.
    """
    device = x._device
    out = accumulate if out is None else out
    for dtype in (accumulate, out):
        device.require(dtype)
    key = ("reduce", name, x._layout, tuple(axes), keepdims, accumulate, load, out, finish, scale)
    plan = device.plans.get(key)
    if plan is None:
        make = _Plan(device, name, x._layout, axes, keepdims, accumulate, load, out, mean is not None, finish, scale)
        plan = _launch.remember(device, key, make)
    result: _objects.Array = plan.run(device, x, mean)
    return result


class _Plan:
    """The one or two launches of a reduction."""

    def __init__(
        self,
        device: Device,
        name: str,
        x: Layout,
        axes: Sequence[int],
        keepdims: bool,
        accumulate: DType,
        load: str,
        out: DType,
        has_mean: bool,
        finish: str,
        scale: float,
    ) -> None:
        self.layout = _layout.contiguous(out, reduced_shape(x.shape, axes, keepdims))
        dims = _split(x, axes)
        count = int(np.prod(dims.reduced, dtype=np.int64))
        self.identity: int | None = None
        self.second: Launch | None = None
        self.partial = _layout.contiguous(accumulate, ())
        if count == 0 or self.layout.size == 0:
            self.identity = REDUCTIONS[name].identity
            if self.identity is None and self.layout.size:
                raise ValueError(f"{name} of no elements is not defined")
            # 0 / 0 and the like, as in the formula
            self.empty_value = _finish_empty(finish, self.identity, scale)
            return
        parts = _parts(device, self.layout.size, count)
        source = _Source(name, accumulate, finish, scale, device.is_cpu)
        if parts == 1:
            self.first = source.launch(device, x, dims, out, load, 1, has_mean, last=True)
            return
        self.partial = _layout.contiguous(accumulate, (self.layout.size, parts))
        self.first = source.launch(device, x, dims, accumulate, load, parts, has_mean, last=False)
        again = "sum" if name == "squares" else name
        source = _Source(again, accumulate, finish, scale, device.is_cpu)
        self.second = source.launch(device, self.partial, _split(self.partial, (1,)), out, "copy", 1, False, last=True)

    def run(self, device: Device, x: Any, mean: Any) -> _objects.Array:
        result = _objects.Array(device.allocate(self.layout.nbytes), self.layout, device)
        extra = () if mean is None else (mean._buffer,)
        if self.layout.size == 0:
            return result
        if self.identity is not None:
            _calls.fill(result, self.empty_value if result.dtype.kind in "fc" else self.identity)
        elif self.second is None:
            self.first.run(device, result._buffer, x._buffer, *extra)
        else:
            partial = device.allocate(self.partial.nbytes)
            self.first.run(device, partial, x._buffer, *extra)
            self.second.run(device, result._buffer, partial)
        return result


def _finish_empty(finish: str, identity: int | None, scale: float) -> float:
    return float(identity or 0) if finish == "acc" else float("nan")


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """Return the shape of a reduction's result."""
    if keepdims:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def _split(x: Layout, axes: Sequence[int]) -> _Shape:
    kept = [a for a in range(len(x.shape)) if a not in axes]
    lengths = []
    for group in (kept, sorted(axes)):
        merged, (strides,) = _layout.collapse(tuple(x.shape[a] for a in group), tuple(x.strides[a] for a in group))
        pad = 1
        while pad < len(merged):
            pad *= 2
        lengths += [[1] * (pad - len(merged)) + merged, [0] * (pad - len(merged)) + strides]
    return _Shape(*lengths)


def _parts(device: Device, results: int, count: int) -> int:
    """Return the number of parts of the reduced elements: one, if the results alone keep the device busy."""
    if results >= device.parallelism or count < 2 * _PART:
        return 1
    return max(1, min(count // _PART, device.parallelism // results))


class _Source(NamedTuple):
    name: str
    accumulate: DType
    finish: str
    scale: float
    blocks: bool  # parts are runs of neighbours

    def launch(
        self,
        device: Device,
        x: Layout,
        dims: _Shape,
        out: DType,
        load: str,
        parts: int,
        has_mean: bool,
        *,
        last: bool,
    ) -> Launch:
        results = int(np.prod(dims.kept, dtype=np.int64))
        count = int(np.prod(dims.reduced, dtype=np.int64))
        wide = max(x.high, x.size) > 2**31 - 1
        if self.blocks and load == "copy" and self._columns_apply(x.dtype, dims):
            return self._launch_columns(device, x, dims, out, parts, has_mean, wide, last=last)
        unit = dims.reduced_strides == [1] and self.blocks
        source = self.text(x.dtype, out, load, dims, wide, unit, has_mean, last)
        index = np.int64 if wide else np.int32
        arguments: list[Any] = [None, None, index(x.offset)]
        if has_mean:
            arguments.append(None)
        arguments += [index(n) for n in (results * parts, parts, count, -(-count // parts))]
        for numbers in dims:
            arguments += [index(n) for n in numbers]
        if last and "scale" in self.finish:
            arguments.append(np.dtype(_dtypes.real_of(self.accumulate)).type(self.scale))
        items = results * parts
        return _launch.launch(device, source, "reduce", arguments, (items,), heavy_group(device, items))

    def text(
        self, dtype: DType, out: DType, load: str, dims: _Shape, wide: bool, unit: bool, has_mean: bool, last: bool
    ) -> str:
        reduction = REDUCTIONS[self.name]
        acc = C_TYPES[self.accumulate]
        kind = self.accumulate.kind
        combine = reduction.combine[kind]
        vector = reduction.vector.get(kind) if unit and load == "copy" and dtype.kind != "c" else None
        if vector and dtype != self.accumulate and (kind == "b" or dtype.kind == "b"):
            vector = None
        nk, nr = len(dims.kept), len(dims.reduced)
        parameters = [f"__global {C_TYPES[out]}* out", f"__global const {C_TYPES[dtype]}* x", "idx start"]
        parameters += [f"__global const {acc}* means"] * has_mean
        parameters += ["idx items", "idx parts", "idx count", "idx chunk"]
        parameters += [f"idx {name}{d}" for name, n in (("k", nk), ("sk", nk), ("r", nr), ("sr", nr)) for d in range(n)]
        finish = self.finish if last else "acc"
        if last and "scale" in finish:
            parameters.append(f"{C_TYPES[_dtypes.real_of(self.accumulate)]} scale")
        element = re.sub(r"\ba\b", "VALUE", expression(load, dtype))
        loads = _dtypes.bool if load == "nonzero" else dtype
        at = " + ".join(f"q{d} * sr{d}" for d in range(nr))
        value = element.replace("VALUE", f"x[start + {at}]")
        body = [
            f"    {acc} v = {convert(f'({value})', loads, self.accumulate)};",
            f"    v = {reduction.load};" if reduction.load != "v" else "",
        ]
        return "\n".join(
            (
                _codegen.header((dtype, out, self.accumulate), wide),
                library(combine, self.accumulate),
                f"__kernel void reduce({', '.join(parameters)}) {{",
                "  idx item = get_global_id(0);",
                "  if (item >= items) return;",
                "  idx j = item / parts, part = item % parts;",
                f"  {acc} m = means[j];" if has_mean else "",
                *_unravel("j", "j", "k", nk),
                *(f"  start += j{d} * sk{d};" for d in range(nk)),
                *self._bounds(),
                *(self._vector_loop(vector, combine, dtype, reduction.load) if vector else ()),
                f"  {acc} acc = 0; int empty = 1;" if not vector else "",
                "  for (; i < end; i += step) {",
                *_unravel("i", "q", "r", nr),
                *body,
                f"    acc = empty ? v : {combine};",
                "    empty = 0;",
                "  }",
                f"  out[item] = {convert(f'({substitute(finish, self.accumulate)})', self.accumulate, out)};",
                "}",
            )
        )

    def _columns_apply(self, dtype: DType, dims: _Shape) -> bool:
        """Return whether neighbouring results come from neighbours in memory and are faster computed together."""
        kind = self.accumulate.kind
        rows = dims.reduced_strides[-1] != 1 and dims.kept_strides[-1] == 1 and dims.kept[-1] >= _VECTOR
        return rows and kind in REDUCTIONS[self.name].vector and kind != "b" and dtype.kind in "iuf"

    def _launch_columns(
        self, device: Device, x: Layout, dims: _Shape, out: DType, parts: int, has_mean: bool, wide: bool, *, last: bool
    ) -> Launch:
        results = int(np.prod(dims.kept, dtype=np.int64))
        count = int(np.prod(dims.reduced, dtype=np.int64))
        index = np.int64 if wide else np.int32
        tiles = -(-dims.kept[-1] // _VECTOR)
        items = results // dims.kept[-1] * tiles * parts
        arguments: list[Any] = [None, None, index(x.offset)]
        if has_mean:
            arguments.append(None)
        arguments += [index(n) for n in (items, parts, count, -(-count // parts), tiles)]
        for numbers in dims:
            arguments += [index(n) for n in numbers]
        if last and "scale" in self.finish:
            arguments.append(np.dtype(_dtypes.real_of(self.accumulate)).type(self.scale))
        source = self._columns(x.dtype, out, dims, wide, has_mean, last)
        return _launch.launch(device, source, "reduce", arguments, (items,), heavy_group(device, items))

    def _columns(self, dtype: DType, out: DType, dims: _Shape, wide: bool, has_mean: bool, last: bool) -> str:
        """Return the source of a kernel in which each work-item computes a vector of neighbouring results."""
        reduction = REDUCTIONS[self.name]
        acc = C_TYPES[self.accumulate]
        kind = self.accumulate.kind
        nk, nr = len(dims.kept), len(dims.reduced)
        finish = substitute(self.finish, self.accumulate) if last else "acc"
        parameters = [f"__global {C_TYPES[out]}* out", f"__global const {C_TYPES[dtype]}* x", "idx start"]
        parameters += [f"__global const {acc}* means"] * has_mean
        parameters += ["idx items", "idx parts", "idx count", "idx chunk", "idx tiles"]
        parameters += [f"idx {name}{d}" for name, n in (("k", nk), ("sk", nk), ("r", nr), ("sr", nr)) for d in range(n)]
        if last and "scale" in self.finish:
            parameters.append(f"{C_TYPES[_dtypes.real_of(self.accumulate)]} scale")
        inner = nk - 1
        at = " + ".join(f"q{d} * sr{d}" for d in range(nr))
        vector = f"{acc}{_VECTOR}"
        read = f"vload{_VECTOR}(0, x + start + {at})"
        loaded = read if dtype == self.accumulate else f"convert_{vector}({read})"

        def loop(kind_: str, value: str, combine: str) -> list[str]:
            return [
                f"    {kind_} acc = 0;",
                "    for (idx i = first; i < end; i++) {",
                *_unravel("i", "q", "r", nr),
                f"      {kind_} v = {value};",
                f"      v = {reduction.load};" if reduction.load != "v" else "",
                f"      acc = i == first ? v : {combine};",
                "    }",
            ]

        return "\n".join(
            (
                _codegen.header((dtype, out, self.accumulate), wide),
                f"__kernel void reduce({', '.join(parameters)}) {{",
                "  idx item = get_global_id(0);",
                "  if (item >= items) return;",
                "  idx part = item % parts, tile = item / parts % tiles, outer = item / parts / tiles;",
                f"  idx column = tile * {_VECTOR}, j = outer * k{inner} + column;",
                *_unravel("outer", "j", "k", inner),
                *(f"  start += j{d} * sk{d};" for d in range(inner)),
                "  start += column;",
                "  idx first = part * chunk, end = min(first + chunk, count);",
                f"  if (column + {_VECTOR} <= k{inner}) {{",
                f"    {vector} m = vload{_VECTOR}(0, means + j);" if has_mean else "",
                *loop(vector, loaded, reduction.vector[kind]),
                f"    {acc} sums[{_VECTOR}];",
                f"    vstore{_VECTOR}(acc, 0, sums);",
                f"    for (int c = 0; c < {_VECTOR}; c++) {{",
                f"      {acc} acc = sums[c];",
                f"      out[(j + c) * parts + part] = {convert(f'({finish})', self.accumulate, out)};",
                "    }",
                "    return;",
                "  }",
                f"  for (; column < k{inner}; column++, j++, start++) {{",
                f"    {acc} m = means[j];" if has_mean else "",
                *loop(acc, convert(f"x[start + {at}]", dtype, self.accumulate), reduction.combine[kind]),
                f"    out[j * parts + part] = {convert(f'({finish})', self.accumulate, out)};",
                "  }",
                "}",
            )
        )

    def _bounds(self) -> tuple[str, ...]:
        if self.blocks:
            return ("  idx i = part * chunk, end = min(i + chunk, count), step = 1;",)
        return ("  idx i = part, end = count, step = parts;",)

    def _vector_loop(self, vector: str, combine: str, dtype: DType, load: str) -> tuple[str, ...]:
        """Reduce whole vectors of neighbours first: that many sums at a time are faster and more accurate.

        A long row uses four of them, so that one addition need not wait for the previous one.
        """
        acc = C_TYPES[self.accumulate]
        wide = f"{acc}{_VECTOR}"

        def read(into: str, number: int = 0) -> str:
            loaded = f"vload{_VECTOR}({number}, x + start + i)"
            loaded = loaded if dtype == self.accumulate else f"convert_{wide}({loaded})"
            return f"{into} = {loaded};" if load == "v" else f"v = {loaded}; {into} = {load};"

        def add(into: str, number: int = 0) -> str:
            return f"{read('v', number)} {into} = {_join(vector, into, 'v')};"

        lines = [
            f"  {acc} acc = 0; int empty = 1;",
            f"  if (i + {_VECTOR} <= end) {{",
            f"    {wide} v, acc0, acc1, acc2, acc3;",
            f"    {read('acc0')}",
            f"    i += {_VECTOR};",
            f"    if (i + {3 * _VECTOR} <= end) {{",
            f"      {read('acc1', 0)} {read('acc2', 1)} {read('acc3', 2)}",
            f"      for (i += {3 * _VECTOR}; i + {4 * _VECTOR} <= end; i += {4 * _VECTOR}) {{",
            *(f"        {add(f'acc{n}', n)}" for n in range(4)),
            "      }",
            *(f"      acc{n} = {_join(vector, f'acc{n}', f'acc{other}')};" for n, other in ((0, 1), (2, 3), (0, 2))),
            "    }",
            f"    for (; i + {_VECTOR} <= end; i += {_VECTOR}) {{ {add('acc0')} }}",
            "    empty = 0;",
        ]
        half = _VECTOR // 2
        name = "acc0"
        while half >= 1:
            kind = f"{acc}{half}" if half > 1 else acc
            lo, hi = (f"{name}.lo", f"{name}.hi") if half > 1 else (f"{name}.x", f"{name}.y")
            text = _join(vector if half > 1 else combine, lo, hi)
            lines.append(f"    {kind} h{half} = {text};")
            name = f"h{half}"
            half //= 2
        lines += ["    acc = h1;", "  }"]
        return tuple(lines)


def _join(vector: str, low: str, high: str) -> str:
    return re.sub(r"\b(acc|v)\b", lambda match: low if match[0] == "acc" else high, vector)


def _unravel(position: str, names: str, lengths: str, count: int) -> list[str]:
    """Split a position into indices; the last dimension varies fastest."""
    if count <= 1:
        return [f"  idx {names}0 = {position};"]
    lines = [f"  idx rest_{names} = {position};"]
    for d in range(count - 1, 0, -1):
        lines += [f"  idx {names}{d} = rest_{names} % {lengths}{d};", f"  rest_{names} /= {lengths}{d};"]
    return [*lines, f"  idx {names}0 = rest_{names};"]


def heavy_group(device: Device, items: int) -> tuple[int, ...]:
    """Return the group size for work-items that each have much to do."""
    if not device.is_cpu:
        return (device.work_group,)
    return (64,) if items >= 64 * device.parallelism else (1,)


# --------------------------------------------------------------------------------- positions of extreme values


def arg_reduce(better: str, x: Any, axis: int | None, keepdims: bool) -> _objects.Array:
    """Return the first position of the extreme value along an axis or in the whole array; `better` is > or <."""
    if x.dtype.kind not in "iuf":
        raise TypeError(f"argmax and argmin are not defined for {x.dtype.name}")
    device = x._device
    axes = _layout.normalize_axes(axis, x.ndim)
    layout = _layout.contiguous(_dtypes.int64, reduced_shape(x.shape, axes, keepdims))
    dims = _split(x._layout, axes)
    count = int(np.prod(dims.reduced, dtype=np.int64))
    result = _calls.empty(device, _dtypes.int64, layout.shape)
    if layout.size == 0:
        return result
    if count == 0:
        raise ValueError("argmax and argmin of no elements are not defined")
    parts = _parts(device, layout.size, count)
    if parts == 1:
        _arg_launch(device, better, x, dims, count, 1, False).run(device, result._buffer, x._buffer)
        return result
    partial = device.allocate(layout.size * parts * 8)
    _arg_launch(device, better, x, dims, count, parts, False).run(device, partial, x._buffer)
    _arg_launch(device, better, x, dims, parts, 1, True).run(device, result._buffer, x._buffer, partial)
    return result


def _arg_launch(device: Device, better: str, x: Any, dims: _Shape, count: int, parts: int, again: bool) -> Launch:
    key = ("arg", better, x._layout, tuple(map(tuple, dims)), count, parts, again)
    found: Launch | None = device.plans.get(key)
    if found is not None:
        return found
    items = int(np.prod(dims.kept, dtype=np.int64)) * parts
    arguments: list[Any] = [None, None, np.int64(x._layout.offset)]
    if again:
        arguments.append(None)
    arguments += [np.int64(n) for n in (items, parts, count, -(-count // parts))]
    for numbers in dims:
        arguments += [np.int64(n) for n in numbers]
    source = _arg_source(better, x.dtype, len(dims.kept), len(dims.reduced), again)
    made: Launch = _launch.remember(
        device, key, _launch.launch(device, source, "arg", arguments, (items,), heavy_group(device, items))
    )
    return made


def _arg_source(better: str, dtype: DType, nk: int, nr: int, again: bool) -> str:
    parameters = ["__global long* out", f"__global const {C_TYPES[dtype]}* x", "idx start"]
    parameters += ["__global const long* candidates"] * again
    parameters += ["idx items", "idx parts", "idx count", "idx chunk"]
    parameters += [f"idx {name}{d}" for name, n in (("k", nk), ("sk", nk), ("r", nr), ("sr", nr)) for d in range(n)]
    wins = f"v {better} best"
    if dtype.kind == "f":
        wins = f"{wins} || (isnan(v) && !isnan(best))"
    at = " + ".join(f"q{d} * sr{d}" for d in range(nr))
    return "\n".join(
        (
            _codegen.header((dtype,), True),
            f"__kernel void arg({', '.join(parameters)}) {{",
            "  idx item = get_global_id(0);",
            "  if (item >= items) return;",
            "  idx j = item / parts, part = item % parts;",
            *_unravel("j", "j", "k", nk),
            *(f"  start += j{d} * sk{d};" for d in range(nk)),
            f"  {C_TYPES[dtype]} best = 0;",
            "  long where = -1;",
            "  for (idx i = part * chunk, end = min(i + chunk, count); i < end; i++) {",
            "    idx k = candidates[item * count + i];" if again else "    idx k = i;",
            "    if (k < 0) continue;" if again else "",
            *_unravel("k", "q", "r", nr),
            f"    {C_TYPES[dtype]} v = x[start + {at}];",
            f"    if (where < 0 || {wins}) {{",
            "      best = v;",
            "      where = k;",
            "    }",
            "  }",
            "  out[item] = where;",
            "}",
        )
    )
