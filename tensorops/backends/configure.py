"""Device options that the program itself sets."""

from __future__ import annotations

from tensorops.backends import options
from tensorops.backends.probing import first_available
from tensorops.backends.registry import all_backends, resolve
from tensorops.libraries import Backend, DeviceConfig, runtime_of


def configure(config: DeviceConfig, backend: str | None = None) -> None:
    """Set options of a backend's device, now and for the whole process.

    They replace those of an earlier call. An option left at its default keeps the value from the environment and the
    configuration file, or else the library's own.

    Parameters
    ----------
    config : CPUConfig, CUDAConfig, JAXConfig, MLXConfig or OpenCLConfig
        The options.
    backend : str, optional
        A backend's name or alias; by default the one that the class belongs to.

    Raises
    ------
    TypeError
        If `config` is not such an object, or the backend needs another class.
    ValueError
        If there is no backend of that name, or it has no options.
    BackendUnavailableError
        If the backend cannot compute here.
    ConfigurationError
        If an option cannot be honoured, with the reason; nothing is changed then.

    Examples
    --------
    >>> from tensorops.libraries.mlx import MLXConfig
    >>> from tensorops.libraries import ConfigurationError
    >>> from tensorops.backends.configure import configure
    >>> try:
    ...     configure(MLXConfig(max_memory_fraction=0.5))
    ... except ConfigurationError as error:
    ...     print(error)
    backend 'mlx': max_memory_fraction cannot be honoured: MLX treats a limit as a guideline and allocates beyond it
    """
    takes = {row.options: row for row in all_backends().values() if row.options is not None and not row.missing}
    if not isinstance(config, DeviceConfig) or type(config) not in takes:
        names = ", ".join(sorted(kind.__name__ for kind in takes))
        raise TypeError(f"configure: expected one of {names}, got {config!r}")
    target = takes[type(config)] if backend is None else resolve(backend)
    expected = options.options_class(target)
    if expected is not type(config):
        raise TypeError(f"configure: backend {target.name!r} needs {expected.__name__}, got {type(config).__name__}")
    options.refuse(target, config)
    _require(target)
    options.apply_chosen(target, config)


def _require(backend: Backend) -> None:
    """Raise if the backend cannot compute, without trying it where options must be set before the first use."""
    missing = backend.missing or backend.library.missing or not backend.library.is_installed()
    if missing or not runtime_of(backend).before_use:
        first_available([backend])
    options.load(backend)
