"""Functions that upper layers register for lower ones, so that imports only go downwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

load_plugins: list[Callable[[], object]] = []
"""Called when a user names an unknown provider, or passes an array of an unknown library."""

refuse_plugin: list[Callable[[Any], None]] = []
"""Raises the reason if the plug-in that an `EntryPoint` names would hang or end the process."""

accelerators: dict[str, Callable[[Any, list[str]], list[Any]]] = {}
"""Functions that return what a library running in this process knows about accelerators, by the library's name."""

cpu_features: list[Callable[[], frozenset[str]]] = []
"""Functions that query the processor for its instruction sets: compiled code, if available."""

wrong_result: list[Callable[[Any], str]] = []
"""The tiny computation that tries a `Backend`; returns what is wrong with its result, or an empty string."""

interleave_blocks: list[Callable[[Any, Any, str], bool]] = []
"""Compiled code that writes blocks of a format interleaved to memory of their size; false if it does not know it."""
