"""Text to token ids and back, from the vocabulary and merges inside a GGUF file."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from ._errors import missing
from .chat import check_messages, render_chat
from .fields import Fields

try:
    from gguf.constants import TokenType
    from tokenizers import AddedToken, Regex, Tokenizer as FastTokenizer, models, pre_tokenizers
except ImportError as error:
    raise missing(error.name or "tokenizers") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .gguf import GGUFFile

__all__ = ["Tokenizer"]

PREFIX = "tokenizer.ggml"

# GPT-2's rule for splitting a text into words before merging bytes; the other rules refine it.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The rule for a file without a named one: punctuation first, then GPT-2's words, digits in threes.
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True)
class Rule:
    """A rule named by ``tokenizer.ggml.pre``: patterns that split a text one after the other."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


RULES = {
    "default": Rule(DEFAULT),
    "gpt-2": Rule((GPT2,)),
    "llama-bpe": Rule((LLAMA3,), ignore_merges=True, add_bos=True),
    "smollm": Rule((r"\p{N}", GPT2)),
}
# Tokens that end a turn or a text, although the file may name only one of them in its metadata.
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>")
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class Tokenizer:
    """A byte-level BPE tokenizer described by a GGUF file.

    Parameters
    ----------
    file : GGUFFile
        Its ``tokenizer.ggml.model`` must be ``gpt2`` and its ``tokenizer.ggml.pre`` one of
        ``default``, ``gpt-2``, ``llama-bpe`` and ``smollm``.

    Attributes
    ----------
    bos_id, eos_id : int or None
        The tokens that begin and end a text.
    end_ids : frozenset of int
        All tokens that end the output of a model.

    Raises
    ------
    GGUFError
        A field is missing, malformed or not supported; the message names it.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._fields = Fields(file)
        rule = _rule(self._fields)
        tokens = self._fields.strings(f"{PREFIX}.tokens")
        kinds = self._fields.integers(f"{PREFIX}.token_type", [int(TokenType.NORMAL)] * len(tokens))
        self._tokens = tokens
        self._special = frozenset(i for i, kind in enumerate(kinds) if kind == TokenType.CONTROL)
        self._literal = frozenset(i for i, kind in enumerate(kinds) if kind == TokenType.USER_DEFINED)
        self._fast = _fast_tokenizer(self._fields, rule, tokens, self._special, self._literal)
        self.bos_id = self._fields.index(f"{PREFIX}.bos_token_id", len(tokens))
        self.eos_id = self._fields.index(f"{PREFIX}.eos_token_id", len(tokens))
        self._add_bos = self._fields.flag(f"{PREFIX}.add_bos_token", rule.add_bos)
        self._add_eos = self._fields.flag(f"{PREFIX}.add_eos_token", False)
        named = (self._fields.index(f"{PREFIX}.{key}", len(tokens)) for key in END_KEYS)
        known = (i for i in self._special if tokens[i] in END_TOKENS)
        self.end_ids = frozenset(i for i in (*named, *known) if i is not None)

    def __len__(self) -> int:
        return len(self._tokens)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the token ids of a text.

        A control token written out in the text, such as ``<|im_end|>``, becomes that token. Bytes that the vocabulary
        lacks are left out, and the texts before and after one are not merged.

        Parameters
        ----------
        text : str
            Any text.
        add_special : bool
            Add the beginning and end tokens if the file requires them.

        Returns
        -------
        list of int
            Token ids.
        """
        encoded = self._fast.encode(text, add_special_tokens=False).ids
        ids: list[int] = [i for i in encoded if i != len(self._tokens)]
        if add_special and self._add_bos and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        if add_special and self._add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def encode_prompt(self, prompt: str | Sequence[dict[str, str]], *, chat: bool = False) -> list[int]:
        """Return the tokens of a prompt for a model to continue.

        Parameters
        ----------
        prompt : str, or sequence of dict with ``role`` and ``content``
            A text, or the messages of a conversation.
        chat : bool
            Treat a text as a user's message; messages are always a conversation.

        Returns
        -------
        list of int
            Tokens of the text, or of the conversation rendered with the model's chat template.
        """
        if isinstance(prompt, str) and not chat:
            return self.encode(prompt)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return self.encode(self.apply_chat_template(messages), add_special=False)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of token ids; bytes that are not UTF-8 become U+FFFD.

        Parameters
        ----------
        ids : iterable of int
            Token ids.
        skip_special : bool
            Leave control tokens out.

        Returns
        -------
        str
            The text.
        """
        return "".join(self.stream(ids, skip_special=skip_special))

    def stream(self, ids: Iterable[int], *, skip_special: bool = True) -> Iterator[str]:
        """Yield the text of token ids as it becomes known, in whole characters.

        A token may have only some bytes of a character; they are kept until the rest arrives.

        Parameters
        ----------
        ids : iterable of int
            Token ids, for instance as a model produces them.
        skip_special : bool
            Leave control tokens out.

        Yields
        ------
        str
            A non-empty piece of text.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in ids:
            if piece := decoder.decode(self._bytes(token, skip_special)):
                yield piece
        if piece := decoder.decode(b"", final=True):
            yield piece

    def apply_chat_template(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool = True) -> str:
        """Return a conversation as the text that the model was trained on.

        Encode the result with ``add_special=False``: the template itself writes the special tokens.

        Parameters
        ----------
        messages : sequence of dict
            Each with the strings ``role`` (``system``, ``user``, ``assistant``) and ``content``.
        add_generation_prompt : bool
            End with the start of the assistant's turn.

        Returns
        -------
        str
            The prompt.

        Raises
        ------
        GGUFError
            The file has no template, or its template failed.
        ValueError
            A message lacks its role or its content.
        """
        template = self._fields.string("tokenizer.chat_template")
        names = {"bos_token": self.bos_id, "eos_token": self.eos_id}
        texts = {name: "" if i is None else self._tokens[i] for name, i in names.items()}
        check_messages(messages)
        try:
            return render_chat(template, messages, add_generation_prompt=add_generation_prompt, **texts)
        except Exception as error:
            # The template is a program from the file: anything it raises is the file's fault.
            problem = f"the template failed: {type(error).__name__}: {error}"
            raise self._fields.error("tokenizer.chat_template", problem) from error

    def _bytes(self, token: int, skip_special: bool) -> bytes:
        if not 0 <= token < len(self._tokens):
            raise ValueError(f"token id {token} is outside the vocabulary of {len(self._tokens)} tokens")
        if token in self._special:
            return b"" if skip_special else self._tokens[token].encode()
        text = self._tokens[token]
        if token in self._literal or not BYTE_OF.keys() >= set(text):
            return text.encode()
        return bytes(BYTE_OF[character] for character in text)


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable substitute for every byte: itself if printable, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


BYTE_OF = _byte_alphabet()


def _rule(fields: Fields) -> Rule:
    """Return the file's rule for splitting a text into words."""
    key = f"{PREFIX}.model"
    if (model := fields.string(key)) != "gpt2":
        raise fields.error(key, f"{model!r:.80} is not supported, only 'gpt2' (byte-level BPE)")
    key = f"{PREFIX}.pre"
    if (name := fields.string(key, "default")) not in RULES:
        raise fields.error(key, f"{name!r:.80} is not supported, only {', '.join(RULES)}")
    return RULES[name]


def _fast_tokenizer(
    fields: Fields, rule: Rule, tokens: list[str], special: frozenset[int], literal: frozenset[int]
) -> Any:
    """Build the tokenizer proper; a vocabulary that contradicts itself is the file's fault."""
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise fields.error(f"{PREFIX}.tokens", "the same token occurs twice")
    key = f"{PREFIX}.merges"
    merges = [_pair(fields, merge) for merge in fields.strings(key)]
    for left, right in merges:
        for part in (left, right, left + right):
            if part not in vocabulary:
                raise fields.error(key, f"{part!r:.80} is not among the tokens")
    # A byte that the vocabulary lacks must keep its neighbours from being merged, so it also gets an id, which
    # `encode` removes. No text is this token: words consist of the alphabet of bytes, which has no space.
    unknown = next(name for n in count(1) if (name := n * " ") not in vocabulary)
    vocabulary[unknown] = len(tokens)
    model = models.BPE(vocabulary, merges, ignore_merges=rule.ignore_merges, unk_token=unknown)
    fast = FastTokenizer(model)
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    for ids, is_special in ((special, True), (literal, False)):
        named = [tokens[i] for i in sorted(ids) if tokens[i]]
        fast.add_tokens([AddedToken(token, special=is_special, normalized=False) for token in named])
    return fast


def _pair(fields: Fields, merge: str) -> tuple[str, str]:
    # A part must not be empty, so a merge that begins with a space has its separator later.
    space = merge.find(" ", 1)
    if space < 1 or space == len(merge) - 1:
        raise fields.error(f"{PREFIX}.merges", f"{merge!r:.80} is not two tokens")
    return merge[:space], merge[space + 1 :]
