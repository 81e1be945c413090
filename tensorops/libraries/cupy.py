"""CuPy: transfers, the current GPU and its default memory pool."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorops.libraries._options import (
    FLAG,
    FRACTION,
    INDEX,
    SOME_BYTES,
    ConfigurationError,
    DeviceConfig,
    one_of,
    option,
)
from tensorops.libraries._rows import NOT_WRITTEN, Backend, Library, planned
from tensorops.libraries._runtime import Change, DeviceFacts, MemoryStats, Runtime
from tensorops.typing import Array

if TYPE_CHECKING:
    import numpy as np


def _to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import cupy
    import numpy as np

    return np.asarray(cupy.asnumpy(x))


def _from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    import cupy

    if device is None:
        _enter_gpu(cupy)  # later calls in this thread compute there as well
    with contextlib.nullcontext() if device is None else device:
        return cupy.asarray(a)


LIBRARY = Library(
    name="cupy",
    packages=("cupy",),
    array_type="cupy:ndarray",
    standard="array_api_compat.cupy",
    to_numpy=_to_numpy,
    from_numpy=_from_numpy,
    runtime="tensorops.libraries.cupy:CupyRuntime",
    device=lambda x: x.device,
    extra="cuda",
)


@dataclass(frozen=True)
class CUDAConfig(DeviceConfig):
    """Options of an NVIDIA GPU and of CuPy's default memory pool on it.

    Parameters
    ----------
    device : int, default 0
        The index of the GPU. CUDA has one current device per thread: this sets that of the calling thread, and that of
        every other thread when tensorops first uses CuPy there. After that the program may choose another one.
    pool_initial_bytes : int, optional
        The memory that the pool allocates at once.
    pool_growth : bool, default True
        Whether the pool may grow beyond `pool_initial_bytes`.
    max_memory_fraction : float, optional
        The maximum fraction of the device's memory for the pool.
    precision : {'float32', 'tensorfloat32'}, optional
        The precision of float32 matrix products in CuPy; ``'tensorfloat32'`` keeps 10 bits of each factor's fraction
        and needs compute capability 8.0.
    fp8 : bool, default False
        Whether to compute in 8-bit floating point. No kernel of this version does, so ``True`` is refused.

    Raises
    ------
    TypeError, ValueError
        If a value is not valid; the message names it and what is expected.

    Examples
    --------
    >>> from tensorops import CUDAConfig
    >>> CUDAConfig(max_memory_fraction=0.5).device
    0
    """

    device: int = option(INDEX, 0)
    pool_initial_bytes: int | None = option(SOME_BYTES)
    pool_growth: bool = option(FLAG, True)
    max_memory_fraction: float | None = option(FRACTION)
    precision: str | None = option(one_of("float32", "tensorfloat32"))
    fp8: bool = option(FLAG, False)

    def refusal(self) -> str:
        """Return why no device can honour these options, or an empty string."""
        if self.fp8:
            return "fp8 needs a GPU of compute capability 8.9 and kernels that use it; this version has none"
        if not self.pool_growth and self.pool_initial_bytes is None:
            return "pool_growth=False needs pool_initial_bytes: an empty pool that may not grow is useless"
        return ""


BACKENDS = (
    Backend(
        "cuda",
        LIBRARY,
        "CuPy on an NVIDIA GPU; not yet run on one",
        aliases=("nvidia", "cupy"),
        needs="cuda",
        suits=("cuda",),
        options=CUDAConfig,
        remedy="install NVIDIA's driver, so that nvidia-smi lists a GPU, and the CuPy of its CUDA version: "
        "pip install cupy-cuda13x for CUDA 13",
    ),
    planned("cudnn", LIBRARY, "cuDNN's attention on CuPy", NOT_WRITTEN, "use 'cuda'"),
    planned("cusparselt", LIBRARY, "2:4 sparse linear maps", NOT_WRITTEN, "use 'cuda'"),
)

# ------------------------------------------------------------------------------------------- device and memory

_ROUNDING = 512  # CuPy's pool allocates in multiples of it
_TF32_SINCE = 80  # compute capability 8.0


class CupyRuntime(Runtime):
    """The GPU that is current in the calling thread, and CuPy's default memory pool on it.

    CUDA has one current device per thread. Other devices are left alone: querying one would start it.
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
            limit=pool.get_limit() or None,  # 0 means no limit
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
            with device:  # that of the thread that began; the reading thread has its own
                return int(pool.used_bytes())

        return read

    def configure(self, config: DeviceConfig) -> None:
        """Apply a device's configuration: all of it, or nothing.

        Raises
        ------
        ConfigurationError
            If something of it cannot be honoured, with the reason.
        """
        global _configured
        super().configure(config)
        assert isinstance(config, CUDAConfig)
        _configured = _thread.gpu = config.device

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


# The configured GPU, and the one that each thread has made its current one.
_configured: int | None = None
_thread = threading.local()


def _enter_gpu(cupy: Any) -> None:
    """Make the configured GPU the current one of the calling thread, the first time that it computes there."""
    if _configured is not None and getattr(_thread, "gpu", None) != _configured:
        cupy.cuda.Device(_configured).use()
        _thread.gpu = _configured


def _current(cupy: Any) -> Any:
    """Return the GPU of the calling thread; in a thread that is new to tensorops, the configured one."""
    _enter_gpu(cupy)
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
            pool.malloc(initial - pool.total_bytes())  # released at once, so the pool keeps it
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
