"""MLX: transfers, the figures of its allocator, its default device and the cache it keeps."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorops._dtypes import is_floating
from tensorops.libraries import _host
from tensorops.libraries._arrays import bfloat16, shareable
from tensorops.libraries._options import BYTES, FRACTION, ConfigurationError, DeviceConfig, one_of, option
from tensorops.libraries._rows import ON_EVERY_CHANGE, Backend, Library
from tensorops.libraries._runtime import Change, DeviceFacts, MemoryStats, Runtime
from tensorops.typing import Array

if TYPE_CHECKING:
    import numpy as np

    from tensorops.hardware.accelerator import Accelerator
    from tensorops.hardware.machine import Machine


def _to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import mlx.core as mx
    import numpy as np

    import array_api_mlx

    values = np.asarray(array_api_mlx.asarray(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x))
    return values.view(bfloat16()) if x.dtype == mx.bfloat16 else values


def _from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    import mlx.core as mx
    import numpy as np

    native = shareable(a)
    if native.dtype == bfloat16():
        return mx.array(native.view(np.uint16)).view(mx.bfloat16)
    dtype = getattr(mx, "bool_" if native.dtype == bool else native.dtype.name, None)
    if not isinstance(dtype, mx.Dtype):
        raise TypeError(f"mlx holds no {native.dtype.name}")
    return mx.array(native, dtype=dtype)


def _constant(x: Array) -> Array:
    import mlx.core as mx

    return mx.stop_gradient(x)


def _over_blocks(
    function: Callable[..., Array], size: int, rows: tuple[Array | None, ...], shared: tuple[Any, ...]
) -> Array:
    """Call a function on one block after another, and take their derivatives likewise.

    MLX chooses the order of what it evaluates by what depends on what, so each block depends on the one before it. It
    evaluates ahead, and then holds up to four arrays of a block, in derivatives eight: blocks are a quarter of `size`.
    """
    import mlx.core as mx

    arguments = (*rows, *shared)
    # Only floating arrays have derivatives: MLX takes none with respect to indices.
    moving = {i: LIBRARY.unwrap(a) for i, a in enumerate(arguments) if LIBRARY.is_wrapper(a) and is_floating(a)}
    of_rows = [i < len(rows) for i in moving]
    size = max(size // 4, 1)
    count = rows[0].shape[0]  # type: ignore[union-attr]
    blocks = [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]

    def of_block(block: slice, *arrays: Any) -> Any:
        every = [a if i >= len(rows) or a is None else a[block, ...] for i, a in enumerate(arguments)]
        for i, array in zip(moving, arrays, strict=True):
            every[i] = LIBRARY.wrap(array)
        return LIBRARY.unwrap(function(*every))

    def parts(block: slice, arrays: Any, after: list[Any]) -> list[Any]:
        taken = [a[block] if divided else a for a, divided in zip(arrays, of_rows, strict=True)]
        return mx.depends(taken, after) if after else taken

    def every_block(*arrays: Any) -> Any:
        results: list[Any] = []
        for block in blocks:
            results.append(of_block(block, *parts(block, arrays, results[-1:])))
        return mx.concatenate(results)

    def derivative(primals: Any, cotangent: Any, _: Any) -> tuple[Any, ...]:
        found: list[list[Any]] = []
        sums: list[Any] = []
        for block in blocks:
            taken = parts(block, primals, [*sums, *(found[-1] if found else [])])
            _, gradients = mx.vjp(functools.partial(of_block, block), taken, [cotangent[block]])
            found.append([g for g, divided in zip(gradients, of_rows, strict=True) if divided])
            new = [g for g, divided in zip(gradients, of_rows, strict=True) if not divided]
            sums = [a + b for a, b in zip(sums, new, strict=True)] if sums else new
        joined, summed = iter([mx.concatenate(list(each)) for each in zip(*found, strict=True)]), iter(sums)
        return tuple(next(joined) if divided else next(summed) for divided in of_rows)

    computed = mx.custom_function(every_block)
    computed.vjp(derivative)
    return LIBRARY.wrap(computed(*moving.values()))


def _wait(arrays: list[Any]) -> None:
    import mlx.core as mx

    mx.eval(arrays)


@contextlib.contextmanager
def _holding(dtype: str) -> Iterator[None]:
    import mlx.core as mx

    with mx.stream(mx.cpu):  # GPUs have no float64 and multiply with less than float32 precision
        yield


def _accelerators(machine: Machine, notes: list[str]) -> list[Accelerator]:
    """Return MLX's GPU if this process has already imported MLX."""
    from tensorops.hardware.accelerator import Accelerator

    mx = machine.modules.get("mlx.core")
    if mx is None or not mx.metal.is_available():
        return []
    said = mx.device_info(mx.gpu) if hasattr(mx, "device_info") else mx.metal.device_info()
    return [Accelerator("apple", str(said.get("device_name", "Apple GPU")), said.get("memory_size"), "mlx")]


LIBRARY = Library(
    name="mlx",
    packages=("mlx", "array_api_mlx"),
    array_type="mlx.core:array",
    wrapper="array_api_mlx:Array",
    unwrapped=lambda x: x.mlx,
    standard="array_api_mlx",
    to_numpy=_to_numpy,
    from_numpy=_from_numpy,
    constant=_constant,
    over_blocks=_over_blocks,
    runtime="tensorops.libraries.mlx:MlxRuntime",
    wait=_wait,
    holding=_holding,
    accelerators=_accelerators,
    extra="mlx",
)


@dataclass(frozen=True)
class MLXConfig(DeviceConfig):
    """Options of MLX.

    Parameters
    ----------
    device : {'cpu', 'gpu'}, optional
        MLX's default device.
    cache_bytes : int, optional
        The maximum freed memory that MLX keeps for later arrays; 0 keeps none.
    max_memory_fraction : float, optional
        Refused: MLX treats a memory limit as a guideline and allocates beyond it.

    Raises
    ------
    TypeError, ValueError
        If a value is not valid; the message names it and what is expected.

    Examples
    --------
    >>> from tensorops import MLXConfig
    >>> MLXConfig(device="cpu").device
    'cpu'
    """

    device: str | None = option(one_of("cpu", "gpu"))
    cache_bytes: int | None = option(BYTES)
    max_memory_fraction: float | None = option(FRACTION)

    def refusal(self) -> str:
        """Return why no device can honour these options, or an empty string."""
        # Measured with MLX 0.32 on a CPU: under a limit of 32 MiB it held 256 MiB of arrays, without a warning.
        if self.max_memory_fraction is not None:
            return "max_memory_fraction cannot be honoured: MLX treats a limit as a guideline and allocates beyond it"
        return ""


BACKENDS = (
    Backend(
        "mlx",
        LIBRARY,
        "MLX on its default device",
        aliases=("mps",),
        suits=("apple",),
        options=MLXConfig,
        remedy="pip install --upgrade 'mlx[cpu]'",
        tested=ON_EVERY_CHANGE,
    ),
)

# ------------------------------------------------------------------------------------------- device and memory

_NO_LIMIT = 1 << 62


class MlxRuntime(Runtime):
    """MLX's default device and its memory statistics.

    MLX computes when a value is needed. `synchronize` waits for work that the calling thread has submitted to the
    default streams; an unevaluated array was not submitted and stays unevaluated.
    """

    def do_facts(self) -> DeviceFacts:
        import mlx.core as mx

        device = mx.default_device()
        info: dict[str, Any] = mx.device_info() if hasattr(mx, "device_info") else {}
        host = device.type == mx.cpu
        dtypes = self.held_dtypes()
        return DeviceFacts(
            compute_units=_host.processors() if host else None,
            max_memory=int(info["memory_size"]) if "memory_size" in info and not host else _host.memory_bytes(),
            device_count=mx.device_count(device.type) if hasattr(mx, "device_count") else None,
            device_name=info.get("device_name") or (_host.processor_name() if host else None),
            # A GPU creates float64 arrays, but cannot compute with them.
            dtypes=dtypes if host else tuple(d for d in dtypes if d != "float64"),
            versions=self.version(),
        )

    def do_synchronize(self) -> None:
        import mlx.core as mx

        for kind in (mx.cpu, mx.gpu):
            if mx.is_available(kind):
                mx.synchronize(mx.default_stream(kind))

    def do_memory_stats(self) -> MemoryStats:
        import mlx.core as mx

        return MemoryStats(
            self.name,
            _device_name(mx),
            in_use=mx.get_active_memory(),
            peak=mx.get_peak_memory(),
            cached=mx.get_cache_memory(),
            total=_host.memory_bytes(),
        )

    def do_empty_cache(self) -> int | None:
        import mlx.core as mx

        before = mx.get_cache_memory()
        mx.clear_cache()
        return int(before - mx.get_cache_memory())

    def do_reset_peak(self) -> bool:
        import mlx.core as mx

        mx.reset_peak_memory()
        return True

    def do_changes(self, config: DeviceConfig) -> Sequence[Change]:
        import mlx.core as mx

        assert isinstance(config, MLXConfig)
        if config.device is not None and not mx.is_available(getattr(mx, config.device)):
            raise ConfigurationError(f"MLX has no device {config.device!r} here")

        def read_limit() -> int:
            limit: int = mx.set_cache_limit(_NO_LIMIT)  # MLX returns the limit only when it is replaced
            mx.set_cache_limit(limit)
            return limit

        return (
            Change(
                "MLX's default device",
                lambda: _device_name(mx).partition(":")[0],
                lambda name: mx.set_default_device(getattr(mx, name)),
                config.device,
            ),
            Change("MLX's cache limit", read_limit, mx.set_cache_limit, config.cache_bytes),
        )


def _device_name(mx: Any) -> str:
    device = mx.default_device()
    return f"{'cpu' if device.type == mx.cpu else 'gpu'}:{getattr(device, 'index', 0)}"
