"""Matrix products: one launch for a whole batch, whatever the strides.

A work-item computes a tile of the result, a few rows by one vector of columns, if the rows of the second matrix are
contiguous; or some dot products, if both operands are contiguous along the summed dimension and there are few rows;
or one element.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from array_api_pyopencl import _calls, _codegen, _dtypes, _launch, _layout, _registered as _objects
from array_api_pyopencl._devices import Device
from array_api_pyopencl._dtypes import C_TYPES, DType
from array_api_pyopencl._expressions import convert, library
from array_api_pyopencl._launch import Launch, Plan
from array_api_pyopencl._layout import Layout

_VECTOR = 16
_FEW_ROWS = 8


def matmul(x1: Any, x2: Any) -> _objects.Array:
    """Return the matrix product, see `array_api_pyopencl.matmul`."""
    _, (a, b) = _calls.meet("matmul", x1, x2)
    for x in (a, b):
        if not isinstance(x, _objects.Array):
            raise TypeError("matmul needs arrays, not scalars")
        if x.ndim == 0:
            raise ValueError("matmul needs arrays of one dimension or more")
    left, right = a.ndim == 1, b.ndim == 1
    if left:
        a = a._view((1, *a.shape), (0, *a._layout.strides))
    if right:
        b = b._view((*b.shape, 1), (*b._layout.strides, 0))
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul: shapes {x1.shape} and {x2.shape} do not match")
    result = product("matmul", a, b)
    shape = result.shape
    drop = shape[: len(shape) - 2] + (() if left else (shape[-2],)) + (() if right else (shape[-1],))
    return result._view(drop, _layout.contiguous_strides(drop)) if left or right else result


def product(name: str, a: Any, b: Any, conjugate: bool = False) -> _objects.Array:
    """Return the product of matrices of matching shapes; optionally of ``conj(a)`` and ``b``."""
    if "b" in (a.dtype.kind, b.dtype.kind):
        raise TypeError(f"{name} is not defined for bool")
    dtype = _dtypes.promote(a.dtype, b.dtype)
    rows, columns = a.shape[-2], b.shape[-1]
    if rows >= _FEW_ROWS and columns >= _VECTOR and b._layout.strides[-1] != 1 and dtype.kind != "c":
        b = _calls.convert(b, dtype)  # worth a copy, because each of its rows is read many times
    device = a._device
    key = ("product", a._layout, b._layout, conjugate)
    plan = device.plans.get(key)
    if plan is None:
        plan = _launch.remember(device, key, _plan(device, a._layout, b._layout, dtype, conjugate))
    buffer = device.allocate(plan.layout.nbytes)
    plan.launch.run(device, buffer, a._buffer, b._buffer)
    return _objects.Array(buffer, plan.layout, device)


class _Source(NamedTuple):
    a: DType
    b: DType
    dtype: DType
    rows: int  # of a tile
    batch: int  # dimensions
    conjugate: bool


def _plan(device: Device, a: Layout, b: Layout, dtype: DType, conjugate: bool) -> Plan:
    device.require(dtype)
    batch = _layout.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    out = _layout.contiguous(dtype, (*batch, m, n))
    lengths, strides = _layout.collapse(
        batch,
        _layout.broadcast_strides(a.shape[:-2], a.strides[:-2], batch),
        _layout.broadcast_strides(b.shape[:-2], b.strides[:-2], batch),
    )
    (am, ak), (bk, bn) = a.strides[-2:], b.strides[-2:]
    source = _Source(a.dtype, b.dtype, dtype, 8 if m >= 8 else 4 if m >= 4 else 1, len(lengths), conjugate)
    count = out.size // (m * n) if m and n else 0
    if dtype.kind != "c" and bn == 1 and n >= _VECTOR:
        text = _tile_source(source)
        size = (-(-n // _VECTOR), -(-m // source.rows), count)
    elif dtype.kind != "c" and ak == 1 and bk == 1 and k >= _VECTOR:
        text = _dot_source(source)
        size = (n, m, count)
    else:
        text = _plain_source(source)
        size = (n, m, count)
    numbers = (a.offset, b.offset, m, n, k, am, ak, bk, bn, *lengths, *strides[0], *strides[1])
    arguments = [None, None, None, *(np.int64(v) for v in numbers)]
    return Plan(_made(device, text, arguments, size), out, None)


def _made(device: Device, text: str, arguments: list[Any], size: tuple[int, int, int]) -> Launch:
    if device.is_cpu:
        group = (8 if size[0] >= 64 else 1, 1, 1)
    else:
        group = (min(16, device.work_group), min(4, max(device.work_group // 16, 1)), 1)
    return _launch.launch(device, text, "product", arguments, size, group)


def _head(source: _Source) -> str:
    """Return the kernel's head, up to where its batch's matrices start."""
    parameters = [f"__global {C_TYPES[source.dtype]}* out"]
    parameters += [f"__global const {C_TYPES[d]}* {name}" for name, d in (("a", source.a), ("b", source.b))]
    parameters += [f"long {name}" for name in ("start_a", "start_b", "m", "n", "k", "am", "ak", "bk", "bn")]
    parameters += [f"long {name}{d}" for name in ("l", "sa", "sb") for d in range(source.batch)]
    lines = [
        _codegen.header((source.a, source.b, source.dtype), True),
        library("c_mul" if source.dtype.kind == "c" else "", source.dtype),
        f"__kernel void product({', '.join(parameters)}) {{",
        "  long column = get_global_id(0), row = get_global_id(1), batch = get_global_id(2);",
        "  a += start_a;",
        "  b += start_b;",
        "  out += batch * m * n;",
    ]
    for d in range(source.batch - 1, -1, -1):
        lines += [
            f"  a += batch % l{d} * sa{d};",
            f"  b += batch % l{d} * sb{d};",
            f"  batch /= l{d};",
        ]
    return "\n".join(lines)


def _accumulator(dtype: DType) -> DType:
    return _dtypes.float32 if dtype == _dtypes.float16 else dtype


def _plain_source(source: _Source) -> str:
    acc = _accumulator(source.dtype)
    t = C_TYPES[acc]
    x = f"(({t})(x.x, -x.y))" if source.conjugate and acc.kind == "c" else "x"
    multiplied = f"c_mul({x}, y)" if acc.kind == "c" else "x * y"
    return f"""{_head(source)}
  if (column >= n || row >= m) return;
  {t} sum = 0;
  for (long i = 0; i < k; i++) {{
    {t} x = {convert("a[row * am + i * ak]", source.a, acc)};
    {t} y = {convert("b[i * bk + column * bn]", source.b, acc)};
    sum += {multiplied};
  }}
  out[row * n + column] = {convert("sum", acc, source.dtype)};
}}
"""


def _loaded(name: str, at: str, dtype: DType, acc: DType) -> str:
    text = f"vload{_VECTOR}(0, {name} + {at})"
    return text if dtype == acc else f"convert_{C_TYPES[acc]}{_VECTOR}({text})"


def _dot_source(source: _Source) -> str:
    acc = _accumulator(source.dtype)
    t = C_TYPES[acc]
    x, y = _loaded("a", "i", source.a, acc), _loaded("b", "i", source.b, acc)
    multiplied = f"fma({x}, {y}, sums)" if acc.kind == "f" else f"sums + {x} * {y}"
    total = " + ".join(f"sums.s{digit}" for digit in "0123456789abcdef")
    return f"""{_head(source)}
  if (column >= n || row >= m) return;
  a += row * am;
  b += column * bn;
  {t}{_VECTOR} sums = 0;
  long i = 0;
  for (; i + {_VECTOR} <= k; i += {_VECTOR}) {{
    sums = {multiplied};
  }}
  {t} sum = {total};
  for (; i < k; i++) sum += {convert("a[i]", source.a, acc)} * {convert("b[i]", source.b, acc)};
  out[row * n + column] = {convert("sum", acc, source.dtype)};
}}
"""


def _tile_source(source: _Source) -> str:
    acc = _accumulator(source.dtype)
    t = C_TYPES[acc]
    rows = range(source.rows)
    scalar = convert("a{r}[i * ak]", source.a, acc)
    stored = "sum{r}" if acc == source.dtype else f"convert_{C_TYPES[source.dtype]}{_VECTOR}(sum{{r}})"

    # Floating-point vectors use a fused multiply-add, where the device has one.
    spread = f"({t}{_VECTOR})({scalar})"
    multiplied = f"fma({spread}, y, sum{{r}})" if acc.kind == "f" else f"sum{{r}} + {spread} * y"

    def each(text: str) -> str:
        return "\n".join(text.replace("{r}", str(r)) for r in rows)

    return f"""{_head(source)}
  column *= {_VECTOR};
  row *= {source.rows};
  if (column >= n || row >= m) return;
{each(f"  __global const {C_TYPES[source.a]}* a{{r}} = a + min(row + {{r}}, m - 1) * am;")}
  if (column + {_VECTOR} <= n) {{
{each(f"    {t}{_VECTOR} sum{{r}} = 0;")}
    for (long i = 0; i < k; i++) {{
      {t}{_VECTOR} y = {_loaded("b", "i * bk + column", source.b, acc)};
{each(f"      sum{{r}} = {multiplied};")}
    }}
{each(f"    if (row + {{r}} < m) vstore{_VECTOR}({stored}, 0, out + (row + {{r}}) * n + column);")}
    return;
  }}
  for (; column < n; column++) {{
{each(f"    {t} sum{{r}} = 0;")}
    for (long i = 0; i < k; i++) {{
      {t} y = {convert("b[i * bk + column]", source.b, acc)};
{each(f"      sum{{r}} += {scalar} * y;")}
    }}
{each(f"    if (row + {{r}} < m) out[(row + {{r}}) * n + column] = {convert('sum{r}', acc, source.dtype)};")}
  }}
}}
"""
