"""What copies take on an OpenCL device that is a processor, compared with operators that do little but move 32 MiB.

    python -m asv_benchmarks.opencl_copies [SECONDS]

times them alternately in one process. No kernel is faster than a copy of the bytes that it reads and writes, so the
last column is the most that any could gain over the operator's body.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np

import tensorops
from tensorops._operator import OPERATORS
from tensorops.benchmarks.workloads import SIZES, workload

from .shims import Task, in_turns

# Of as many bytes as a copy of one array moves, which are two
MOVES = dict.fromkeys(("relu", "leaky_relu", "embedding", "softmax", "log_softmax"), 1.0)
MOVES |= {"reglu": 1.5, "add_rms_norm": 2.0}
COPIES = ("copy, past the caches", "copy", "clEnqueueCopyBuffer")
BODY = "'s body"

_SOURCE = """
#define ARGUMENTS (const __global float* restrict x, __global float* restrict y, int n)
#define KERNEL __kernel __attribute__((vec_type_hint(float16))) __attribute__((reqd_work_group_size(1, 1, 1))) void
#define EACH_VECTOR for (long first = (long)get_group_id(0) * n, i = first; i < first + n; i += 16)
KERNEL copy ARGUMENTS { EACH_VECTOR vstore16(vload16(0, x + i), 0, y + i); }
KERNEL copy_past_caches ARGUMENTS {
#if __has_builtin(__builtin_nontemporal_store)
  EACH_VECTOR __builtin_nontemporal_store(vload16(0, x + i), (__global float16*)(y + i));
#else
  EACH_VECTOR vstore16(vload16(0, x + i), 0, y + i);
#endif
}
"""


def copies() -> Task:
    """Return copies of 32 MiB, and operators and their bodies."""
    import pyopencl as cl

    import array_api_pyopencl as xp

    device = xp.default_device()
    queue = device.queue
    rows, features = SIZES["large"]
    x = xp.asarray(np.linspace(-1, 1, rows * features, dtype=np.float32)).cl_array.base_data
    program = cl.Program(device.context, _SOURCE).build()
    groups = device.cl_device.max_compute_units * 8

    def copy(name: str) -> Any:
        y = device.pool.allocate(x.size)
        ready[name](queue, (groups,), (1,), x, y, np.int32(rows * features // groups))
        return y

    def copy_buffer() -> Any:
        y = device.pool.allocate(x.size)
        cl.enqueue_copy(queue, y, x)
        return y

    ready = {name: cl.Kernel(program, name) for name in ("copy", "copy_past_caches")}
    ways = dict(zip(COPIES, (partial(copy, "copy_past_caches"), partial(copy, "copy"), copy_buffer), strict=True))
    for name in MOVES:
        operator, work = OPERATORS[name], workload(name, rows, features)
        args = tensorops.to_backend(work.args, "opencl")
        if (kernel := operator.explain(*args).kernel) != "opencl":
            raise NotImplementedError(f"{name}: {kernel} computes")
        ways |= {name: partial(operator, *args), name + BODY: partial(operator.generic, *args)}
    return Task(ways, queue.finish)


if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 6.0
    times = in_turns(copies(), seconds, 4, waits=True)
    for way in COPIES:
        print(f"{way:24} {times[way].median * 1e3:6.2f} ms")  # noqa: T201
    least = min(times[way].median for way in COPIES)
    for name, moves in MOVES.items():
        kernel, body, copy = times[name].median, times[name + BODY].median, least * moves
        line = f"{name:24} {kernel * 1e3:6.2f} ms, {copy / kernel:4.0%} of a copy"
        print(f"{line}; body {body * 1e3:6.2f} ms, kernel x {body / kernel:4.2f}, copy x {body / copy:4.2f}")  # noqa: T201
