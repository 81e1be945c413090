"""The tokens of a vocabulary: their kinds, their bytes, and which of them end a text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorops.models.files.gguf_types import TokenType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["BYTE_LETTERS", "BYTE_TOKEN", "SPACE", "SPECIAL_NAMES", "TokenizerParts", "Vocabulary", "end_tokens"]

SPACE = "▁"  # how SentencePiece writes a space
BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
# What chat templates call special tokens
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Tokens that end a turn or a text, although the file may name only one of them in its metadata.
END_TOKENS = {
    "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|call|>",
    "<|calls|>", "<|flush|>", "<end_of_turn>", "<turn|>", "<|tool_response>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "[e~[", "<end_of_utterance>", "<｜end▁of▁sentence｜>", "<|endofprompt|>", "<|fim_pad|>", "<fim_pad>", "<fim-pad>",
    "<|fim_repo|>", "<fim-repo>", "<|repo_name|>", "<reponame>", "<|file_sep|>",
}  # fmt: skip
# These do so only as control tokens: elsewhere they are HTML, for instance in Gemma's vocabulary.
END_CONTROLS = END_TOKENS | {"</s>", "<eos>"}


def _byte_letters() -> list[str]:
    """Return GPT-2's printable substitute for every byte: itself if printable, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 0x100 + others.index(byte)) for byte in range(256)]


BYTE_LETTERS = _byte_letters()
_BYTE_OF = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens and what they stand for.

    Parameters
    ----------
    tokens : list of str
        By id; an empty one stands for nothing.
    kinds : sequence of int
        A `TokenType` for each.
    byte_letters : bool
        Tokens are written with GPT-2's letter for every byte; otherwise as text, with ``▁`` for spaces.
    """

    tokens: list[str]
    kinds: Sequence[int]
    byte_letters: bool

    def is_control(self, token: int) -> bool:
        """Return whether a token is none of the text."""
        return self.kinds[token] in (TokenType.CONTROL, TokenType.UNKNOWN)

    def bytes_of(self, token: int) -> bytes:
        """Return what a token stands for."""
        text, kind = self.tokens[token], self.kinds[token]
        if kind == TokenType.BYTE and (match := BYTE_TOKEN.fullmatch(text)):
            return bytes.fromhex(match[1])
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
            return text.encode()
        if kind != TokenType.NORMAL:
            return b""
        if not self.byte_letters:
            return text.replace(SPACE, " ").encode()
        if not _BYTE_OF.keys() >= set(text):
            return text.encode()
        return bytes(_BYTE_OF[letter] for letter in text)


@dataclass(frozen=True)
class TokenizerParts:
    """What a `Tokenizer` needs to know, wherever it comes from.

    Parameters
    ----------
    vocabulary : Vocabulary
        The tokens.
    encode : callable
        Returns the ids of a text, without any around it.
    before, after : list of int
        Tokens around a text.
    bos_id, eos_id : int, optional
        The tokens that begin and end a text.
    special : dict of str to str
        The tokens that templates may use, by names such as ``pad_token``; only those that the model has.
    end_ids : frozenset of int
        All tokens that end the output of a model.
    space_before : bool
        `encode` puts a space before a text.
    template : str, optional
        The chat template.
    template_error : callable
        Returns the error about the template with a text.
    """

    vocabulary: Vocabulary
    encode: Callable[[str], list[int]]
    before: list[int]
    after: list[int]
    bos_id: int | None
    eos_id: int | None
    special: dict[str, str]
    end_ids: frozenset[int]
    space_before: bool
    template: str | None
    template_error: Callable[[str], ValueError]


def end_tokens(tokens: Sequence[str], kinds: Sequence[int], named: Iterable[int | None]) -> frozenset[int]:
    """Return the tokens that end the output of a model.

    Parameters
    ----------
    tokens, kinds : sequence
        As of a `Vocabulary`.
    named : iterable of int or None
        Those that the file itself names.
    """
    found = (i for i, token in enumerate(tokens) if token in END_CONTROLS)
    known = {tokens[i]: i for i in found if kinds[i] == TokenType.CONTROL}
    if {"<|return|>", "<|call|>"} <= known.keys() or {"<|flush|>", "<|calls|>"} <= known.keys():
        known.pop("<|end|>", None)  # ends a message there, and another follows
    return frozenset(i for i in (*known.values(), *named) if i is not None)
