"""The keys and values of a text, kept for the next one that begins with the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
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
        common = self.cache.truncate(self.common(ids))
        self._ids = list(ids)
        return self._ids[common:]

    def common(self, ids: Sequence[int]) -> int:
        """Return how many tokens of a text, at the beginning and without the last one, need not be read again."""
        most = min(len(self.ids), len(ids) - 1)
        return next((i for i in range(most) if self._ids[i] != ids[i]), most)

    def append(self, token: int) -> None:
        """Note a token that follows; its key and value come when it is read."""
        self._ids.append(token)
