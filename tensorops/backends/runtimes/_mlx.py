"""MLX: figures of its allocator, its default device and the cache it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorops.backends.devices import ConfigurationError, DeviceConfig, MLXConfig
from tensorops.backends.runtimes import _host
from tensorops.backends.runtimes._base import Change, DeviceFacts, MemoryStats, Runtime

_NO_LIMIT = 1 << 62


class MlxRuntime(Runtime):
    """MLX's default device and the figures of its allocator.

    MLX computes when a value is asked for. `synchronize` waits for what the calling thread has submitted to the
    default streams; an array that nobody evaluated was not submitted, and stays unevaluated.
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
            # A GPU lets float64 be made, and then computes nothing with it.
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
            limit: int = mx.set_cache_limit(_NO_LIMIT)  # MLX tells the limit only when it is replaced
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
