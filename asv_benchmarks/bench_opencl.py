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
        from array_api_pyopencl import _launch
        from tensorops.kernels._gpu import sources
        from tensorops.kernels._gpu.planners import PLANNERS
        from tensorops.kernels._gpu.plans import Operand
        from tensorops.kernels.opencl._launch import facts_of
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
    arrays = {"x": Operand("float32", (1, 64), (64, 1)), "weight": Operand("float32", (64,), (1,))}
    plan = PLANNERS[tensorops.rms_norm](facts_of(device), **arrays, eps=1e-6, axis=1, weight_offset=0.0)
    (planned,) = plan.launches
    text = sources.program(planned.source, tuple(planned.defines.items()), "opencl.h")
    numbers = [None if isinstance(argument, str) else argument for argument in planned.arguments]
    size = ((planned.groups * planned.block,), (planned.block,))
    ready = _launch.launch(device, text, planned.kernel, numbers, *size)
    at = dict(zip([name for name in planned.arguments if isinstance(name, str)], ready.buffers, strict=True))

    def launch() -> Any:
        made = device.pool.allocate(host.nbytes)
        ready.set_buffers((at["x"], x.base_data, at["weight"], w.base_data, at["y"], made))
        cl.enqueue_nd_range_kernel(queue, ready.kernel, *size)
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
