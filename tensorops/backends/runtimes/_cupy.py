"""CuPy: the current GPU and its default memory pool."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tensorops.backends.devices import ConfigurationError, CUDAConfig, DeviceConfig, enter_gpu
from tensorops.backends.runtimes._base import Change, DeviceFacts, MemoryStats, Runtime

_ROUNDING = 512  # CuPy's pool allocates in multiples of it
_TF32_SINCE = 80  # compute capability 8.0


class CupyRuntime(Runtime):
    """The GPU that is current in the calling thread, and CuPy's default memory pool on it.

    CUDA has one current device for each thread. Other devices are left alone: asking about one would start it.
    """

    @property
    def loaded(self) -> bool:
        """Whether CuPy has been imported into this process and has a GPU: other libraries import it without one."""
        return super().loaded and bool(sys.modules["cupy"].is_available())

    def do_facts(self) -> DeviceFacts:
        import cupy

        device = _current(cupy)
        properties = cupy.cuda.runtime.getDeviceProperties(device.id)
        name = properties["name"]
        return DeviceFacts(
            compute_capability=int(device.compute_capability),
            compute_units=properties["multiProcessorCount"],
            max_memory=properties["totalGlobalMem"],
            max_shared_memory=properties.get("sharedMemPerBlockOptin") or properties["sharedMemPerBlock"],
            device_count=cupy.cuda.runtime.getDeviceCount(),
            device_name=name.decode() if isinstance(name, bytes) else name,
            dtypes=self.held_dtypes(),
            versions=self.version()
            | {
                "cuda": _version(cupy.cuda.runtime.runtimeGetVersion()),
                "driver": _version(cupy.cuda.runtime.driverGetVersion()),
            },
        )

    def do_synchronize(self) -> None:
        import cupy

        _current(cupy).synchronize()

    def do_memory_stats(self) -> MemoryStats:
        import cupy

        device, pool = _current(cupy), cupy.get_default_memory_pool()
        return MemoryStats(
            self.name,
            f"cuda:{device.id}",
            in_use=pool.used_bytes(),
            cached=pool.free_bytes(),
            limit=pool.get_limit() or None,  # 0 stands for none
            total=cupy.cuda.runtime.memGetInfo()[1],
        )

    def do_empty_cache(self) -> int | None:
        import cupy

        _current(cupy)
        pool = cupy.get_default_memory_pool()
        before = pool.total_bytes()
        pool.free_all_blocks()
        return int(before - pool.total_bytes())

    def do_gauge(self) -> Callable[[], int | None]:
        import cupy

        device, pool = _current(cupy), cupy.get_default_memory_pool()

        def read() -> int:
            with device:  # of the thread that began, which the one that reads does not share
                return int(pool.used_bytes())

        return read

    def do_changes(self, config: DeviceConfig) -> Sequence[Change]:
        import cupy

        assert isinstance(config, CUDAConfig)
        count = cupy.cuda.runtime.getDeviceCount()
        if config.device >= count:
            raise ConfigurationError(f"device {config.device} does not exist; CUDA sees {count}, counted from 0")
        return (
            Change(
                "the current CUDA device",
                lambda: cupy.cuda.Device().id,
                lambda index: cupy.cuda.Device(index).use(),
                config.device,
            ),
            *_pool_changes(cupy, config),
            _precision_change(cupy, config),
        )


def _current(cupy: Any) -> Any:
    """Return the GPU of the calling thread; in a thread that tensorops meets for the first time, the configured one."""
    enter_gpu(lambda index: cupy.cuda.Device(index).use())
    return cupy.cuda.Device()


def _pool_changes(cupy: Any, config: CUDAConfig) -> list[Change]:
    pool, device = cupy.get_default_memory_pool(), cupy.cuda.Device(config.device)
    initial = None if config.pool_initial_bytes is None else -(-config.pool_initial_bytes // _ROUNDING) * _ROUNDING
    with device:
        held, total = pool.total_bytes(), cupy.cuda.runtime.memGetInfo()[1]
    limit = None if config.max_memory_fraction is None else int(config.max_memory_fraction * total)
    if initial is not None and initial > (total if limit is None else limit):
        bound = f"the device's {total} bytes" if limit is None else f"max_memory_fraction, which is {limit} bytes here"
        raise ConfigurationError(f"pool_initial_bytes of {initial} is more than {bound}")
    if not config.pool_growth:
        limit = initial
    if limit is not None and held > limit:
        raise ConfigurationError(f"CuPy's memory pool holds {held} bytes already, more than the limit of {limit}")
    if (limit, initial) != (None, None) and getattr(cupy.cuda.get_allocator(), "__self__", None) is not pool:
        raise ConfigurationError("the program has chosen another allocator than CuPy's default memory pool")

    def on_device(function: Callable[[], Any]) -> Any:
        with device:
            return function()

    def fill(full: bool) -> None:
        if full and initial is not None:
            pool.malloc(initial - pool.total_bytes())  # dropped at once, so that the pool keeps it
        else:
            pool.free_all_blocks()

    where = f"of CUDA device {config.device}"
    return [
        Change(
            f"the limit of the memory pool {where}",
            lambda: on_device(pool.get_limit),
            lambda size: on_device(lambda: pool.set_limit(size=size)),
            limit,
        ),
        Change(
            f"the initial size of the memory pool {where}",
            lambda: initial is not None and on_device(pool.total_bytes) >= initial,
            lambda full: on_device(lambda: fill(full)),
            None if initial is None else True,
        ),
    ]


def _precision_change(cupy: Any, config: CUDAConfig) -> Change:
    name = "CuPy's compute type for float32"
    if config.precision is None:
        return _compute_type(cupy, name, None)
    capability = int(cupy.cuda.Device(config.device).compute_capability)
    if config.precision == "tensorfloat32" and capability < _TF32_SINCE:
        has = f"{capability // 10}.{capability % 10}"
        raise ConfigurationError(f"precision 'tensorfloat32' needs compute capability 8.0, the device has {has}")
    return _compute_type(cupy, name, {"float32": "FP32", "tensorfloat32": "TF32"}[config.precision])


def _compute_type(cupy: Any, name: str, wanted: str | None) -> Change:
    try:
        from cupy._core import _routines_linalg as routines

        read, write = routines.get_compute_type, routines.set_compute_type
        value = None if wanted is None else getattr(routines, f"COMPUTE_TYPE_{wanted}")
    except (ImportError, AttributeError) as error:
        if wanted is None:
            return Change(name, lambda: None, lambda _: None, None)
        raise ConfigurationError("this version of CuPy has no way to set a precision that tensorops knows") from error
    float32 = cupy.dtype("float32")
    return Change(name, lambda: read(float32), lambda new: write(float32, new), value)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
