"""The keys and values of a text, kept for the next one that begins with the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import tensorops as tp

from .cache import grown
from .files.safetensors_files import load_safetensors, save_safetensors

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from .cache import KVCache

__all__ = ["PromptCache"]


class PromptCache:
    """The tokens of a text with their keys and values; `LanguageModel.new_prompt_cache` makes an empty one.

    `LanguageModel.generate_ids` reads only what its prompt does not have in common with the text before: of a
    conversation, the new messages.

    Parameters
    ----------
    cache : KVCache
        An empty cache of the model.

    Attributes
    ----------
    cache : KVCache
        The keys and values.
    reused : int
        How many tokens of the last text did not have to be read.
    """

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.reused = 0
        self._ids: list[int] = []

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens whose keys and values are there."""
        return tuple(self._ids[: self.cache.length])

    def begin(self, ids: Sequence[int]) -> list[int]:
        """Forget what a text does not have in common with the one before.

        Parameters
        ----------
        ids : sequence of int
            The text, at least one token.

        Returns
        -------
        list of int
            The tokens that are to be read, at least the last one, whose successor is asked for.
        """
        self.reused = self.cache.truncate(self.common(ids))  # states of other kinds are forgotten as a whole
        self._ids = list(ids)
        return self._ids[self.reused :]

    def common(self, ids: Sequence[int]) -> int:
        """Return how many tokens a text has in common with the one before, without its last one."""
        most = min(len(self.ids), len(ids) - 1)
        return next((i for i in range(most) if self._ids[i] != ids[i]), most)

    def append(self, token: int) -> None:
        """Note a token that follows; its key and value come when it is read."""
        self._ids.append(token)

    def save(self, path: str | os.PathLike[str], count: int, *, metadata: Mapping[str, str] | None = None) -> None:
        """Write the first tokens with their keys and values to a safetensors file; `load` reads it.

        Parameters
        ----------
        path : str or path-like
            The file.
        count : int
            How many tokens.
        metadata : mapping of str to str, optional
            Of the file: for instance, from which model it is.

        Raises
        ------
        OSError
            The file cannot be written.
        ValueError
            Blocks with a window have forgotten what the next token would see.
        """
        tree: dict[str, Any] = {"ids": np.asarray(self.ids[:count], np.int32), "base": np.asarray(self.cache.base)}
        slots = self.cache.slots_of(count, self.cache.base)
        for name, own in (("keys", self.cache.keys), ("values", self.cache.values)):
            there = zip(tp.to_backend(own, "numpy"), slots, strict=True)
            tree[name] = [np.asarray(part)[:, :, :end, :] for part, end in there]
        save_safetensors(tree, path, metadata=metadata)

    def load(self, path: str | os.PathLike[str], backend: str) -> None:
        """Take over what `save` has written, instead of what is here.

        Parameters
        ----------
        path : str or path-like
            The file.
        backend : str
            That of the model.

        Raises
        ------
        ValueError
            It is no such file, or of a model with other sizes.
        OSError
            It cannot be read.
        """
        stored, cache = load_safetensors(path, "numpy"), self.cache
        ids = stored.get("ids") if isinstance(stored, dict) else None
        if ids is None:
            raise ValueError(f"{path} has no keys and values of a prompt")
        base, made = int(stored["base"]), []
        slots = cache.slots_of(len(ids), base)
        for name, own in (("keys", cache.keys), ("values", cache.values)):
            there = [np.asarray(part) for part in tp.to_backend(own, "numpy")]
            expected = [
                (part.dtype, *part.shape[:2], end, part.shape[3]) for part, end in zip(there, slots, strict=True)
            ]
            if [(part.dtype, *part.shape) for part in stored[name]] != expected:
                raise ValueError(f"{path} has keys and values of a model with other sizes, or in another dtype")
            with_room = [
                np.pad(part, ((0, 0), (0, 0), (0, grown(empty.shape[2], end) - end), (0, 0)))
                for part, empty, end in zip(stored[name], there, slots, strict=True)
            ]
            made.append(tp.to_backend(with_room, backend))
        cache.keys, cache.values = made
        cache.length, cache.base, self._ids = len(ids), base, ids.tolist()
