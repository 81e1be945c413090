"""PyTorch: its caching allocator on NVIDIA GPUs; on the processor it keeps no count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorops.backends.runtimes import _host
from tensorops.backends.runtimes._base import DeviceFacts, MemoryStats, Runtime


class TorchRuntime(Runtime):
    """PyTorch's default device, and CUDA's caching allocator once the program has started CUDA.

    Nothing here starts CUDA: on a program that uses the processor alone that would cost time and the GPU's memory.
    """

    def do_facts(self) -> DeviceFacts:
        import torch

        device = torch.get_default_device()
        versions = self.version()
        if device.type != "cuda":
            host = device.type == "cpu"
            return DeviceFacts(
                compute_units=_host.processors() if host else None,
                max_memory=_host.memory_bytes() if host else None,
                device_count=1,
                device_name=_host.processor_name() if host else device.type,
                dtypes=self.held_dtypes(),
                versions=versions,
            )
        properties = torch.cuda.get_device_properties(device)
        return DeviceFacts(
            compute_capability=10 * properties.major + properties.minor,
            compute_units=properties.multi_processor_count,
            max_memory=properties.total_memory,
            max_shared_memory=getattr(properties, "shared_memory_per_block_optin", None),
            device_count=torch.cuda.device_count(),
            device_name=properties.name,
            dtypes=self.held_dtypes(),
            versions=versions | {"cuda": str(torch.version.cuda)},
        )

    def do_synchronize(self) -> None:
        import torch

        for device in _cuda_devices(torch):
            torch.cuda.synchronize(device)
        if torch.backends.mps.is_available():
            torch.mps.synchronize()

    def do_memory_stats(self) -> MemoryStats:
        import torch

        if not torch.cuda.is_initialized():
            return MemoryStats(self.name, "cpu", total=_host.memory_bytes())
        device = torch.cuda.current_device()
        in_use = torch.cuda.memory_allocated(device)
        return MemoryStats(
            self.name,
            f"cuda:{device}",
            in_use=in_use,
            peak=torch.cuda.max_memory_allocated(device),
            cached=torch.cuda.memory_reserved(device) - in_use,
            total=torch.cuda.mem_get_info(device)[1],
        )

    def do_empty_cache(self) -> int | None:
        import torch

        devices = _cuda_devices(torch)
        before = sum(torch.cuda.memory_reserved(d) for d in devices)
        if devices:
            torch.cuda.empty_cache()
        return int(before - sum(torch.cuda.memory_reserved(d) for d in devices))

    def do_reset_peak(self) -> bool:
        import torch

        if not torch.cuda.is_initialized():
            return False
        torch.cuda.reset_peak_memory_stats()
        return True

    def do_gauge(self) -> Callable[[], int | None]:
        import torch

        if not torch.cuda.is_initialized():
            return lambda: None
        device = torch.cuda.current_device()  # of this thread, which the one that reads does not share
        return lambda: int(torch.cuda.memory_allocated(device))


def _cuda_devices(torch: Any) -> list[int]:
    """Return the GPUs that hold something of this program; asking another one would start it."""
    if not torch.cuda.is_initialized():
        return []
    current = torch.cuda.current_device()
    return [d for d in range(torch.cuda.device_count()) if d == current or torch.cuda.memory_reserved(d)]
