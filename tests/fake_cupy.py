"""A fake CuPy that records its calls: two GPUs of compute capability 9.0 and 7.5, and a memory pool.

It shows that the right functions are called with the right values, and nothing about a real GPU.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np

MIB = 1024 * 1024
TOTAL = 1000 * MIB


class Pool:
    """CuPy's memory pool: bytes used and free, a limit, and a record of requests."""

    def __init__(self, module: Any) -> None:
        self.module, self.used, self.free, self.used_on = module, 0, 0, None
        self.limits = {0: 0, 1: 0}

    def used_bytes(self) -> int:
        return self.used if self.used_on is None else self.used_on[self.module.current]

    def free_bytes(self) -> int:
        return self.free

    def total_bytes(self) -> int:
        return self.used + self.free

    def free_all_blocks(self) -> None:
        self.free = 0

    def get_limit(self) -> int:
        return self.limits[self.module.current]

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        assert fraction is None
        self.limits[self.module.current] = size

    def malloc(self, nbytes: int) -> object:
        limit = self.get_limit()
        if nbytes > self.module.memory or (limit and self.total_bytes() + nbytes > limit):
            raise MemoryError(f"out of memory allocating {nbytes} bytes")
        self.module.calls.append(("malloc", nbytes))
        self.free += nbytes
        return object()


def make() -> Any:
    """Return a module that looks like CuPy."""
    module: Any = types.ModuleType("cupy")
    module.__version__ = "99.1"
    module.current, module.calls, module.memory = 0, [], TOTAL
    module.capability = {0: "90", 1: "75"}
    module.pool = Pool(module)

    class Device:
        def __init__(self, index: int | None = None) -> None:
            self.id = module.current if index is None else index

        @property
        def compute_capability(self) -> str:
            return module.capability[self.id]

        def use(self) -> None:
            module.current = self.id

        def synchronize(self) -> None:
            module.calls.append(("synchronize", self.id))

        def __enter__(self) -> None:
            self.outer, module.current = module.current, self.id

        def __exit__(self, *_: object) -> None:
            module.current = self.outer

    runtime = types.SimpleNamespace(
        getDevice=lambda: module.current,
        getDeviceCount=lambda: 2,
        getDeviceProperties=lambda index: {
            "name": b"Fake H100",
            "multiProcessorCount": 132,
            "totalGlobalMem": TOTAL,
            "sharedMemPerBlock": 49152,
            "sharedMemPerBlockOptin": 232448,
        },
        runtimeGetVersion=lambda: 13000,
        driverGetVersion=lambda: 13010,
        memGetInfo=lambda: (TOTAL // 2, TOTAL),
    )
    module.allocator = module.pool.malloc
    module.streams = {0: 7000, 1: 7001}
    module.cuda = types.SimpleNamespace(
        Device=Device,
        runtime=runtime,
        get_allocator=lambda: module.allocator,
        get_current_stream=lambda: types.SimpleNamespace(ptr=module.streams[module.current]),
    )
    module.get_default_memory_pool = lambda: module.pool
    module.is_available = lambda: True
    module.dtype = np.dtype

    class Array(np.ndarray):
        """An array in host memory that says that it is on the device that was current when it was made."""

        on = 0

        def __array_finalize__(self, base: Any) -> None:
            self.on = getattr(base, "on", module.current)

        @property
        def data(self) -> Any:  # as CuPy has it
            return types.SimpleNamespace(ptr=self.ctypes.data, device_id=self.on)

    def empty(shape: Any, dtype: Any) -> Any:
        return np.empty(shape, dtype).view(Array)

    def asarray(a: Any) -> Any:
        if a.dtype.kind == "V":
            raise TypeError("no such dtype")
        return np.asarray(a).view(Array)

    module.ndarray, module.asarray, module.empty = Array, asarray, empty
    module.compute_types = {"float32": 0}
    routines = types.SimpleNamespace(
        COMPUTE_TYPE_FP32=4,
        COMPUTE_TYPE_TF32=7,
        get_compute_type=lambda dtype: module.compute_types[dtype.name],
        set_compute_type=lambda dtype, value: module.compute_types.update({dtype.name: value}),
    )
    module._core = types.ModuleType("cupy._core")
    module._core._routines_linalg = routines
    return module
