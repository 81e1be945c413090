"""What lower layers ask of upper ones: the upper ones register functions here, so that imports only go downwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

load_plugins: list[Callable[[], object]] = []
"""Called when somebody names a provider, or brings an array of a library, that nobody has made known yet."""

refuse_plugin: list[Callable[[Any], None]] = []
"""Raises the reason if the plug-in that an `EntryPoint` names would hang or end the process."""

accelerators: dict[str, Callable[[Any, list[str]], list[Any]]] = {}
"""What libraries that run in this process know of accelerators, by the library's name."""

cpu_features: list[Callable[[], frozenset[str]]] = []
"""What asks the processor itself for its instruction sets: compiled code, if there is any."""

wrong_result: list[Callable[[Any], str]] = []
"""The tiny computation that tries a `Backend`; returns what is wrong with its result, or an empty string."""
