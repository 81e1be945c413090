"""Nested structures of arrays in safetensors files: written from any array library, read into any other.

The tensors of a file are named by dotted paths such as ``blocks.0.norm``, so that any program that supports the format
can read them. JSON in the file's metadata describes the rest: lists and dicts, names that contain dots, and numbers
and strings among the arrays. The format: https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import stat
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - registers bfloat16 with NumPy, which the library looks up by name
import numpy as np

import tensorops as tp
from tensorops.models._errors import missing

from .safetensors_header import open_safetensors

__all__ = ["load_safetensors", "save_safetensors"]

STRUCTURE = "tensorops.structure"
"""The metadata key of the structure.

Its value is JSON: ``{"tensor": name}``, ``{"value": x}`` and ``{"float": "nan"}`` are leaves; ``{"list": [node, …]}``,
``{"tuple": [node, …]}`` and ``{"dict": [[key, node], …]}`` contain other nodes.
"""

DTYPES = {
    "BOOL": "bool",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}
"""The format's names of the supported dtypes."""

Node = dict[str, Any]


def save_safetensors(tree: Any, path: str | os.PathLike[str], *, metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays of any library to a safetensors file.

    Parameters
    ----------
    tree : array, dict, list, tuple or dataclass instance
        Containers may be nested; keys are strings or integers. Besides arrays they may contain numbers, strings,
        booleans and ``None``. Arrays may be float16, bfloat16, float32, float64, integers or booleans; lazy ones are
        computed. An array that occurs more than once is written each time.
    path : str or path-like
        The file. It is written atomically: concurrent readers see the old file or the new one.
    metadata : mapping of str to str, optional
        Additional metadata entries, for other programs.

    Raises
    ------
    TypeError
        If something in `tree` cannot be stored; the message names it.
    ValueError
        If `metadata` uses the key under which the structure is stored.
    OSError
        If the file cannot be written; an old one is then unchanged.

    Examples
    --------
    >>> import tempfile, numpy as np, tensorops
    >>> from pathlib import Path
    >>> from tensorops.models import load_safetensors, save_safetensors
    >>> path = Path(tempfile.mkdtemp(), "model.safetensors")
    >>> save_safetensors({"blocks": [{"norm": np.ones(2)}], "eps": 1e-6}, path)
    >>> load_safetensors(path)
    {'blocks': [{'norm': array([1., 1.])}], 'eps': 1e-06}
    """
    entries = _checked_metadata(metadata)
    writer = _Writer()
    entries[STRUCTURE] = json.dumps(writer.visit(tree, ""), allow_nan=False, separators=(",", ":"))
    _write(Path(path), writer.arrays, entries)


def load_safetensors(path: str | os.PathLike[str], backend: str | None = None) -> Any:
    """Read the arrays of a safetensors file into any library.

    Parameters
    ----------
    path : str or path-like
        A file written by `save_safetensors` or another program. Read its other metadata with
        ``safetensors.safe_open``.
    backend : str, optional
        The backend whose arrays to return; by default the one in force, or with ``"auto"`` NumPy.

    Returns
    -------
    nested dict, list, tuple or array
        The structure passed to `save_safetensors`, with the bits and dtype of every value preserved; a dataclass
        becomes a dict by field names, a named tuple a tuple. As with `to_backend`, JAX without ``jax_enable_x64``
        narrows 64-bit integers whose values allow it. A file of another program becomes a dict by tensor names.

    Raises
    ------
    ValueError
        If the file is not a safetensors file or is damaged, or there is no backend of that name.
    TypeError
        If it has a dtype that the backend, or this function, does not support; the message names the tensor.
    BackendUnavailableError
        If the backend cannot compute here.
    OSError
        If the file cannot be opened.

    Examples
    --------
    >>> import tempfile, numpy as np, tensorops
    >>> from pathlib import Path
    >>> from tensorops.models import load_safetensors, save_safetensors
    >>> path = Path(tempfile.mkdtemp(), "model.safetensors")
    >>> save_safetensors((np.asarray([1, 2], dtype=np.int8), "a label"), path)
    >>> load_safetensors(path, "numpy")
    (array([1, 2], dtype=int8), 'a label')
    """
    if backend is None:
        backend = tp.get_backend()
        backend = "numpy" if backend == "auto" else backend
    tp.to_backend((), backend)  # an unknown or unavailable backend is an error before anything is read
    return _Reader(Path(path), backend).read()


# --------------------------------------------------------------------------------------------------- writing


class _Writer:
    """Describes a structure and collects its arrays on the host, by their names in the file."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}

    def visit(self, node: Any, path: str) -> Node:
        """Return the description of a node; `path` is its dotted path."""
        if isinstance(node, dict):
            return {"dict": [[_key(key, path), self.visit(value, _join(path, key))] for key, value in node.items()]}
        if dataclasses.is_dataclass(node) and not isinstance(node, type):
            names = [field.name for field in dataclasses.fields(node)]
            return {"dict": [[name, self.visit(getattr(node, name), _join(path, name))] for name in names]}
        if isinstance(node, list | tuple):
            fields: Iterable[object] = getattr(node, "_fields", range(len(node)))
            nodes = [self.visit(item, _join(path, name)) for name, item in zip(fields, node, strict=True)]
            return {"tuple" if isinstance(node, tuple) else "list": nodes}
        if type(node) is float and not math.isfinite(node):  # JSON has no such numbers
            return {"float": str(node)}
        if node is None or type(node) in (bool, int, float, str):
            return {"value": node}
        return {"tensor": self.add(node, path)}

    def add(self, leaf: Any, path: str) -> str:
        """Move an array to the host and return its name in the file."""
        try:
            host = tp.to_backend(leaf, "numpy")
        except TypeError as error:
            raise TypeError(f"save_safetensors: {path or 'tree'}: {error}") from None
        if not isinstance(host, np.ndarray | np.generic):
            kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
            raise TypeError(f"save_safetensors: {path or 'tree'} is {kind}, expected an array, a number or a string")
        if host.dtype.name not in DTYPES.values():
            raise TypeError(
                f"save_safetensors: {path or 'tree'} has the dtype {host.dtype.name}, which cannot be stored; valid "
                f"dtypes: {', '.join(DTYPES.values())}"
            )
        name = self._unused(path or "tensor")
        self.arrays[name] = np.asarray(host, order="C")  # the library ignores strides
        return name

    def _unused(self, path: str) -> str:
        """Return the path, or a similar name if a key with a dot has already led to the same path."""
        path = path.encode("utf-8", "replace").decode()  # surrogates cannot be stored in a file
        name, number = path, 1
        while name in self.arrays or name == "__metadata__":  # reserved by the format
            number += 1
            name = f"{path}#{number}"
        return name


def _key(key: object, path: str) -> str | int:
    if type(key) in (str, int):
        return key  # type: ignore[return-value]
    raise TypeError(f"save_safetensors: {path or 'tree'} has the key {key!r}, expected a string or an integer")


def _join(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _checked_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    entries = dict(metadata or {})
    for key, value in entries.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"save_safetensors: metadata has the entry {key!r}: {value!r}, expected only strings")
    if STRUCTURE in entries:
        raise ValueError(f"save_safetensors: the metadata key {STRUCTURE!r} is reserved for the structure")
    return entries


def _write(path: Path, arrays: dict[str, np.ndarray[Any, Any]], metadata: dict[str, str]) -> None:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError as error:
        raise missing("safetensors") from error
    target = path.resolve()  # a link stays a link; its target is replaced
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder", str(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path.parent))
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex}.tmp"
    try:
        temporary.touch(exist_ok=False)
        mode = (target if target.exists() else temporary).stat().st_mode  # the library would make it private
        save_file(arrays, temporary, metadata)
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


# --------------------------------------------------------------------------------------------------- reading


class _Reader:
    """Reads one file, one tensor after another, so that the host holds few of them at a time."""

    def __init__(self, path: Path, backend: str) -> None:
        self.path = path
        self.backend = backend
        self.file, self.metadata, self.entries = open_safetensors(path)
        self.unread = set(self.entries)

    def read(self) -> Any:
        described = self.metadata.get(STRUCTURE)
        if described is None:
            return {name: self.tensor(name) for name in sorted(self.entries)}
        try:
            structure = json.loads(described)
        except (ValueError, RecursionError) as error:
            raise self.misfit(f"it is not valid JSON: {error}") from None
        try:
            found = self.build(structure)
        except RecursionError:
            raise self.misfit("it is nested too deeply") from None
        if self.unread:
            raise self.misfit(f"it omits the tensor {min(self.unread)}")
        return found

    def misfit(self, problem: str) -> ValueError:
        return ValueError(
            f"{self.path}: the metadata entry {STRUCTURE} does not describe this file: {problem}; another program may "
            "have changed it: safetensors.numpy.load_file reads it without a structure"
        )

    def build(self, node: Any) -> Any:
        """Return the structure for a description."""
        match node:
            case {"tensor": str(name)} if name in self.unread:
                self.unread.remove(name)
                return self.tensor(name)
            case {"value": None | bool() | int() | float() | str() as value}:
                return value
            case {"float": "nan" | "inf" | "-inf" as number}:
                return float(number)
            case {"list": list(nodes)}:
                return [self.build(item) for item in nodes]
            case {"tuple": list(nodes)}:
                return tuple(self.build(item) for item in nodes)
            case {"dict": list(pairs)}:
                return dict(map(self.build_item, pairs))
        raise self.misfit(f"it says {node!r:.80}")

    def build_item(self, pair: Any) -> tuple[str | int, Any]:
        """Return an item of a dict from its key and the description of its value."""
        match pair:
            case [str() | int() as key, node]:
                return key, self.build(node)
        raise self.misfit(f"it says {pair!r:.80}")

    def tensor(self, name: str) -> Any:
        dtype, shape, start, nbytes = self.entries[name]
        if dtype not in DTYPES:
            raise TypeError(
                f"{self.path}: tensor {name} has the dtype {dtype}, which cannot be read; valid: {', '.join(DTYPES)}"
            )
        host = self.file.read(start, nbytes, f"tensor {name}").view(DTYPES[dtype])
        try:
            return tp.to_backend(host.reshape(shape), self.backend)
        except TypeError as error:
            raise TypeError(f"{self.path}: tensor {name}: {error}") from None
        except (ValueError, OverflowError) as error:  # a shape that the library does not support
            raise ValueError(f"{self.path}: tensor {name}: {error}") from None
