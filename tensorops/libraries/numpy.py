"""NumPy: host memory and eager results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorops.libraries import _host
from tensorops.libraries._arrays import numpy_quiet
from tensorops.libraries._options import BYTES, COUNT, ConfigurationError, DeviceConfig, option
from tensorops.libraries._rows import ON_EVERY_CHANGE, Backend, Library, planned
from tensorops.libraries._runtime import Change, DeviceFacts, MemoryStats, Runtime
from tensorops.typing import Array

if TYPE_CHECKING:
    import numpy as np


def __getattr__(name: str) -> Any:
    if name != "NUMPY_TYPES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import numpy as np

    return np.ndarray, np.generic  # NumPy's reductions return scalars of these types, which count as arrays


def _to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.asarray(x)


def _from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    return a if a.flags.writeable else a.copy()  # read-only if it comes from a library with immutable arrays


def _unfit(x: Array) -> str:
    import numpy as np

    masked = sys.modules.get("numpy.ma")  # NumPy imports it on first use; without, there are no such arrays
    # Their arithmetic differs from the standard's: `*` of a matrix multiplies matrices, and the operators of a masked
    # array skip elements, which every formula here would have to consider.
    if isinstance(x, np.matrix):
        return "matrix is not supported; pass numpy.asarray(x)"
    if masked is not None and isinstance(x, masked.MaskedArray):
        return "MaskedArray is not supported; pass x.filled(value)"
    return ""


def _arrayed(y: Array) -> Array:
    import numpy as np

    return np.asarray(y) if isinstance(y, np.generic) else y  # a scalar becomes a zero-dimensional array


LIBRARY = Library(
    name="numpy",
    packages=("numpy",),
    array_type="tensorops.libraries.numpy:NUMPY_TYPES",
    standard="tensorops.libraries._numpy_namespace",
    to_numpy=_to_numpy,
    from_numpy=_from_numpy,
    runtime="tensorops.libraries.numpy:NumpyRuntime",
    unfit=_unfit,
    arrayed=_arrayed,
    quiet=numpy_quiet,
    sums_in_order=True,
    host_values=lambda x: True,
)


@dataclass(frozen=True)
class CPUConfig(DeviceConfig):
    """Options of the compiled kernels for NumPy arrays.

    tensorops does not limit NumPy's own arrays and threads.

    Parameters
    ----------
    num_threads : int, optional
        The maximum number of threads of a kernel. OpenMP's own limit (``OMP_NUM_THREADS``) applies as well, and no
        kernel uses more threads than the process may use processors.
    cache_bytes : int, optional
        The maximum memory of freed results that is kept for later ones; 0 keeps none.

    Raises
    ------
    TypeError, ValueError
        If a value is not valid; the message names it and what is expected.

    Examples
    --------
    >>> import tensorops
    >>> from tensorops import CPUConfig
    >>> CPUConfig(num_threads=2)
    CPUConfig(num_threads=2, cache_bytes=None)
    """

    num_threads: int | None = option(COUNT)
    cache_bytes: int | None = option(BYTES)


BACKENDS = (
    Backend(
        "cpu",
        LIBRARY,
        "NumPy with compiled kernels",
        aliases=("cpp", "openmp", "xeon"),
        providers=("cpu",),
        requires="cpu",
        suits=("cpu",),
        options=CPUConfig,
        runtime="tensorops.kernels.cpu.runtime:CpuRuntime",
        remedy="install a C++ compiler (Debian: apt-get install g++), then reinstall tensorops from where it was "
        "installed, with pip's option --force-reinstall",
        tested=ON_EVERY_CHANGE,
        isolated=False,
    ),
    Backend(
        "numpy",
        LIBRARY,
        "NumPy with generic bodies only",
        aliases=("python",),
        providers=(),
        suits=("any",),
        tested=ON_EVERY_CHANGE,
        isolated=False,
    ),
    Backend(
        "onednn",
        LIBRARY,
        "NumPy with oneDNN for linear, else as cpu",
        aliases=("mkldnn",),
        providers=("onednn", "cpu"),
        requires="onednn",
        remedy="pip install --force-reinstall onednn",
        tested=ON_EVERY_CHANGE,
    ),
    Backend(
        "mkl",
        LIBRARY,
        "NumPy with MKL for linear, else as cpu",
        providers=("mkl", "cpu"),
        requires="mkl",
        remedy="pip install --force-reinstall mkl",
        tested=ON_EVERY_CHANGE,
    ),
    planned(
        "nnpack",
        LIBRARY,
        "NNPACK",
        "NNPACK is retired: its authors archived it, and nothing replaces it here",
        "use 'cpu'",
    ),
)

# ------------------------------------------------------------------------------------------- device and memory


class NumpyRuntime(Runtime):
    """NumPy's device is the processor.

    NumPy itself has no memory statistics. While `tracemalloc` is tracing, the values are those of all memory that
    Python allocates, including NumPy's arrays; otherwise they are unknown.
    """

    @property
    def memory(self) -> str:
        """Whose memory it counts: Python's."""
        return "python"

    def do_facts(self) -> DeviceFacts:
        import numpy as np

        return DeviceFacts(
            compute_units=_host.processors(),
            max_memory=_host.memory_bytes(),
            device_count=1,
            device_name=_host.processor_name(),
            dtypes=self.held_dtypes(),
            versions=self.version() | {"numpy": np.__version__},
        )

    def do_memory_stats(self) -> MemoryStats:
        import tracemalloc

        total = _host.memory_bytes()
        if not tracemalloc.is_tracing():
            return MemoryStats(self.name, "cpu", total=total)
        in_use, peak = tracemalloc.get_traced_memory()
        return MemoryStats(self.name, "cpu", in_use=in_use, peak=peak, total=total)

    def do_empty_cache(self) -> int | None:
        return 0

    def do_reset_peak(self) -> bool:
        import tracemalloc

        if tracemalloc.is_tracing():
            tracemalloc.reset_peak()
            return True
        return False

    def do_changes(self, config: DeviceConfig) -> Sequence[Change]:
        raise ConfigurationError("tensorops does not limit NumPy's own arrays and threads")
