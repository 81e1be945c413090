"""What a call of an OpenCL kernel costs in Python beside the launch itself, on 64 elements.

    python -m asv_benchmarks.bench_opencl [SECONDS]

prints the same, timed in turns in one process.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np

import tensorops

from .shims import Task, in_turns

LAUNCH = "launch"


def launches() -> Task:
    """Return `rms_norm` on 64 elements, as users call it and as nothing but a launch of the same kernel."""
    try:
        import pyopencl as cl
        import pyopencl.array as cla

        import array_api_pyopencl as xp
        from tensorops.kernels._gpu import sources
    except ImportError as error:
        raise NotImplementedError(str(error)) from None
    if not xp.devices():
        raise NotImplementedError("there is no OpenCL device")
    device = xp.default_device()
    queue = device.queue
    host = np.linspace(-1.0, 1.0, 64, dtype=np.float32).reshape(1, 64)
    x, w = cla.to_device(queue, host), cla.to_device(queue, np.ones(64, np.float32))
    wrapped = (xp.asarray(x), xp.asarray(w))
    queue.finish()
    defines = {"X": "f32", "WEIGHT": "f32", "HAS_WEIGHT": 1, "DOUBLE": 0, "DENSE": 1, "ROW_DIMS": 1, "WARP": 0}
    defines |= {"THREADS": 1, "ROWS": 1, "VEC": 16, "KEPT": 0}
    kernel = cl.Kernel(device.program(sources.program("rms_norm", tuple(defines.items()), "opencl.h")), "rms_norm")
    row = [np.int64(k) for k in (0, 1, 64, 0, 0)]  # start, step, and the distances of rows
    shape = [np.int32(64), np.int64(1), np.int64(1), np.int64(1), np.int64(1)]
    y = device.pool.allocate(host.nbytes)
    numbers = (np.float32(1e-6), np.float32(0))
    kernel.set_args(x.base_data, *row, w.base_data, *row[:2], *row[3:], row[3], y, *row, *shape, *numbers)
    slots = (0, 6, 12)
    set_buffers = getattr(kernel, "_set_arg_multi", None) or (
        lambda a: [kernel.set_arg(*a[i : i + 2]) for i in (0, 2, 4)]
    )

    def launch() -> Any:
        made = device.pool.allocate(host.nbytes)
        set_buffers((slots[0], x.base_data, slots[1], w.base_data, slots[2], made))
        cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
        return made

    made = np.empty_like(host)
    cl.enqueue_copy(queue, made, launch())
    np.testing.assert_allclose(tensorops.rms_norm(x, w).get(), made, rtol=1e-5)
    ways = {
        LAUNCH: launch,
        "wrappers": partial(tensorops.rms_norm, *wrapped),
        "raw arrays": partial(tensorops.rms_norm, x, w),
        "PyOpenCL's own x + x": lambda: x + x,
    }
    return Task(ways, queue.finish)


class Launch:
    """The operator on arrays of `array_api_pyopencl` and of PyOpenCL, beside the bare launch."""

    params = ([LAUNCH, "wrappers", "raw arrays", "PyOpenCL's own x + x"],)
    param_names = ("way",)

    def setup(self, way):
        made = launches()
        self.call, self.finish = made.ways[way], made.finish
        self.call()

    def time_call(self, way):
        self.call()

    def teardown(self, way):
        if hasattr(self, "finish"):
            self.finish()


if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    times = in_turns(launches(), seconds, 100, waits=False)
    for way, t in times.items():
        more = f"{(t.least - times[LAUNCH].least) * 1e6:+8.2f}" if way != LAUNCH else ""
        print(f"{way:24} {t.least * 1e6:8.2f} µs {more}")  # noqa: T201
