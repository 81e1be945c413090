"""The compiled kernels' threads and the memory pool of their results."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from tensorops import _providers
from tensorops.libraries import Change, ConfigurationError, DeviceConfig, DeviceFacts, MemoryStats
from tensorops.libraries.numpy import CPUConfig, NumpyRuntime


class CpuRuntime(NumpyRuntime):
    """NumPy arrays in the pool of results, which no other backend uses."""

    @property
    def _native(self) -> Any:
        """The compiled kernels, if they are loaded."""
        return sys.modules.get("tensorops.kernels.cpu._native")

    @property
    def loaded(self) -> bool:
        """Whether this process has imported the compiled kernels."""
        return super().loaded and self._native is not None

    @property
    def memory(self) -> str:
        """The memory that is counted: the pool of results."""
        return "pool"

    def load(self) -> None:
        """Import the library and the compiled kernels.

        Raises
        ------
        RuntimeError
            If they cannot be imported.
        """
        super().load()
        if self._native is None and (reason := _providers.load("cpu")):
            raise RuntimeError(f"backend {self.name!r}: {reason}")

    def do_facts(self) -> DeviceFacts:
        facts = super().do_facts()
        if self._native is None:
            return facts
        facts.versions["kernels"] = f"compiled for {', '.join(self._native.targets())}"
        return dataclasses.replace(facts, simd=self._native.target(), openmp=self._native.uses_openmp())

    def do_memory_stats(self) -> MemoryStats:
        if self._native is None:
            return super().do_memory_stats()
        return MemoryStats(self.name, "cpu", total=super().do_memory_stats().total, **self._native.memory_stats())

    def do_empty_cache(self) -> int | None:
        return 0 if self._native is None else self._native.empty_cache()

    def do_reset_peak(self) -> bool:
        if self._native is None:
            return super().do_reset_peak()
        self._native.reset_peak()
        return True

    def do_changes(self, config: DeviceConfig) -> Sequence[Change]:
        native = self._native
        if not isinstance(config, CPUConfig) or native is None:
            raise ConfigurationError("the compiled kernels are not loaded")
        return (
            Change("the bound of the kernels' threads", native.num_threads, native.set_num_threads, config.num_threads),
            Change(
                "the limit of the pool of results",
                lambda: native.memory_stats()["limit"],
                native.set_cache_limit,
                config.cache_bytes,
            ),
        )
