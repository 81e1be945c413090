"""Tasks done by the Array API shims, compared with handwritten code for the underlying library.

The asv benchmarks time these tasks. To time them alternately in one process and print the ratios:

    python -m asv_benchmarks.shims [--seconds S] [TASKS …]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import click
import numpy as np

Call = Callable[[], Any]
SHIM = "shim"  # the name of the shim's way to do a task


class Task(NamedTuple):
    """A task: the ways to compute it, and how to wait for the result."""

    ways: dict[str, Call]
    finish: Call


# --------------------------------------------------------------------------------------------------- OpenCL

# Good kernels for CPUs; those for GPUs look different. Transposing tiles in registers or in private memory takes
# longer than the transposed addition below, whose groups read each line of `x` once.
_BY_HAND = """
#define ARRAYS __global float* restrict out, __global const float* restrict x, __global const float* restrict y

__kernel void multiply(ARRAYS) {
  size_t i = get_global_id(0);
  out[i] = x[i] * y[i];
}

__kernel void add(ARRAYS) {
  size_t i = get_global_id(0);
  out[i] = x[i] + y[i];
}

__kernel void add_transposed(ARRAYS, int n) {
  int column = get_global_id(0), row = get_global_id(1);
  out[row * n + column] = x[column * n + row] + y[row * n + column];
}

__kernel void sum_rows(__global float* restrict out, __global const float* restrict x, int n) {
  size_t row = get_global_id(0);
  float16 s = 0;
  for (int i = 0; i < n; i += 16) s += vload16(0, x + row * n + i);
  float8 s8 = s.lo + s.hi;
  float4 s4 = s8.lo + s8.hi;
  float2 s2 = s4.lo + s4.hi;
  out[row] = s2.x + s2.y;
}
"""
OPENCL_SHAPES = {"elementwise": (1 << 24,), "sum_rows": (4096, 4096), "add_transposed": (4096, 4096)}
OPENCL_CALL = 64  # elements


class _ByHand:
    """Handwritten kernels, on the shim's queue and with a memory pool like the shim's."""

    def __init__(self, device: Any) -> None:
        import pyopencl as cl
        from pyopencl.tools import ImmediateAllocator, MemoryPool

        self.queue = device.queue
        self.pool = MemoryPool(ImmediateAllocator(self.queue))
        self.program = cl.Program(self.queue.context, _BY_HAND).build()
        self.enqueue = cl.enqueue_nd_range_kernel
        self.kernel = lambda name: cl.Kernel(self.program, name)

    def new(self, *shape: int) -> Any:
        import pyopencl.array as cla

        return cla.empty(self.queue, shape, np.float32, allocator=self.pool)

    def launch(self, kernel: Any, size: tuple[int, ...], group: tuple[int, ...], *arguments: Any) -> None:
        kernel.set_args(*arguments)
        self.enqueue(self.queue, kernel, size, group)


@cache
def _opencl_device() -> Any:
    """Return the OpenCL device of the CPU."""
    try:
        import array_api_pyopencl as xp
    except ImportError as error:
        raise NotImplementedError(str(error)) from None
    for device in xp.__array_namespace_info__().devices():
        if device.is_cpu and device.cl_device.max_work_group_size >= 4096:
            return device
    raise NotImplementedError("no OpenCL device is a processor with groups of 4096 work-items")


def _normal(number: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).standard_normal(shape, dtype=np.float32)


@lru_cache(1)  # asv asks before every sample
def opencl_task(name: str) -> Task:
    """Return one of `OPENCL_SHAPES`, by the shim and by hand."""
    import array_api_pyopencl as xp

    device = _opencl_device()
    hand = _ByHand(device)
    shape = OPENCL_SHAPES[name]
    hosts = [_normal(i, *shape) for i in range(3)]
    x, y, z = (xp.asarray(host, device=device) for host in hosts)
    a, b, c = (array.cl_array.base_data for array in (x, y, z))

    def elementwise() -> Any:
        product, result = hand.new(*shape), hand.new(*shape)
        hand.launch(multiply, shape, (4096,), product.data, a, b)
        hand.launch(add, shape, (4096,), result.data, product.data, c)
        return result

    def sum_rows() -> Any:
        result = hand.new(shape[0])
        hand.launch(rows, shape[:1], (64,), result.data, a, np.int32(shape[1]))
        return result

    def add_transposed() -> Any:
        result = hand.new(*shape)
        hand.launch(transposed, shape, (256, 16), result.data, a, b, np.int32(shape[1]))
        return result

    multiply, add, rows, transposed = map(hand.kernel, ("multiply", "add", "sum_rows", "add_transposed"))
    pairs = {
        "elementwise": (lambda: x * y + z, elementwise, lambda h: h[0] * h[1] + h[2]),
        "sum_rows": (lambda: xp.sum(x, axis=-1), sum_rows, lambda h: h[0].sum(-1)),
        "add_transposed": (lambda: x.T + y, add_transposed, lambda h: h[0].T + h[1]),
    }
    shim, by_hand, expected = pairs[name]
    np.testing.assert_allclose(shim().numpy(), expected(hosts), atol=1e-3)
    np.testing.assert_allclose(by_hand().get(), expected(hosts), atol=1e-3)
    return Task({SHIM: shim, "by hand": by_hand}, device.queue.finish)


def opencl_call() -> Task:
    """Return an addition so small that its time is that of a call, by the shim and by PyOpenCL itself."""
    import array_api_pyopencl as xp

    device = _opencl_device()
    hand = _ByHand(device)
    host = _normal(0, OPENCL_CALL)
    x, y = (xp.asarray(host, device=device) for _ in range(2))
    a, b = x.cl_array.base_data, y.cl_array.base_data
    size = (OPENCL_CALL,)
    called, prepared, least = (hand.kernel("add") for _ in range(3))

    def kernel_call() -> Any:
        result = hand.new(OPENCL_CALL)
        called(hand.queue, size, size, result.data, a, b)
        return result

    def set_args() -> Any:
        result = hand.new(OPENCL_CALL)
        hand.launch(prepared, size, size, result.data, a, b)
        return result

    def buffer_only() -> Any:
        buffer = hand.pool.allocate(host.nbytes)
        least(hand.queue, size, size, buffer, a, b)
        return buffer

    for result in (xp.add(x, y).numpy(), kernel_call().get(), set_args().get()):
        np.testing.assert_array_equal(result, host + host)
    ways = {
        SHIM: lambda: xp.add(x, y),
        "operator": lambda: x + y,
        "kernel(queue, …)": kernel_call,
        "set_args": set_args,
        "buffer, no array": buffer_only,
    }
    return Task(ways, device.queue.finish)


# ------------------------------------------------------------------------------------------------------ MLX

MLX_CALLS = ("add", "operator", "scalar", "exp", "sum", "mean", "matmul", "index", "where", "reshape", "astype")


def mlx_call(name: str) -> Task:
    """Return one of `MLX_CALLS` on small arrays, by the shim and by MLX. Nothing is computed because MLX is lazy."""
    try:
        import mlx.core as mx

        import array_api_mlx as xp
    except ImportError as error:
        raise NotImplementedError(str(error)) from None
    x, y = xp.asarray(_normal(0, 8, 8)), xp.asarray(_normal(1, 8, 8))
    mask = x > y
    a, b, m = x.mlx, y.mlx, mask.mlx
    pairs = {
        "add": (lambda: xp.add(x, y), lambda: mx.add(a, b)),
        "operator": (lambda: x + y, lambda: a + b),
        "scalar": (lambda: x + 1.0, lambda: a + 1.0),
        "exp": (lambda: xp.exp(x), lambda: mx.exp(a)),
        "sum": (lambda: xp.sum(x, axis=-1), lambda: mx.sum(a, axis=-1)),
        "mean": (lambda: xp.mean(x, axis=-1), lambda: mx.mean(a, axis=-1)),
        "matmul": (lambda: xp.matmul(x, y), lambda: mx.matmul(a, b)),
        "index": (lambda: x[1:, ::2], lambda: a[1:, ::2]),
        "where": (lambda: xp.where(mask, x, y), lambda: mx.where(m, a, b)),
        "reshape": (lambda: xp.reshape(x, (64,)), lambda: mx.reshape(a, (64,))),
        "astype": (lambda: xp.astype(x, xp.float16), lambda: a.astype(mx.float16)),
    }
    shim, raw = pairs[name]
    np.testing.assert_allclose(np.asarray(shim()), np.asarray(raw()), rtol=1e-6)
    return Task({SHIM: shim, "mlx.core": raw}, lambda: None)


# ----------------------------------------------------------------------------------------------- the command


class Times(NamedTuple):
    """Seconds per call."""

    least: float
    median: float


def in_turns(task: Task, seconds: float, calls: int, *, waits: bool) -> dict[str, Times]:
    """Time the ways to do a task alternately, `calls` at a time; with `waits`, wait for each call."""
    samples: dict[str, list[float]] = {way: [] for way in task.ways}
    for call in task.ways.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for way, call in task.ways.items():
            task.finish()
            start = time.perf_counter()
            for _ in range(calls):
                call()
                if waits:
                    task.finish()
            samples[way].append((time.perf_counter() - start) / calls)
    return {way: Times(min(times), statistics.median(times)) for way, times in samples.items()}


def _print(name: str, times: dict[str, Times], unit: float) -> None:
    """Print a line for each way: its time, and the ratio and the difference of the shim's time to it."""
    shim = times[SHIM]
    for way, t in times.items():
        line = f"{name:32} {way:18} {t.least / unit:9.2f} {t.median / unit:9.2f}"
        if way != SHIM:
            line += f"   x{shim.least / t.least:5.2f}  x{shim.median / t.median:5.2f}"
            line += f"  {(shim.least - t.least) / unit:+8.2f}"
        click.echo(line)


def _opencl_work(name: str, seconds: float) -> None:
    _print(f"opencl {name} (ms)", in_turns(opencl_task(name), seconds, 1, waits=True), 1e-3)


def _opencl_call(seconds: float) -> None:
    task = opencl_call()
    _print("opencl call (µs)", in_turns(task, seconds / 2, 20, waits=False), 1e-6)
    _print("opencl call, finished (µs)", in_turns(task, seconds / 2, 20, waits=True), 1e-6)


def _mlx_calls(seconds: float) -> None:
    for name in MLX_CALLS:
        _print(f"mlx {name} (µs)", in_turns(mlx_call(name), seconds / len(MLX_CALLS), 30, waits=False), 1e-6)


PARTS: dict[str, Callable[[float], None]] = {
    **{name: partial(_opencl_work, name) for name in OPENCL_SHAPES},
    "call": _opencl_call,
    "mlx": _mlx_calls,
}


@click.command()
@click.argument("tasks", nargs=-1, type=click.Choice(list(PARTS)))
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=3.0, show_default=True)
def main(tasks: tuple[str, ...], seconds: float) -> None:
    """Time the shims against handwritten code, each of TASKS (all by default) for that many seconds."""
    click.echo(f"{'':51} {'least':>9} {'median':>9}   shim / it: least, median; least difference")
    for name in tasks or PARTS:
        try:
            PARTS[name](seconds)
        except NotImplementedError as error:
            click.echo(f"{name}: {error}")


if __name__ == "__main__":
    main()
