"""Gradients on torch tensors and JAX arrays in host memory: a call and its derivative, and the library's own functions.

    python -m asv_benchmarks.bench_gradients [--threads N] [--seconds S] [--library torch|jax] [--memory] [OPERATORS …]

prints ratios of the median times of alternating calls in one process: above 1, ours is faster. A call on JAX is a
jitted program.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np

import tensorops as tp
from tensorops.kernels.cpu import _native

SHAPES = ((1, 4096), (128, 4096), (2048, 4096))
DTYPES = ("float32", "bfloat16")
ATTENTION = "attention, causal"
ATTENTION_SHAPE = (1, 8, 1024, 64)
OURS: dict[str, Callable[..., Any]] = {
    "relu": tp.relu,
    "sigmoid": tp.sigmoid,
    "silu": tp.silu,
    "gelu": tp.gelu,
    "gelu_tanh": lambda x: tp.gelu(x, approximate="tanh"),
    "swiglu": tp.swiglu,
    "softmax": tp.softmax,
    "log_softmax": tp.log_softmax,
    "rms_norm": tp.rms_norm,
    "layer_norm": tp.layer_norm,
    "rope": lambda x, positions: tp.rope(x, positions),
    "cross_entropy": tp.cross_entropy,
    ATTENTION: lambda q, k, v: tp.scaled_dot_product_attention(q, k, v, is_causal=True),
}


def numbers(name: str, shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """Return an operator's arrays; those of float32 are differentiated."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape, dtype=np.float32)
    if name == "cross_entropy":
        return [x, rng.integers(0, shape[-1], shape[0])]
    if name == "rope":
        return [x.reshape(shape[0], -1, 64).swapaxes(0, 1)[None].copy(), np.arange(shape[0])]
    more = {"swiglu": [shape], "rms_norm": [shape[-1:]], "layer_norm": [shape[-1:]] * 2, ATTENTION: [shape] * 2}
    return [x, *(rng.standard_normal(s, dtype=np.float32) for s in more.get(name, []))]


def of_torch(name: str, shape: tuple[int, ...], dtype: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return our call with its derivative on tensors, and that of torch's own function."""
    import torch
    from torch.nn import functional as own

    def rotated(x: Any, positions: Any) -> Any:
        half = x.shape[-1] // 2
        angles = positions[:, None] * 10000.0 ** (-torch.arange(half) / half)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x[..., :half], x[..., half:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    theirs: dict[str, Callable[..., Any]] = {
        "relu": own.relu,
        "sigmoid": torch.sigmoid,
        "silu": own.silu,
        "gelu": own.gelu,
        "gelu_tanh": lambda x: own.gelu(x, approximate="tanh"),
        "swiglu": lambda gate, up: own.silu(gate) * up,
        "softmax": lambda x: own.softmax(x, -1),
        "log_softmax": lambda x: own.log_softmax(x, -1),
        "rms_norm": lambda x, w: own.rms_norm(x, w.shape, w, 1e-6),
        "layer_norm": lambda x, w, b: own.layer_norm(x, w.shape, w, b),
        "rope": rotated,
        "cross_entropy": own.cross_entropy,
        ATTENTION: lambda q, k, v: own.scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    arrays = [torch.from_numpy(a) for a in numbers(name, shape)]
    given = [a.to(getattr(torch, dtype)).requires_grad_() if a.is_floating_point() else a for a in arrays]
    moving = [a for a in given if a.requires_grad]
    with torch.no_grad():
        results = OURS[name](*given), theirs[name](*given)
        torch.testing.assert_close(*results, rtol=0.05, atol=0.05)
        cotangent = torch.randn(results[0].shape).to(results[0].dtype)

    def call(of: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(of(*given), moving, cotangent)

    return call(OURS[name]), call(theirs[name])


def of_jax(name: str, shape: tuple[int, ...], dtype: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return our call with its derivative on JAX arrays, jitted, and that of JAX's own function or plain formula."""
    import jax
    import jax.numpy as jnp

    def rms_norm(x: Any, w: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6) * w).astype(x.dtype)

    def layer_norm(x: Any, w: Any, b: Any) -> Any:
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        return (centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w + b).astype(x.dtype)

    def rotated(x: Any, positions: Any) -> Any:
        half = x.shape[-1] // 2
        angles = positions[:, None] * 10000.0 ** (-jnp.arange(half) / half)
        cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
        first, second = x[..., :half], x[..., half:]
        return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), -1)

    def cross_entropy(x: Any, targets: Any) -> Any:
        logs = jax.nn.log_softmax(x.astype(jnp.float32))
        return -jnp.take_along_axis(logs, targets[:, None], -1).mean().astype(x.dtype)

    def attention(q: Any, k: Any, v: Any) -> Any:
        moved = (a.swapaxes(1, 2) for a in (q, k, v))
        return jax.nn.dot_product_attention(*moved, is_causal=True).swapaxes(1, 2)

    theirs: dict[str, Callable[..., Any]] = {
        "relu": jax.nn.relu,
        "sigmoid": jax.nn.sigmoid,
        "silu": jax.nn.silu,
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "gelu_tanh": jax.nn.gelu,
        "swiglu": lambda gate, up: jax.nn.silu(gate) * up,
        "softmax": jax.nn.softmax,
        "log_softmax": jax.nn.log_softmax,
        "rms_norm": rms_norm,
        "layer_norm": layer_norm,
        "rope": rotated,
        "cross_entropy": cross_entropy,
        ATTENTION: attention,
    }
    arrays = [jnp.asarray(a) for a in numbers(name, shape)]
    given = [a.astype(dtype) if a.dtype == jnp.float32 else a for a in arrays]
    places = [i for i, a in enumerate(arrays) if a.dtype == jnp.float32]
    results = OURS[name](*given), theirs[name](*given)
    np.testing.assert_allclose(*(np.asarray(y, np.float64) for y in results), rtol=0.05, atol=0.05)
    cotangent = jax.random.normal(jax.random.key(0), results[0].shape).astype(results[0].dtype)

    def call(of: Callable[..., Any]) -> Callable[[], Any]:
        def gradients(cotangent: Any, *given: Any) -> Any:
            moving = [given[i] for i in places]

            def of_moving(*moved: Any) -> Any:
                return of(*(dict(enumerate(given)) | dict(zip(places, moved, strict=True))).values())

            y, pull = jax.vjp(of_moving, *moving)
            return y, pull(cotangent)

        compiled = jax.jit(gradients)
        return lambda: jax.block_until_ready(compiled(cotangent, *given))

    return call(OURS[name]), call(theirs[name])


LIBRARIES = {"torch": of_torch, "jax": of_jax}


def usual(
    calls: Sequence[Callable[[], Any]], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the median time of each, of calls that alternate for some seconds and at least five times.

    Not the least: JAX hands many programs to a thread of its own, which is rarely awake when one comes.
    """
    for call in calls:
        for _ in range(3):  # what is compiled is compiled again for shapes that change
            call()
    found: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while len(found[0]) < 5 or time.perf_counter() < end:
        for i, call in enumerate(calls):
            begin = clock()
            call()
            found[i].append(clock() - begin)
    return list(map(statistics.median, found))


def peak(call: Callable[[], Any]) -> float:
    """Return how many MB a call holds at most beyond what the process holds before it, on Linux."""

    def held(field: str) -> int:
        return int(Path("/proc/self/status").read_text(encoding="ascii").split(f"{field}:")[1].split()[0])

    call()
    found = []
    for _ in range(3):
        gc.collect()
        tp.empty_cache()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
        before = held("VmRSS")
        call()
        found.append(held("VmHWM") - before)
    return min(found) / 1000


class Gradient:
    """A call with its derivative, for asv."""

    params = (list(LIBRARIES), list(OURS), list(DTYPES), ["tensorops", "own"])
    param_names = ("library", "operator", "dtype", "function")

    def setup(self, library: str, operator: str, dtype: str, function: str) -> None:
        shape = ATTENTION_SHAPE if operator == ATTENTION else SHAPES[1]
        try:
            calls = LIBRARIES[library](operator, shape, dtype)
        except ImportError as error:
            raise NotImplementedError(str(error)) from None
        self.call = calls[function == "own"]
        self.call()

    def time_gradient(self, library: str, operator: str, dtype: str, function: str) -> None:
        self.call()


@click.command()
@click.option("--threads", default=1, show_default=True)
@click.option("--seconds", default=0.5, show_default=True, help="For each row.")
@click.option("--library", type=click.Choice(list(LIBRARIES)), default="torch", show_default=True)
@click.option("--memory", is_flag=True, help="The memory that a call needs, not its time.")
@click.argument("operators", nargs=-1, type=click.Choice(list(OURS)))
def main(threads: int, seconds: float, library: str, memory: bool, operators: tuple[str, ...]) -> None:
    """Print the library's time, or memory, divided by ours."""
    from rich.console import Console
    from rich.table import Table

    if library == "torch":
        import torch

        torch.set_num_threads(threads)
    elif threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    _native.set_num_threads(threads)
    shapes = SHAPES[1:] if memory else SHAPES  # a small call's memory is less than what the process takes at once
    columns = [f"{shape}, {dtype}" for shape in shapes for dtype in DTYPES]
    title = f"{library}'s {'memory' if memory else 'time'} of a call and its derivative, divided by ours"
    table = Table("operator", *columns, title=title)
    ratios = []
    for name in operators or OURS:
        cells = []
        for shape in shapes if name != ATTENTION else (ATTENTION_SHAPE,):
            for dtype in DTYPES:
                calls = LIBRARIES[library](name, shape, dtype)
                ours, own = map(peak, calls) if memory else usual(calls, seconds)
                ratios.append(own / ours)
                cells.append(f"{own / ours:.2f}" + (f" of {ours:.0f} MB" if memory else ""))
        table.add_row(name if name != ATTENTION else f"{name} {ATTENTION_SHAPE}", *cells)
    console = Console(width=160)
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", library))
    console.print(f"{platform.machine()}, {threads} of {os.cpu_count()} processors; {versions}")
    console.print(table)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    console.print(f"geometric mean {mean:.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
