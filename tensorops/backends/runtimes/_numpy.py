"""NumPy, and libraries that compute with it: host memory, results that are there when a call returns."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorops.backends.devices import ConfigurationError, CPUConfig, DeviceConfig
from tensorops.backends.runtimes import _host
from tensorops.backends.runtimes._base import Change, DeviceFacts, MemoryStats, Runtime


class NumpyRuntime(Runtime):
    """NumPy's device is the processor; the backend ``cpu`` has a pool of results besides, which the others do not use.

    NumPy itself does not count its memory. While `tracemalloc` is tracing, the figures are those of all memory that
    Python allocates, of which NumPy's arrays are a part; else they are unknown.
    """

    @property
    def _native(self) -> Any:
        """The compiled kernels if they are loaded and serve this backend."""
        return sys.modules.get("tensorops.kernels.cpu._native") if "cpu" in self.backend.providers else None

    @property
    def loaded(self) -> bool:
        """Whether the library, and for ``cpu`` the compiled kernels, have been imported into this process."""
        return super().loaded and ("cpu" not in self.backend.providers or self._native is not None)

    @property
    def memory(self) -> str:
        """Whose memory it counts: that of the pool of results, or Python's."""
        return "pool" if "cpu" in self.backend.providers else "python"

    def load(self) -> None:
        """Import the library, and for ``cpu`` the compiled kernels.

        Raises
        ------
        RuntimeError
            If they cannot be imported.
        """
        super().load()
        if "cpu" in self.backend.providers and self._native is None:
            from tensorops import kernels

            if reason := kernels.load("cpu"):
                raise RuntimeError(f"backend {self.name!r}: {reason}")

    def do_facts(self) -> DeviceFacts:
        versions = self.version() | {"numpy": np.__version__}
        if self._native is not None:
            versions["kernels"] = f"compiled for {self._native.target()}"
        return DeviceFacts(
            compute_units=_host.processors(),
            max_memory=_host.memory_bytes(),
            device_count=1,
            device_name=_host.processor_name(),
            dtypes=self.held_dtypes(),
            versions=versions,
        )

    def do_memory_stats(self) -> MemoryStats:
        total = _host.memory_bytes()
        if self._native is not None:
            return MemoryStats(self.name, "cpu", total=total, **self._native.memory_stats())
        if not tracemalloc.is_tracing():
            return MemoryStats(self.name, "cpu", total=total)
        in_use, peak = tracemalloc.get_traced_memory()
        return MemoryStats(self.name, "cpu", in_use=in_use, peak=peak, total=total)

    def do_empty_cache(self) -> int | None:
        return 0 if self._native is None else self._native.empty_cache()

    def do_reset_peak(self) -> bool:
        if self._native is not None:
            self._native.reset_peak()
            return True
        if tracemalloc.is_tracing():
            tracemalloc.reset_peak()
            return True
        return False

    def do_changes(self, config: DeviceConfig) -> Sequence[Change]:
        if not isinstance(config, CPUConfig) or self._native is None:
            raise ConfigurationError("NumPy's own arrays and threads are not tensorops' to bound")
        native = self._native
        return (
            Change("the bound of the kernels' threads", native.num_threads, native.set_num_threads, config.num_threads),
            Change(
                "the limit of the pool of results",
                lambda: native.memory_stats()["limit"],
                native.set_cache_limit,
                config.cache_bytes,
            ),
        )
