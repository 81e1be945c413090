"""The device options of each backend, set by the program and by the configuration.

The classes of options are in `tensorops.libraries`; they check what can be checked without the device. The library's
`Runtime` applies them and refuses those that the library cannot honour.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Mapping
from typing import Any

from tensorops._messages import nearest
from tensorops.backends.registry import all_backends, resolve
from tensorops.libraries import Backend, ConfigurationError, DeviceConfig, runtime_of


def device_config(name: str, options: Mapping[str, Any]) -> DeviceConfig:
    """Return the options of a backend's device from a mapping, such as one from a file.

    Parameters
    ----------
    name : str
        A backend's name or alias.
    options : mapping
        Values by the names of the options; ``None`` leaves an option unchanged.

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
    >>> from tensorops.backends.options import device_config
    >>> device_config("cpu", {"num_threads": 2})
    CPUConfig(num_threads=2, cache_bytes=None)
    """
    config_class = options_class(resolve(name))
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


def options_class(backend: Backend) -> type[DeviceConfig]:
    """Return the class of a backend's options.

    Raises
    ------
    ValueError
        If it has none; those with options are listed.
    """
    if backend.options is None:
        names = ", ".join(other.name for other in all_backends().values() if other.options)
        raise ValueError(f"backend {backend.name!r} has no options; those with options: {names}")
    return backend.options


# The options set by the program and by the configuration, and both combined, by the class of options (JAX is one
# library under two names).
_chosen: dict[type[DeviceConfig], DeviceConfig] = {}
_configured: dict[type[DeviceConfig], DeviceConfig] = {}
_in_force: dict[type[DeviceConfig], DeviceConfig] = {}
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # a lock that another thread held in the parent would never be released
    os.register_at_fork(after_in_child=_renew_lock)


def apply_configured(name: str, options: Mapping[str, Any]) -> None:
    """Apply the configured options of a backend's device, before the backend is first used.

    It may be called again with other options, or none, when the configuration has changed. Options that the program
    set with `configure` take precedence.

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
        If an option cannot be honoured, with the reason; nothing is changed then.
    """
    backend = resolve(name)
    config = device_config(name, options)
    refuse(backend, config)
    if config == _configured.get(type(config), type(config)()):
        return
    load(backend)
    with _lock:
        _apply(backend, _chosen.get(type(config), type(config)()), config)
        _configured[type(config)] = config


def apply_chosen(backend: Backend, config: DeviceConfig) -> None:
    """Apply the program's options for a backend's device; options left at their defaults are as configured.

    Raises
    ------
    ConfigurationError
        If an option cannot be honoured, with the reason; nothing is changed then.
    """
    with _lock:
        _apply(backend, config, _configured.get(type(config), type(config)()))
        _chosen[type(config)] = config


def get_config(name: str) -> DeviceConfig | None:
    """Return the options that are set for a backend's device.

    Parameters
    ----------
    name : str
        A backend's name or alias.

    Returns
    -------
    DeviceConfig or None
        The options set by `configure` and the configuration file, else defaults; ``None`` if the backend has no
        options.

    Raises
    ------
    ValueError
        If there is no backend of that name; the valid ones are listed.

    Examples
    --------
    >>> from tensorops.backends.options import get_config
    >>> get_config("cuda").device, get_config("numpy")
    (0, None)
    """
    config_class = resolve(name).options
    return None if config_class is None else _in_force.get(config_class, config_class())


def refuse(backend: Backend, config: DeviceConfig) -> None:
    """Raise `ConfigurationError` if no device can honour these options."""
    if reason := config.refusal():
        raise ConfigurationError(f"backend {backend.name!r}: {reason}")


def load(backend: Backend) -> None:
    """Import the module to which a backend's options apply."""
    # Not under the lock: importing the compiled kernels leads back here, in whichever thread imports them.
    try:
        runtime_of(backend).load()
    except RuntimeError as error:
        raise ConfigurationError(str(error)) from error


def _apply(backend: Backend, chosen: DeviceConfig, configured: DeviceConfig) -> None:
    # Options that the program leaves at their defaults are as configured.
    options = dataclasses.fields(chosen)
    unsaid = [o.name for o in options if getattr(chosen, o.name) == o.default]
    merged = dataclasses.replace(chosen, **{name: getattr(configured, name) for name in unsaid})
    refuse(backend, merged)
    runtime_of(backend).configure(merged)
    _in_force[type(merged)] = merged
