"""The tokenizer inside a GGUF file."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from tensorops.models.fields import Fields
from tensorops.models.files.gguf_types import TokenType

from .merging import ByteEncoder, SpecialTokens, TextEncoder
from .pretokenizers import RULES
from .vocabulary import END_TOKENS, SPECIAL_NAMES, TokenizerParts, Vocabulary, end_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tensorops.models.files.gguf import GGUFFile

__all__ = ["read_gguf_tokenizer"]

PREFIX = "tokenizer.ggml"
TEMPLATE = "tokenizer.chat_template"
MODELS = ("gpt2", "llama", "gemma4")
# As integers, which are faster to compare than members of an enumeration.
SPECIAL = frozenset(map(int, (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)))
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
KEYS = {"unk_token": "unknown_token_id", "sep_token": "seperator_token_id", "pad_token": "padding_token_id"}


def read_gguf_tokenizer(file: GGUFFile) -> TokenizerParts:
    """Return the parts of the tokenizer in a file; GGUFError names a field that is at fault."""
    fields = Fields(file)
    key = f"{PREFIX}.model"
    if (model := fields.string(key)) not in MODELS:
        raise fields.error(key, f"{model!r:.80} is not supported, only {', '.join(MODELS)}")
    tokens = fields.strings(f"{PREFIX}.tokens")
    kinds = fields.integers(f"{PREFIX}.token_type", [int(TokenType.NORMAL)] * len(tokens))
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    ids.pop("", None)
    if len(ids) != len(tokens) - tokens.count(""):
        raise fields.error(f"{PREFIX}.tokens", "the same token occurs twice")
    for token in END_TOKENS & ids.keys():
        kinds[ids[token]] = int(TokenType.CONTROL)  # files often say that they are ordinary
    encoder: ByteEncoder | TextEncoder
    if model == "gpt2":
        encoder, add_bos = _byte_encoder(fields, ids)
    else:
        encoder, add_bos = _text_encoder(fields, model, ids, len(tokens)), True
    bos, eos, *ends = (fields.index(f"{PREFIX}.{key}", len(tokens)) for key in ("bos_token_id", *END_KEYS))
    # The vocabulary of Gemma 4 needs a beginning, although some files say otherwise.
    add_bos = fields.flag(f"{PREFIX}.add_bos_token", add_bos) or model == "gemma4"
    add_eos = fields.flag(f"{PREFIX}.add_eos_token", False)
    return TokenizerParts(
        vocabulary=Vocabulary(tokens, kinds, byte_letters=model == "gpt2"),
        encode=_with_special(encoder, _special_tokens(fields, tokens, kinds)),
        before=[bos] if add_bos and bos is not None else [],
        after=[eos] if add_eos and eos is not None else [],
        bos_id=bos,
        eos_id=eos,
        special=_special_names(fields, tokens),
        end_ids=end_tokens(tokens, kinds, (eos, *ends)),
        space_before=model == "llama" and _space_before(fields),
        template=fields.string(TEMPLATE) if TEMPLATE in file.metadata else None,
        template_error=lambda problem: fields.error(TEMPLATE, problem),
    )


def _special_names(fields: Fields, tokens: list[str]) -> dict[str, str]:
    """Return the tokens that templates may use, by name."""
    ids = {name: fields.value(f"{PREFIX}.{KEYS.get(name, f'{name}_id')}") for name in SPECIAL_NAMES}
    # Converters write an id such as 2**32 - 1 for none.
    return {name: tokens[i] for name, i in ids.items() if type(i) is int and 0 <= i < len(tokens)}


def _with_special(encoder: ByteEncoder | TextEncoder, special: SpecialTokens) -> Callable[[str], list[int]]:
    def encode(text: str) -> list[int]:
        ids: list[int] = []
        after_special = True
        for part in special.split(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += encoder.encode(part, after_special=after_special)
            after_special = isinstance(part, int)
        return ids

    return encode


def _special_tokens(fields: Fields, tokens: list[str], kinds: list[int]) -> SpecialTokens:
    ids = {tokens[i]: i for i, kind in enumerate(kinds) if kind in SPECIAL and tokens[i]}
    name = fields.string("general.name", "").lower()
    if "phi-3" in name or "phi3" in name:
        # No field of the file says that these models were trained without spaces there.
        return SpecialTokens(ids, lambda token: token not in ("<unk>", "<s>", "<|endoftext|>"))
    return SpecialTokens(ids)


def _byte_encoder(fields: Fields, ids: dict[str, int]) -> tuple[ByteEncoder, bool]:
    """Return the encoder, and whether a text begins with the beginning token."""
    key = f"{PREFIX}.pre"
    if (name := fields.string(key, "default")) not in RULES:
        raise fields.error(key, f"{name!r:.80} is not supported, only {', '.join(RULES)}")
    return ByteEncoder(ids, _merge_ranks(fields, ids), RULES[name]), RULES[name].add_bos


def _text_encoder(fields: Fields, model: str, ids: dict[str, int], count: int) -> TextEncoder:
    byte_ids = {byte: ids[name] for byte in range(256) if (name := f"<0x{byte:02X}>") in ids}
    if model == "gemma4":
        ranks = _merge_ranks(fields, ids)
        return TextEncoder(
            ids, lambda left, right: ranks.get(f"{left} {right}"), byte_ids, None, space_before=False, lines=True
        )
    priorities = dict(zip(ids, (-_scores(fields, count)[list(ids.values())]).tolist(), strict=True))
    unknown = fields.index(f"{PREFIX}.unknown_token_id", count)
    return TextEncoder(
        ids,
        lambda left, right: priorities.get(left + right),
        byte_ids,
        unknown,
        space_before=_space_before(fields),
        lines=False,
    )


def _space_before(fields: Fields) -> bool:
    return fields.flag(f"{PREFIX}.add_space_prefix", True)


def _scores(fields: Fields, count: int) -> NDArray[np.float32]:
    key = f"{PREFIX}.scores"
    value = fields.value(key)
    if value is None:
        raise fields.error(key, "missing")
    if getattr(value, "shape", None) != (count,) or value.dtype.kind not in "iuf" or not np.isfinite(value).all():
        raise fields.error(key, f"not a list of {count} finite numbers")
    return np.asarray(value, np.float32)


def _merge_ranks(fields: Fields, ids: dict[str, int]) -> dict[str, int]:
    """Return the rank of every pair of tokens, written with a space between them."""
    key = f"{PREFIX}.merges"
    merges = fields.strings(key)
    if not _make_tokens(merges, ids):
        for merge in merges:
            _check_merge(fields, key, merge, ids)
    # Of a pair that occurs twice, the first one counts.
    return dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))


def _make_tokens(merges: list[str], ids: dict[str, int]) -> bool:
    """Return whether each merge is two parts that make a token, without a step of Python for each.

    A part that is no token itself does no harm: no other merge makes it.
    """
    if set(map(str.count, merges, repeat(" "))) - {1} or "  " in f" {' '.join(merges)} ":
        return False
    return all(map(ids.__contains__, map(str.replace, merges, repeat(" "), repeat(""))))


def _check_merge(fields: Fields, key: str, merge: str, ids: dict[str, int]) -> None:
    # A part must not be empty, so a merge that begins with a space has its separator later.
    space = merge.find(" ", 1)
    if space < 1 or space == len(merge) - 1:
        raise fields.error(key, f"{merge!r:.80} is not two tokens")
    left, right = merge[:space], merge[space + 1 :]
    for part in (left, right, left + right):
        if part not in ids:
            raise fields.error(key, f"{part!r:.80} is not among the tokens")
