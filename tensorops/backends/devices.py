"""Options of each backend's device: what there is to set, what is valid, and what is set now.

The classes here check what can be checked without the device. Applying them is the affair of the library's class in
`tensorops.backends.runtimes`, which refuses what the library cannot honour.
"""

from __future__ import annotations

import dataclasses
import math
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorops.backends.registry import Backend, nearest, resolve


class ConfigurationError(RuntimeError):
    """A device was configured to do what its backend cannot honour; the message says why, and nothing was changed."""


@dataclass(frozen=True)
class _Kind:
    """What values an option takes: in words, their types, and which of these."""

    words: str
    types: tuple[type, ...]
    accepts: Callable[[Any], bool] = lambda value: True


_INDEX = _Kind("a whole number of at least 0", (int,), lambda value: 0 <= value < 2**31)
_COUNT = _Kind("a whole number from 1 to 65536", (int,), lambda value: 1 <= value <= 2**16)
_BYTES = _Kind("a number of bytes, at least 0", (int,), lambda value: 0 <= value < 2**62)
_SOME_BYTES = _Kind("a number of bytes, at least 1", (int,), lambda value: 1 <= value < 2**62)
_FRACTION = _Kind("a number above 0 and at most 1", (int, float), lambda value: math.isfinite(value) and 0 < value <= 1)
_FLAG = _Kind("true or false", (bool,))
_TEXT = _Kind("a text that is not empty", (str,), lambda value: bool(value.strip()))
_PATH = _Kind("a folder's path", (str, os.PathLike), lambda value: bool(os.fspath(value)))


def _one_of(*values: str) -> _Kind:
    return _Kind("one of " + ", ".join(map(repr, values)), (str,), lambda value: value in values)


def _option(kind: _Kind, default: Any = None) -> Any:
    return dataclasses.field(default=default, metadata={"kind": kind})


@dataclass(frozen=True)
class DeviceConfig:
    """What the options of every backend's device have in common.

    Each option has a default, which leaves it as the library, the environment or the configuration file has it.
    """

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            kind, value = option.metadata["kind"], getattr(self, option.name)
            if value is None and option.default is None:
                continue
            message = f"{type(self).__name__}: {option.name} is {value!r}, expected {kind.words}"
            if not isinstance(value, kind.types) or (isinstance(value, bool) and bool not in kind.types):
                raise TypeError(message)
            if not kind.accepts(value):
                raise ValueError(message)

    def refusal(self) -> str:
        """Return why no device can honour these options, or an empty string."""
        return ""


@dataclass(frozen=True)
class CPUConfig(DeviceConfig):
    """Options of the compiled kernels for NumPy arrays.

    NumPy's own arrays and threads are not tensorops' to bound.

    Parameters
    ----------
    num_threads : int, optional
        How many threads a kernel uses at most; OpenMP's own bound (``OMP_NUM_THREADS``) holds as well.
    cache_bytes : int, optional
        How much memory of dead results is kept for later ones at most; 0 keeps none.

    Raises
    ------
    TypeError, ValueError
        If a value is not valid; the message names it and what is expected.

    Examples
    --------
    >>> import tensorops
    >>> from tensorops.backends.devices import CPUConfig
    >>> CPUConfig(num_threads=2)
    CPUConfig(num_threads=2, cache_bytes=None)
    """

    num_threads: int | None = _option(_COUNT)
    cache_bytes: int | None = _option(_BYTES)


@dataclass(frozen=True)
class CUDAConfig(DeviceConfig):
    """Options of an NVIDIA GPU and of CuPy's default memory pool on it.

    Parameters
    ----------
    device : int, default 0
        Which GPU. CUDA has one current device for each thread: this sets that of the calling thread, and that of
        every other one when tensorops first uses CuPy there. After that the program may choose another one.
    pool_initial_bytes : int, optional
        How much memory the pool takes at once.
    pool_growth : bool, default True
        Whether the pool may take more than `pool_initial_bytes`.
    max_memory_fraction : float, optional
        How much of the device's memory the pool takes at most.
    precision : {'float32', 'tensorfloat32'}, optional
        In what CuPy multiplies float32 matrices; ``'tensorfloat32'`` keeps 10 bits of each factor's fraction, and needs
        compute capability 8.0.
    fp8 : bool, default False
        Whether to compute in 8-bit floating point. No kernel of this version does, so that ``True`` is refused.

    Raises
    ------
    TypeError, ValueError
        If a value is not valid; the message names it and what is expected.

    Examples
    --------
    >>> from tensorops.backends.devices import CUDAConfig
    >>> CUDAConfig(max_memory_fraction=0.5).device
    0
    """

    device: int = _option(_INDEX, 0)
    pool_initial_bytes: int | None = _option(_SOME_BYTES)
    pool_growth: bool = _option(_FLAG, True)
    max_memory_fraction: float | None = _option(_FRACTION)
    precision: str | None = _option(_one_of("float32", "tensorfloat32"))
    fp8: bool = _option(_FLAG, False)

    def refusal(self) -> str:
        """Return why no device can honour these options, or an empty string."""
        if self.fp8:
            return "fp8 needs a GPU of compute capability 8.9 and kernels that use it, of which this version has none"
        if not self.pool_growth and self.pool_initial_bytes is None:
            return "pool_growth=False needs pool_initial_bytes: a pool that is empty and may not grow serves nobody"
        return ""


@dataclass(frozen=True)
class JAXConfig(DeviceConfig):
    """Options of JAX, for the backends ``jax`` and ``tpu``.

    Parameters
    ----------
    platform : str, optional
        Where JAX computes, such as ``'cpu'``, ``'cuda'`` or ``'tpu'``: to be set before its first computation.
    precision : str, optional
        The least precision of products (``jax_default_matmul_precision``): ``'default'``, ``'high'``, ``'highest'``,
        ``'bfloat16'``, ``'tensorfloat32'`` or ``'float32'``. A platform may compute more precisely, as a CPU does.
    compilation_cache_dir : path, optional
        Where compiled functions are kept from one run to the next. JAX keeps those that took long to compile.
    compilation_cache_bytes : int, optional
        How large that folder may become; the functions unused for longest are then deleted.
    memory_fraction : float, optional
        How much of a GPU's memory JAX takes when it starts, and at most. Needs `platform`, as others take no share.

    Raises
    ------
    TypeError, ValueError
        If a value is not valid; the message names it and what is expected.

    Examples
    --------
    >>> from tensorops.backends.devices import JAXConfig
    >>> JAXConfig(precision="highest").precision
    'highest'
    """

    platform: str | None = _option(_TEXT)
    precision: str | None = _option(_one_of("default", "high", "highest", "bfloat16", "tensorfloat32", "float32"))
    compilation_cache_dir: str | os.PathLike[str] | None = _option(_PATH)  # noqa: RUF009 - a field
    compilation_cache_bytes: int | None = _option(_SOME_BYTES)
    memory_fraction: float | None = _option(_FRACTION)


@dataclass(frozen=True)
class MLXConfig(DeviceConfig):
    """Options of MLX.

    Parameters
    ----------
    device : {'cpu', 'gpu'}, optional
        MLX's default device.
    cache_bytes : int, optional
        How much freed memory MLX keeps for later arrays at most; 0 keeps none.
    max_memory_fraction : float, optional
        Refused: MLX takes a limit of memory as a guideline and allocates beyond it.

    Raises
    ------
    TypeError, ValueError
        If a value is not valid; the message names it and what is expected.

    Examples
    --------
    >>> from tensorops.backends.devices import MLXConfig
    >>> MLXConfig(device="cpu").device
    'cpu'
    """

    device: str | None = _option(_one_of("cpu", "gpu"))
    cache_bytes: int | None = _option(_BYTES)
    max_memory_fraction: float | None = _option(_FRACTION)

    def refusal(self) -> str:
        """Return why no device can honour these options, or an empty string."""
        # Measured with MLX 0.32 on a CPU: under a limit of 32 MiB it held 256 MiB of arrays, without a word.
        if self.max_memory_fraction is not None:
            return "max_memory_fraction cannot be kept: MLX takes a limit as a guideline and allocates beyond it"
        return ""


@dataclass(frozen=True)
class OpenCLConfig(DeviceConfig):
    """Options of PyOpenCL.

    Parameters
    ----------
    device : str, optional
        ``"PLATFORM"`` or ``"PLATFORM:DEVICE"``, each a number from 0 or part of a name. It is what PyOpenCL chooses
        where a program names no device, as ``PYOPENCL_CTX`` says.

    Raises
    ------
    TypeError, ValueError
        If a value is not valid; the message names it and what is expected.

    Examples
    --------
    >>> from tensorops.backends.devices import OpenCLConfig
    >>> OpenCLConfig(device="0:0").device
    '0:0'
    """

    device: str | None = _option(_TEXT)


CONFIGS: dict[str, type[DeviceConfig]] = {
    "cpu": CPUConfig,
    "cuda": CUDAConfig,
    "jax": JAXConfig,
    "tpu": JAXConfig,
    "mlx": MLXConfig,
    "opencl": OpenCLConfig,
}
"""Which options a backend's device has; a backend that is not named has none."""


def device_config(name: str, options: Mapping[str, Any]) -> DeviceConfig:
    """Return the options of a backend's device from a mapping, such as a file holds.

    Parameters
    ----------
    name : str
        A backend's name or alias.
    options : mapping
        Values by the names of the options; ``None`` for what is left as it is.

    Returns
    -------
    DeviceConfig
        An instance of the backend's own class.

    Raises
    ------
    ValueError
        If there is no such backend, it has no options, or an option or its value is not valid.

    Examples
    --------
    >>> from tensorops.backends.devices import device_config
    >>> device_config("cpu", {"num_threads": 2})
    CPUConfig(num_threads=2, cache_bytes=None)
    """
    config_class = _class_of(resolve(name))
    if not isinstance(options, Mapping):
        raise ValueError(f"{name}: expected options by name, got {options!r}")
    valid = [option.name for option in dataclasses.fields(config_class)]
    for key in options:
        if key not in valid:
            raise ValueError(f"{name}: unknown option {key!r}{nearest(key, valid)}; valid options: {', '.join(valid)}")
    try:
        return config_class(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {str(error).partition(': ')[2]}") from None


def _class_of(backend: Backend) -> type[DeviceConfig]:
    if backend.name not in CONFIGS:
        raise ValueError(f"backend {backend.name!r} has no options; those that have: {', '.join(CONFIGS)}")
    return CONFIGS[backend.name]


# What is set now, by the class of options, as JAX is one library under two names: by the program, by the configuration,
# and what came of both.
_chosen: dict[type[DeviceConfig], DeviceConfig] = {}
_configured: dict[type[DeviceConfig], DeviceConfig] = {}
_in_force: dict[type[DeviceConfig], DeviceConfig] = {}
_thread = threading.local()  # .gpu: which GPU the configuration has made this thread's current one
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # a lock that another thread held in the parent would never be released
    os.register_at_fork(after_in_child=_renew_lock)


def configure(config: DeviceConfig, backend: str | None = None) -> None:
    """Set options of a backend's device, now and for the whole process.

    They replace what an earlier call set. What is left at its default is as the environment and the configuration
    file say, or else as the library had it.

    Parameters
    ----------
    config : CPUConfig, CUDAConfig, JAXConfig, MLXConfig or OpenCLConfig
        The options.
    backend : str, optional
        A backend's name or alias; by default the one that the class is for.

    Raises
    ------
    TypeError
        If `config` is no such object, or the backend takes another class.
    ValueError
        If there is no backend of that name, or it has no options.
    BackendUnavailableError
        If the backend cannot compute here.
    ConfigurationError
        If something of it cannot be honoured, with the reason; nothing is changed then.

    Examples
    --------
    >>> from tensorops.backends.devices import MLXConfig, ConfigurationError, configure
    >>> try:
    ...     configure(MLXConfig(max_memory_fraction=0.5))
    ... except ConfigurationError as error:
    ...     print(error)
    backend 'mlx': max_memory_fraction cannot be kept: MLX takes a limit as a guideline and allocates beyond it
    """
    if not isinstance(config, DeviceConfig) or type(config) not in CONFIGS.values():
        names = ", ".join(dict.fromkeys(c.__name__ for c in CONFIGS.values()))
        raise TypeError(f"configure: expected one of {names}, got {config!r}")
    target = resolve(next(n for n, c in CONFIGS.items() if c is type(config)) if backend is None else backend)
    expected = _class_of(target)
    if expected is not type(config):
        raise TypeError(f"configure: backend {target.name!r} takes {expected.__name__}, got {type(config).__name__}")
    _refuse(target, config)
    _require(target)
    with _lock:
        _apply(target, config, _configured.get(expected, expected()))
        _chosen[expected] = config


def apply_configured(name: str, options: Mapping[str, Any]) -> None:
    """Apply what the configuration says of a backend's device, before the backend is first used.

    It may be called again with other options, or none, when the configuration has changed. What the program itself set
    with `configure` goes first.

    Parameters
    ----------
    name : str
        A backend's name.
    options : mapping
        Values by the names of the options.

    Raises
    ------
    ValueError
        If an option or its value is not valid.
    ConfigurationError
        If something cannot be honoured, with the reason; nothing is changed then.
    """
    backend = resolve(name)
    config = device_config(name, options)
    _refuse(backend, config)
    if config == _configured.get(type(config), type(config)()):
        return
    _load(backend)
    with _lock:
        _apply(backend, _chosen.get(type(config), type(config)()), config)
        _configured[type(config)] = config


def get_config(name: str) -> DeviceConfig | None:
    """Return the options that are set for a backend's device.

    Parameters
    ----------
    name : str
        A backend's name or alias.

    Returns
    -------
    DeviceConfig or None
        What `configure` and the configuration file set, and defaults else; ``None`` if the backend has no options.

    Raises
    ------
    ValueError
        If there is no backend of that name; the valid ones are listed.

    Examples
    --------
    >>> from tensorops.backends.devices import get_config
    >>> get_config("cuda").device, get_config("numpy")
    (0, None)
    """
    config_class = CONFIGS.get(resolve(name).name)
    return None if config_class is None else _in_force.get(config_class, config_class())


def enter_gpu(use: Callable[[int], object]) -> None:
    """Make the configured GPU the current one of the calling thread, the first time that it is asked for there."""
    config = _in_force.get(CUDAConfig)
    if isinstance(config, CUDAConfig) and getattr(_thread, "gpu", None) != config.device:
        use(config.device)
        _thread.gpu = config.device


def _refuse(backend: Backend, config: DeviceConfig) -> None:
    if reason := config.refusal():
        raise ConfigurationError(f"backend {backend.name!r}: {reason}")


def _require(backend: Backend) -> None:
    """Raise if the backend cannot compute; without trying it, where some options must come before the first use."""
    from tensorops.backends.probing import first_available
    from tensorops.backends.runtimes import runtime_of

    missing = backend.missing or backend.namespace.missing or not backend.namespace.is_installed()
    if missing or not runtime_of(backend).before_use:
        first_available([backend])
    _load(backend)


def _load(backend: Backend) -> None:
    # Not under the lock: importing the compiled kernels leads back here, in whichever thread imports them.
    from tensorops.backends.runtimes import runtime_of

    try:
        runtime_of(backend).load()
    except RuntimeError as error:
        raise ConfigurationError(str(error)) from error


def _apply(backend: Backend, chosen: DeviceConfig, configured: DeviceConfig) -> None:
    from tensorops.backends.runtimes import runtime_of

    # What the program leaves at its default is as configured.
    options = dataclasses.fields(chosen)
    unsaid = [o.name for o in options if getattr(chosen, o.name) == o.default]
    merged = dataclasses.replace(chosen, **{name: getattr(configured, name) for name in unsaid})
    _refuse(backend, merged)
    runtime_of(backend).configure(merged)
    _in_force[type(merged)] = merged
    if isinstance(merged, CUDAConfig):
        _thread.gpu = merged.device
