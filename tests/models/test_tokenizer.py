"""Tokenizers of GGUF files and of folders, and the chat templates that come with them.

The environment variable LLAMA_CPP_SOURCES names a folder with llama.cpp's sources, whose ``models`` are vocabularies
with the expected ids of some texts.
"""

from __future__ import annotations

import base64
import copy
import ctypes
import functools
import itertools
import json
import os
import random
import re
import struct
import tracemalloc
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

import tokenizers
from jinja2.ext import LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from make_gguf import CHAT_TEMPLATE, SPECIAL, real_model, tokenizer_metadata, vocabulary, write_gguf
from tensorops.models import GGUFError, Tokenizer, open_gguf
from tensorops.models.files.gguf import GGUFFile
from tensorops.models.tokenizers import chat
from tensorops.models.tokenizers.merging import ByteEncoder
from tensorops.models.tokenizers.pretokenizers import RULES

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = vocabulary()[0]
SOME_RULES = ("default", "gpt-2", "llama-bpe", "smollm")


def build(folder: Path, **changes: Any) -> Tokenizer:
    """Return the tiny tokenizer; `changes` by their names after ``tokenizer.``, None to leave out."""
    metadata = tokenizer_metadata(**{name.replace("__", "."): value for name, value in changes.items()})
    kept = {key: value for key, value in metadata.items() if value is not None}
    return Tokenizer(open_gguf(write_gguf(folder / "t.gguf", kept, {})))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return build(tmp_path_factory.mktemp("tokenizer"))


def names(tokenizer: Tokenizer, text: str) -> list[str]:
    return [TOKENS[i] for i in tokenizer.encode(text)]


# ------------------------------------------------------------------------------------ encode and decode


def test_merges_apply_in_their_order(tokenizer: Tokenizer) -> None:
    assert names(tokenizer, "hello world") == ["hello", "Ġworld"]
    assert names(tokenizer, "hell helo") == ["hell", "Ġ", "he", "l", "o"]


def test_bytes_without_a_merge(tokenizer: Tokenizer) -> None:
    assert [TOKENS[i] for i in tokenizer.encode("é\n")] == ["Ã", "©", "Ċ"]


def test_special_tokens_in_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>hello<|im_end|>")
    assert ids == [1, TOKENS.index("hello"), 2]
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>hello<|im_end|>"


@pytest.mark.parametrize("rule", SOME_RULES)
def test_every_text_survives(tmp_path_factory: pytest.TempPathFactory, rule: str) -> None:
    tokenizer = build(tmp_path_factory.mktemp("rule"), ggml__pre=rule)

    @given(
        st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: not any(each in text for each in SPECIAL))
    )
    def check(text: str) -> None:
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(ids) == text
        assert "".join(tokenizer.stream(ids)) == text

    check()


def merged_slowly(symbols: list[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Merge the pair of the lowest rank, the leftmost of these first, until there is none."""
    while ranks := [(r, i) for i, pair in enumerate(itertools.pairwise(symbols)) if (r := rank(*pair)) is not None]:
        at = min(ranks)[1]
        symbols[at : at + 2] = ["".join(symbols[at : at + 2])]
    return symbols


@pytest.mark.parametrize("rule", SOME_RULES)
def test_a_missing_byte_keeps_its_neighbours_apart(tmp_path_factory: pytest.TempPathFactory, rule: str) -> None:
    merges = ["! !", "!! ?", "? !", "? ?", "!!? !"]
    kept = [token for token in TOKENS if token not in ("Ć", ";")]  # the byte 6, and one that stands for itself
    tokens = [*kept, *(merge.replace(" ", "") for merge in merges), " ", "  "]
    tokenizer = build(
        tmp_path_factory.mktemp("missing"),
        ggml__pre=rule, ggml__tokens=tokens, ggml__merges=merges, ggml__token_type=None, ggml__add_bos_token=False,
    )  # fmt: skip
    assert [tokens[i] for i in tokenizer.encode("!\x06!!?")] == ["!", "!!?"]

    @given(st.text("!?;\x06", max_size=12))
    def check(text: str) -> None:
        # The rule "default" makes words of punctuation alone, the others cut nothing here.
        words = re.split("(\x06+)", text) if rule == "default" else [text]
        words = [word.replace("\x06", "Ć") for word in words]
        rank = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}.get
        merged = [token for word in words for token in merged_slowly(list(word), lambda *pair: rank(pair))]
        assert [tokens[i] for i in tokenizer.encode(text)] == [token for token in merged if token in tokens]

    check()


def test_a_whole_word_may_hold_a_byte_that_is_no_token(tmp_path: Path) -> None:
    tokens = [*(token for token in TOKENS if token != "Ć"), "!Ć!"]
    changes = {"ggml__tokens": tokens, "ggml__token_type": None, "ggml__add_bos_token": False}
    assert build(tmp_path, ggml__pre="llama-bpe", **changes).encode("!\x06!") == [len(tokens) - 1]


WORDS = {
    "gpt-2": "I|'ll| we|'|RE| 12345| camelCase| e|\u0301!?/|\n\n | x",
    "smollm": "I|'ll| we|'|RE| |1|2|3|4|5| camelCase| e|\u0301!?/|\n\n | x",
    "default": "I|'|ll| we|'|RE| |123|45| camelCase| e|\u0301|!?/|\n\n | x",
    "falcon": "I|'|ll| we|'|RE| |123|45| camelCase| e|\u0301|!?/|\n\n | x",
    "llama-bpe": "I|'ll| we|'RE| |123|45| camelCase| e|\u0301!?/\n\n| | x",
    "glm4": "I|'ll| we|'RE| |123|45| camelCase| e|\u0301!?/\n\n| | x",
    "dbrx": "I|'ll| we|'RE| |123|45| camelCase| e|\u0301!?/\n\n| | x",
    "qwen2": "I|'ll| we|'RE| |1|2|3|4|5| camelCase| e|\u0301!?/\n\n| | x",
    "qwen35": "I|'ll| we|'RE| |1|2|3|4|5| camelCase| e\u0301|!?/\n\n| | x",
    "tekken": "I|'ll| we|'RE| |1|2|3|4|5| camel|Case| e\u0301|!?/\n\n| | x",
    "gpt-4o": "I'll| we'RE| |123|45| camel|Case| e\u0301|!?/\n\n| | x",
    "deepseek-llm": "I|'|ll| we|'|RE| |12345| camelCase| e|\u0301|!?/|\n|\n| | x",
    "deepseek-coder": "I|'|ll| we|'|RE| |1|2|3|4|5| camelCase| e|\u0301|!?/|\n|\n| | x",
    "deepseek-v3": "I|'ll| we|'RE| |123|45| camelCase| e\u0301|!?/\n\n| | x",
    "seed-coder": "I|'ll| we|'RE| |1|2|3|4|5| camelCase| e|\u0301!?/|\n\n| | x",
    "bailingmoe": "I|'ll| we|'RE| |1|2|3|4|5| camelCase| e|\u0301!?/\n\n| | x",
    "minicpm5": "I|'ll| we|'RE| |123|45| camelCase| e|\u0301!?/\n\n| | x",
    "exaone-moe": "I|'ll| we|'RE| |1|2|3|4|5| camelCase e\u0301|!?/\n|\n| | x",
}


@pytest.mark.parametrize("rule", WORDS)
def test_the_rule_says_where_words_end(rule: str) -> None:
    words = WORDS[rule].split("|")
    assert ByteEncoder({}, {}, RULES[rule]).words("".join(words)) == words


def test_llama_bpe_takes_a_whole_word_that_no_merge_makes(tmp_path: Path) -> None:
    tokens = [*TOKENS, "xyz"]
    changes = {"ggml__tokens": tokens, "ggml__token_type": None, "ggml__add_bos_token": False}
    assert build(tmp_path, ggml__pre="llama-bpe", **changes).encode("xyz") == [len(TOKENS)]
    assert len(build(tmp_path, ggml__pre="gpt-2", **changes).encode("xyz")) == 3


def test_stream_never_yields_half_a_character(tokenizer: Tokenizer) -> None:
    text = "a€🙂é"
    ids = tokenizer.encode(text)
    assert len(ids) == 1 + 3 + 4 + 2  # one token a byte
    assert list(tokenizer.stream(iter(ids))) == ["a", "€", "🙂", "é"]


def test_stream_ends_with_what_was_left_open(tokenizer: Tokenizer) -> None:
    euro = tokenizer.encode("€")
    assert list(tokenizer.stream(euro[:2])) == ["\ufffd"]
    assert list(tokenizer.stream([*euro[:2], *tokenizer.encode("x")])) == ["\ufffdx"]


def test_ids_that_no_token_has_have_no_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    hello = TOKENS.index("hello")
    ids = [hello, len(tokenizer), 151_935, hello]
    for each in (tokenizer, Tokenizer.from_folder(write_folder(tmp_path))):
        assert each.decode(ids) == each.decode(ids, skip_special=False) == each.decode(ids, stop="x") == "hellohello"
        with pytest.raises(ValueError, match="token id -1 is negative"):
            each.decode([-1])
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).decode(ids) == "hellohello"


def test_lone_surrogates_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    pieces = Tokenizer(open_gguf(sentencepiece(tmp_path)[0]))
    for each in (tokenizer, pieces, Tokenizer.from_folder(write_folder(tmp_path))):
        with pytest.raises(ValueError, match=r"^text has a lone surrogate, U\+D800, at 2: it is no character$"):
            each.encode("a \ud800b")
        with pytest.raises(ValueError, match=r"^stop has a lone surrogate, U\+DFFF, at 0"):
            each.decode([5], stop=["x", "\udfff"])
    with pytest.raises(ValueError, match=r"^text has a lone surrogate, U\+DC80, at "):
        tokenizer.encode_prompt("\udc80", chat=True)


def test_a_text_ends_before_a_control_token_in_stop(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hello<|im_start|> world", add_special=False)
    for stop in ("<|im_start|>", ["x", "lo<|im_start|> w"]):
        expected = "hello" if isinstance(stop, str) else "hel"
        assert tokenizer.decode(ids, stop=stop) == tokenizer.decode(ids, stop=stop, skip_special=False) == expected
    assert tokenizer.decode(ids, stop="lo w") == "hel"
    assert tokenizer.decode(ids, stop="<|im_end|>") == "hello world"


def test_user_defined_tokens_are_found_and_shown(tmp_path: Path) -> None:
    tokens, kinds = vocabulary()
    tokenizer = build(tmp_path, ggml__tokens=[*tokens, "é[x]"], ggml__token_type=[*kinds, 4])
    ids = tokenizer.encode("aé[x]b")
    assert len(tokens) in ids
    assert tokenizer.decode(ids) == "aé[x]b"


# ------------------------------------------------------------------------------------ SentencePiece, Gemma 4

PIECES = {
    "▁": -3,
    "a": -4,
    "b": -4,
    "c": -4,
    "▁a": -2,
    "ab": -1,
    "ba": -1,
    "▁▁": -2,
    "bc": -1,
    "▁ab": -5,
    "a▁": -6,
    "é": -7,
}


def sentencepiece(
    folder: Path, *, kinds: tuple[int, ...] = (2, 3, 3, 4), bytes_too: bool = True, **changes: Any
) -> Any:
    """Return the path of a tiny file, and its tokens."""
    tokens = ["<unk>", "<s>", "</s>", "[x y]", *PIECES]
    if bytes_too:
        tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    types = [*kinds, *[1] * len(PIECES), *[6] * 256]
    scores = [0.0] * 4 + [float(score) for score in PIECES.values()] + [0.0] * 256
    metadata = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.token_type": types[: len(tokens)], "tokenizer.ggml.scores": scores[: len(tokens)],
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    }  # fmt: skip
    metadata |= {name.replace("__", "."): value for name, value in changes.items()}
    return write_gguf(folder / "s.gguf", metadata, {}), tokens


@pytest.mark.parametrize("space_before", [True, False])
def test_sentencepiece_merges_by_score(tmp_path: Path, space_before: bool) -> None:
    path, tokens = sentencepiece(tmp_path, tokenizer__ggml__add_space_prefix=space_before)
    tokenizer = Tokenizer(open_gguf(path))

    def rank(left: str, right: str) -> int | None:
        return -PIECES[left + right] if left + right in PIECES else None

    @given(st.lists(st.sampled_from(["a", "b", "c", " ", "\n", "é", "€", "</s>", "[x y]", "▁"]), max_size=20))
    def check(parts: list[str]) -> None:
        text = "".join(parts)
        expected = []
        for part in re.split(r"(</s>|\[x y\])", text):
            if part in ("</s>", "[x y]"):
                expected.append(part)
            elif part:
                characters = list((" " * space_before + part).replace(" ", "▁"))
                for symbol in merged_slowly(characters, rank):
                    expected += [symbol] if symbol in tokens else [f"<0x{byte:02X}>" for byte in symbol.encode()]
        ids = tokenizer.encode(text, add_special=False)
        assert [tokens[i] for i in ids] == expected
        if not {"</s>", "[x y]", "▁"} & set(parts):
            assert tokenizer.decode(tokenizer.encode(text)) == text
            assert "".join(tokenizer.stream(ids)) == " " * (space_before and text != "") + text

    check()
    assert tokenizer.encode("") == [1]


def test_sentencepiece_without_bytes_has_an_unknown_token(tmp_path: Path) -> None:
    path, tokens = sentencepiece(tmp_path, bytes_too=False)
    tokenizer = Tokenizer(open_gguf(path))
    assert [tokens[i] for i in tokenizer.encode("a€€ab")] == ["<s>", "▁a", "<unk>", "<unk>", "ab"]
    assert tokenizer.decode([0, 4, 4, 5]) == " a"


def test_phi_3_drops_spaces_after_special_tokens(tmp_path: Path) -> None:
    path, tokens = sentencepiece(tmp_path, general__name="Phi-3 mini", kinds=(2, 3, 3, 3))
    ids = Tokenizer(open_gguf(path)).encode("a[x y] \n ab<s> a", add_special=False)
    assert [tokens[i] for i in ids] == ["▁a", "[x y]", "▁ab", "<s>", "▁▁", "a"]  # all are left after <s>


def test_gemma_4_merges_text(tmp_path: Path) -> None:
    merges = ["▁ a", "b c", "▁a bc", "\n \n", "c \n"]
    made = [merge.replace(" ", "") for merge in merges]
    tokens = ["<bos>", "a", "b", "c", "▁", "\n", *made, "\n\n\n", *(f"<0x{byte:02X}>" for byte in range(256))]
    metadata = {
        "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3, *[1] * 11, *[6] * 256], "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }  # fmt: skip
    tokenizer = Tokenizer(open_gguf(write_gguf(tmp_path / "g.gguf", metadata, {})))
    ids = tokenizer.encode(" abc bc\n\nc\n\n\n€")
    expected = ["<bos>", "▁abc", "▁", "bc", "\n\n", "c", "\n\n\n", "<0xE2>", "<0x82>", "<0xAC>"]
    assert [tokens[i] for i in ids] == expected
    assert tokenizer.decode(ids) == " abc bc\n\nc\n\n\n€"
    assert list(tokenizer.stream(ids[-3:])) == ["€"]


# ------------------------------------------------------------------------------------------------- folders


def tokenizer_json(**changes: Any) -> dict[str, Any]:
    """The tiny byte-level vocabulary as the package tokenizers writes it."""
    tokens, kinds = vocabulary()
    ids = {token: i for i, token in enumerate(tokens)}
    merges = tokenizer_metadata()["tokenizer.ggml.merges"]
    fast = tokenizers.Tokenizer(tokenizers.models.BPE(ids, [tuple(merge.split(" ")) for merge in merges]))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in RULES["smollm"].patterns]
        + [tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    fast.decoder = tokenizers.decoders.ByteLevel()
    fast.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == 3])
    return json.loads(fast.to_str()) | changes


CONFIG = {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}


def write_folder(folder: Path, **files: Any) -> Path:
    """Write JSON files, named without their ending; None for none."""
    for name, content in ({"tokenizer": tokenizer_json(), "tokenizer_config": CONFIG} | files).items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def mapping(size: int, content: bytes) -> dict[str, Any]:
    encoded = base64.b64encode(struct.pack("<I", size) + content).decode()
    return {"type": "Precompiled", "precompiled_charsmap": encoded}


@pytest.mark.parametrize(
    ("normalizers", "message"),
    [
        ([replacing({"String": "a"}, "a" * 10)] * 10, r"normalizer: a text may become 1e\+10 times as long"),
        ([replacing({"Regex": ""}, "a" * 10_000)], r"normalizer: a text may become 1e\+04 times as long"),
        ([{"type": "Prepend", "prepend": "a" * 10}] * 10, r"normalizer: a text may become 3e\+10 times as long"),
        ([{"type": "NFKD"}] * 9, r"normalizer: a text may become 2e\+11 times as long"),
        ([mapping(8, b"\0" * 8 + b"a" * 10_000)], r"normalizer: a text may become 1e\+04 times as long"),
        ([mapping(2**31, b"\0" * 6)], r"precompiled_charsmap: 2147483648 bytes, but it has 6"),
    ],
)
def test_a_normalizer_takes_memory_in_proportion(normalizers: list[Any], message: str, tmp_path: Path) -> None:
    content = json.dumps(tokenizer_json(normalizer={"type": "Sequence", "normalizers": normalizers}))
    for text in (content, content.replace("compiled", "comp\\u0069led")):  # the same for a reader of JSON
        write_folder(tmp_path)
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(ValueError, match=rf"tokenizer\.json: {message}"):
            Tokenizer.from_folder(tmp_path)


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


BPE = {"type": "BPE", "vocab": {"aa": 0, "bb": 1}, "merges": [["aa", "bb"]]}
NO_TOKEN = {"single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}], "pair": [], "special_tokens": {}}
MAP_OF_ONE = base64.b64encode(struct.pack("<I", 6) + b"\1" * 6).decode()


# A merge longer than every token, one shorter than the prefix of all, a token that is missing, pieces without a length,
# a map of characters that points outside of itself, a match of nothing.
@pytest.mark.parametrize(
    "changes",
    [
        {"model": BPE},
        {"model": BPE | {"continuing_subword_prefix": "######"}},
        {"post_processor": {"type": "TemplateProcessing", **NO_TOKEN}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": MAP_OF_ONE}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": r"(?>.\s)*+^"}, "content": "aa"}},
    ],
)
def test_a_panic_of_the_package_tokenizers_is_a_value_error(
    changes: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path, tokenizer=tokenizer_json(**changes))
    with pytest.raises(ValueError, match=r"tokenizer\.json: "):
        Tokenizer.from_folder(tmp_path)
    capfd.readouterr()  # its message


PUBLISHED = {
    *(pattern for rule in RULES.values() for pattern in rule.patterns),
    # BLOOM, cl100k with possessive repeats, digits in threes from the right, CLIP, Kimi, spaces in a normalizer
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s+(?!\S)|\s",
    r"(?=(\d{3})+(?!\d))",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re)?|\p{N}{1,3}|\s+",
    r" {2,}",
    r"(?<!\n)^",
}


@pytest.mark.parametrize("pattern", sorted(PUBLISHED))
def test_patterns_of_published_tokenizers_are_read(pattern: str, tmp_path: Path) -> None:
    before = [
        split(pattern),
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ]
    sequence = {"type": "Sequence", "pretokenizers": before}
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, tokenizer=tokenizer_json(pre_tokenizer=sequence)))
    assert tokenizer.decode(tokenizer.encode("Hello, 12345 world\n\n  a")) == "Hello, 12345 world\n\n  a"


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$b", "(a|a)*b", "(a?){40}b", "a?" * 40 + "b", "a*a*b", "(a{1,3}+)b", "((a+)b?)+c", "(?:a+b|a)*",
        "(?=a*a*b)", "(?>a+a+)b", "(?i)a+a+b", "x(?i)a+|a+a+b", "(?<name>a+a+)b", "[[:alpha:]]+[]a]+b",
    ],
)  # fmt: skip
def test_patterns_that_try_too_often_are_refused(pattern: str, tmp_path: Path) -> None:
    spaces = replacing({"String": "▁"}, " ")
    for changes in (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(pattern)]}},
        {"normalizer": replacing({"Regex": pattern}, "a")},
        {"decoder": {"type": "Sequence", "decoders": [spaces, replacing({"Regex": pattern}, "")]}},
    ):
        write_folder(tmp_path, tokenizer=tokenizer_json(**changes))
        with pytest.raises(ValueError, match=r"tokenizer\.json: the regular expression .* out of proportion"):
            Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("pattern", ["(?~a)", r"(?<n>a|b\g<n>c)", "(?x)a #(", "(" * 60 + ")" * 60, r"(a)\k<1>"])
def test_patterns_of_unusual_syntax_are_refused(pattern: str, tmp_path: Path) -> None:
    write_folder(tmp_path, tokenizer=tokenizer_json(pre_tokenizer=split(pattern)))
    with pytest.raises(ValueError, match=r"tokenizer\.json: .*(not supported|too deeply|invalid)"):
        Tokenizer.from_folder(tmp_path)


def test_a_folder_is_like_the_same_gguf_file(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = Tokenizer.from_folder(write_folder(tmp_path, generation_config={"eos_token_id": [2, 5]}))
    assert (folder.bos_id, folder.eos_id, len(folder)) == (tokenizer.bos_id, tokenizer.eos_id, len(tokenizer))
    assert folder.end_ids == {0, 2, 5}
    assert folder.apply_chat_template(HELLO) == tokenizer.apply_chat_template(HELLO)
    fast = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))

    @given(st.lists(st.one_of(st.sampled_from(["hello", " world", "<|im_end|>", "12"]), st.characters(codec="utf-8"))))
    def check(parts: list[str]) -> None:
        text = "".join(parts)
        ids = folder.encode(text)
        assert ids == tokenizer.encode(text) == fast.encode(text).ids
        assert folder.decode(ids) == tokenizer.decode(ids) == text.replace("<|im_end|>", "")

    check()


def added_token(content: str, **flags: Any) -> dict[str, Any]:
    usual = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": content, "special": True} | usual | flags


# Two that follow tokenizer.json's, in any order, one of them for text; one that is in its vocabulary; one that it has.
ADDED = {
    "270": added_token("<tool>", special=False, lstrip=True),
    "269": added_token("<think>"),
    str(TOKENS.index("hello")): added_token("hello", special=False),
    "1": added_token("<|im_start|>"),
}


def test_tokens_that_only_the_configuration_has(tmp_path: Path) -> None:
    config = CONFIG | {"bos_token": "<|im_start|>", "added_tokens_decoder": ADDED, "pad_token": "<think>"}
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, tokenizer_config=config))
    text = "hello<think>  <tool>world<|im_start|>hell<tool"
    ids = tokenizer.encode(text, add_special=False)
    assert ids[:3] == [TOKENS.index("hello"), 269, 270]
    assert tokenizer.decode(ids, skip_special=False).replace("  ", "") == text.replace("  ", "")
    assert tokenizer.decode([269, 270]) == "<tool>"
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)

    @given(st.lists(st.sampled_from(["<think>", "<tool>", "hello", " ", "hel", "<|im_start|>", "é", "a"])))
    def check(parts: list[str]) -> None:
        ids = tokenizer.encode("".join(parts), add_special=False)
        assert ids == theirs.encode("".join(parts), add_special_tokens=False)
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert tokenizer.decode(ids, skip_special=skip) == expected

    check()


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({"config": {"eos_token_id": 5}}, {0, 2, 5}),
        ({"config": {"eos_token_id": [5, 7]}}, {0, 2, 5, 7}),
        ({"config": {"text_config": {"eos_token_id": [5]}}}, {0, 2, 5}),
        ({"config": {"eos_token_id": 7, "text_config": {"eos_token_id": [5]}}}, {0, 2, 7}),
        ({"config": {"eos_token_id": 5}, "generation_config": {"eos_token_id": 7}}, {0, 2, 7}),
        ({"config": {"eos_token_id": 5}, "generation_config": {}}, {0, 2}),
        ({"config": {"eos_token_id": None}}, {0, 2}),
    ],
)
def test_ends_of_the_network_count_without_a_generation_config(tmp_path: Path, files: Any, ends: set[int]) -> None:
    assert Tokenizer.from_folder(write_folder(tmp_path, **files)).end_ids == ends


NAMED = "{{ pad_token }}|{{ unk_token }}|{{ sep_token is defined }}{{ bos_token is defined }}|{{ eos_token }}"


def test_templates_see_the_special_tokens_that_there_are(tmp_path: Path) -> None:
    config = {"pad_token": "[PAD]", "unk_token": added_token("<|im_end|>"), "eos_token": "<|im_end|>"}
    config["unk_token"]["__type"] = "AddedToken"
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, tokenizer_config=config | {"chat_template": NAMED}))
    assert tokenizer.apply_chat_template(HELLO) == "[PAD]|<|im_end|>|FalseFalse|<|im_end|>"
    changes = {"padding": 3, "unknown": 2, "bos": None, "mask": 2**32 - 1}
    named = build(tmp_path, **{f"ggml__{name}_token_id": i for name, i in changes.items()}, chat_template=NAMED)
    assert named.apply_chat_template(HELLO) == f"{TOKENS[3]}|<|im_end|>|FalseFalse|<|im_end|>"
    assert "mask_token" not in named._parts.special
    with pytest.raises(ValueError, match=r"UndefinedError: 'sep_token' is undefined"):
        named.apply_chat_template(HELLO, template="{{ sep_token + 'a' }}")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.apply_chat_template(HELLO) == theirs.apply_chat_template(HELLO, tokenize=False)


@pytest.mark.parametrize("prepend", ["first", "never"])
def test_a_folder_of_sentencepiece(tmp_path: Path, prepend: str) -> None:
    ids = {token: i for i, token in enumerate(["<s>", "▁", "a", "é", "▁a", *(f"<0x{b:02X}>" for b in range(256))])}
    fast = tokenizers.Tokenizer(tokenizers.models.BPE(ids, [("▁", "a")], byte_fallback=True))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    of = tokenizers.decoders
    strip = [of.Strip(" ", 1, 0)] if prepend == "first" else []
    fast.decoder = of.Sequence([of.Replace("▁", " "), of.ByteFallback(), of.Fuse(), *strip])
    fast.add_special_tokens(["<s>"])
    fast.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    config = {"bos_token": "<s>"}
    tokenizer = Tokenizer.from_folder(
        write_folder(tmp_path, tokenizer=json.loads(fast.to_str()), tokenizer_config=config)
    )

    @given(st.text("a é€🙂"))
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        assert ids == fast.encode(text).ids
        assert ids[:1] == [0]
        assert tokenizer.encode(text, add_special=False) == ids[1:]
        assert tokenizer.decode(ids) == fast.decode(ids)
        assert tokenizer.decode(ids) == text or text.startswith(" ")
        assert "�" not in "".join(tokenizer.stream(ids))

    check()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [4]),
        ({"add_bos_token": True}, [1, 4]),
        ({"add_bos_token": True, "add_eos_token": True}, [1, 4, 2]),
        ({"add_bos_token": False}, [4]),
    ],
)
def test_the_configuration_says_what_is_around_a_text(tmp_path: Path, config: Any, expected: list[int]) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, tokenizer_config=CONFIG | config))
    assert tokenizer.encode("\x01") == expected


def test_templates_of_a_folder(tmp_path: Path) -> None:
    named = [3, {"name": [], "template": "wrong"}, {"name": "default", "template": "{{ bos_token }}"}]
    write_folder(tmp_path, tokenizer_config=CONFIG | {"chat_template": named})
    assert Tokenizer.from_folder(tmp_path).apply_chat_template(HELLO) == "<|im_start|>"
    (tmp_path / "chat_template.jinja").write_text("{{ 1 / 0 }}")
    with pytest.raises(ValueError, match=r"chat_template\.jinja: chat_template: the template failed: ZeroDivision"):
        Tokenizer.from_folder(tmp_path).apply_chat_template(HELLO)
    write_folder(tmp_path, tokenizer_config=None)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: chat_template: missing: pass messages as one text"):
        Tokenizer.from_folder(tmp_path).apply_chat_template(HELLO)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer": {}}, r"tokenizer\.json: "),
        ({"tokenizer": tokenizer_json(decoder=None)}, r"tokenizer\.json: decoder: .* is not supported"),
        ({"tokenizer": tokenizer_json(decoder={"type": "WordPiece", "prefix": "#", "cleanup": True})}, r"decoder: "),
        ({"tokenizer_config": []}, r"tokenizer_config\.json: not a JSON object"),
        ({"tokenizer_config": CONFIG | {"bos_token": 3}}, r"tokenizer_config\.json: bos_token: 3 is not among"),
        ({"tokenizer_config": CONFIG | {"eos_token": "no"}}, r"tokenizer_config\.json: eos_token: 'no' is not among"),
        (
            {"tokenizer_config": None, "special_tokens_map": {"bos_token": "no"}},
            r"special_tokens_map\.json: bos_token: ",
        ),
        ({"tokenizer_config": CONFIG | {"add_bos_token": 1}}, r"tokenizer_config\.json: add_bos_token: not a boolean"),
        ({"tokenizer_config": CONFIG | {"chat_template": 1}}, r"tokenizer_config\.json: chat_template: not a string"),
        ({"generation_config": {"eos_token_id": [269]}}, r"generation_config\.json: eos_token_id: 269 is not an"),
        ({"generation_config": {"eos_token_id": "2"}}, r"generation_config\.json: eos_token_id: '2' is not an"),
        ({"config": {"eos_token_id": -1}}, r"[/\\]config\.json: eos_token_id: -1 is not an"),
        ({"tokenizer_config": CONFIG | {"pad_token": 3}}, r"tokenizer_config\.json: pad_token: 3 is not among"),
        ({"tokenizer_config": {"added_tokens_decoder": [1]}}, r"added_tokens_decoder: not a JSON object"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {"content": "a"}}}}, r"added_tokens_decoder\.x: not a"),
        ({"tokenizer_config": {"added_tokens_decoder": {"300": {}}}}, r"added_tokens_decoder\.300: not a token"),
        (
            {"tokenizer_config": {"added_tokens_decoder": {"300": {"content": "<new>"}}}},
            r"tokenizer_config\.json: added_tokens_decoder: '<new>' has the id 300, but follows ",
        ),
        (
            {"tokenizer_config": {"added_tokens_decoder": {"269": {"content": "<new>", "lstrip": "no"}}}},
            r"tokenizer_config\.json: added_tokens_decoder\.269: ",
        ),
        (
            {"tokenizer_config": {"added_tokens_decoder": {"269": {"content": "\ud800"}}}},
            r"tokenizer_config\.json: added_tokens_decoder\.269: ",
        ),
    ],
)
def test_a_wrong_file_of_a_folder_is_named(tmp_path: Path, files: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_folder(write_folder(tmp_path, **files))


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    write_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: not UTF-8"):
        Tokenizer.from_folder(tmp_path)
    for damaged in ("[" * 100_000, '{"a": ' + "1" * 10_000 + "}"):
        (tmp_path / "tokenizer_config.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"tokenizer_config\.json: not JSON"):
            Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "tokenizer_config.json").mkdir()
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: file: not a regular file"):
        Tokenizer.from_folder(tmp_path)
    monkeypatch.setattr("tensorops.models.tokenizers.folder_tokenizer.MAX_TOKENIZER_BYTES", 10)
    with pytest.raises(ValueError, match=r"tokenizer\.json: file: larger than 10 bytes"):
        Tokenizer.from_folder(tmp_path)


def test_a_small_folder_takes_little_memory(tmp_path: Path) -> None:
    write_folder(tmp_path)
    tracemalloc.start()
    Tokenizer.from_folder(tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 24


def mutated(tree: Any, rng: random.Random) -> Any:
    """Return a nested structure with something in it replaced, removed, doubled or moved."""
    tree = copy.deepcopy(tree)
    places = [tree]
    for place in places:
        inner = place.values() if isinstance(place, dict) else place
        places += [each for each in inner if isinstance(each, dict | list) and each]
    place = rng.choice(places)
    key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
    change = rng.randrange(4)
    if change == 0:
        del place[key]
    elif change == 1:
        other = rng.choice(places)
        place[key] = copy.deepcopy(other[rng.choice(list(other) if isinstance(other, dict) else range(len(other)))])
    elif change == 2 and isinstance(place, list):
        place.insert(key, copy.deepcopy(place[-1]))
    else:
        place[key] = rng.choice(
            [None, True, -1, 2**32, 2**40, 1.5, float("inf"), "", " ", "a", "é\x00", [], {}, ["a"], [[1]]]
        )
    return tree


def test_damaged_files_work_or_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(0)
    files = {"tokenizer": tokenizer_json(), "tokenizer_config": CONFIG, "generation_config": {"eos_token_id": [2]}}
    path, _ = sentencepiece(tmp_path)
    arrays = [open_gguf(path).metadata, open_gguf(write_gguf(tmp_path / "b.gguf", tokenizer_metadata(), {})).metadata]
    metadata = [{k: v.tolist() if hasattr(v, "tolist") else v for k, v in each.items()} for each in arrays]
    refused = 0
    for number in range(500):
        try:
            if number % 2:
                tokenizer = Tokenizer.from_folder(write_folder(tmp_path, **mutated(files, rng)))
            else:
                damaged = mutated(metadata[number % 4 // 2], rng)
                values = {k: as_stored(v) for k, v in damaged.items()}
                tokenizer = Tokenizer(GGUFFile("d.gguf", values, {}))
        except (ValueError, FileNotFoundError) as error:
            assert re.search(r"(d\.gguf: (tokenizer\.|general\.)|\.json: )|tokenizer\.json", str(error))  # noqa: PT017
            refused += 1
        else:
            tokenizer.decode(tokenizer.encode("hello wor\x00ld é <|im_end|> </s>"))
    assert refused > 100
    capfd.readouterr()  # a panic of the package tokenizers writes a message


def as_stored(value: Any) -> Any:
    """Return a list as the reader of files does: numbers as an array."""
    if isinstance(value, list) and not all(isinstance(each, str) for each in value):
        numbers = [each for each in value if type(each) in (int, float, bool) and abs(each) < 2**31]
        return np.array(numbers)
    return value


# ---------------------------------------------------------------------------- beginning, end, other fields


def test_ids_of_beginning_and_end(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos_id, tokenizer.eos_id, len(tokenizer)) == (1, 2, 269)
    assert tokenizer.end_ids == {0, 2}  # <|endoftext|> also ends a text


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        ("<end_of_turn>", "<end_of_turn>"),
        ("<|end|> <|user|>", "<|end|>"),
        ("<|return|> <|call|> <|end|>", "<|return|> <|call|>"),
        ("<eos> </s> <turn|>", "<turn|>"),  # not as ordinary tokens
    ],
)
def test_ends_that_the_file_does_not_name(tmp_path: Path, names: str, ends: str) -> None:
    tokens, kinds = vocabulary()
    more = names.split()
    tokenizer = build(tmp_path, ggml__tokens=tokens + more, ggml__token_type=kinds + [1] * len(more))
    assert tokenizer.end_ids == {0, 2, *(len(tokens) + more.index(name) for name in ends.split())}
    assert tokenizer.encode(f"é{ends.split()[0]}")[-1] == len(tokens) + more.index(ends.split()[0])


@pytest.mark.parametrize(
    ("changes", "with_special"),
    [
        ({}, [4]),
        ({"ggml__add_bos_token": True}, [1, 4]),
        ({"ggml__add_eos_token": True}, [4, 2]),
        ({"ggml__pre": "llama-bpe"}, [1, 4]),
        ({"ggml__pre": "llama-bpe", "ggml__add_bos_token": False}, [4]),
        ({"ggml__add_bos_token": True, "ggml__bos_token_id": None}, [4]),
    ],
)
def test_special_tokens_around_a_text(tmp_path: Path, changes: dict[str, Any], with_special: list[int]) -> None:
    tokenizer = build(tmp_path, **changes)
    assert tokenizer.encode("\x01") == with_special
    assert tokenizer.encode("\x01", add_special=False) == [4]


def test_without_a_rule_the_default_applies(tmp_path: Path) -> None:
    assert build(tmp_path, ggml__pre=None).encode("hello") == [TOKENS.index("hello")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml__model": "bert"}, r"tokenizer\.ggml\.model: 'bert' is not supported, only gpt2, llama, gemma4"),
        ({"ggml__model": "llama"}, r"tokenizer\.ggml\.scores: missing"),
        (
            {"ggml__model": "llama", "ggml__scores": [0.0] * 268 + [float("nan")]},
            r"tokenizer\.ggml\.scores: not a list of 269 finite numbers",
        ),
        ({"ggml__model": None}, r"tokenizer\.ggml\.model: missing"),
        (
            {"ggml__pre": "bert-bge"},
            r"tokenizer\.ggml\.pre: 'bert-bge' is not supported, only gpt-2, ",
        ),
        ({"ggml__pre": 3}, r"tokenizer\.ggml\.pre: not a string"),
        ({"ggml__tokens": None}, r"tokenizer\.ggml\.tokens: missing"),
        ({"ggml__tokens": [1, 2]}, r"tokenizer\.ggml\.tokens: not a list of strings"),
        ({"ggml__tokens": [*TOKENS[:-1], "a"]}, r"tokenizer\.ggml\.tokens: the same token occurs twice"),
        ({"ggml__token_type": [1, 3]}, r"tokenizer\.ggml\.token_type: not a list of 269 integers"),
        ({"ggml__token_type": "normal"}, r"tokenizer\.ggml\.token_type: not a list of 269 integers"),
        ({"ggml__merges": None}, r"tokenizer\.ggml\.merges: missing"),
        ({"ggml__merges": ["ab"]}, r"tokenizer\.ggml\.merges: 'ab' is not two tokens"),
        ({"ggml__merges": ["a "]}, r"tokenizer\.ggml\.merges: 'a ' is not two tokens"),
        ({"ggml__merges": ["a zz"]}, r"tokenizer\.ggml\.merges: 'zz' is not among the tokens"),
        ({"ggml__merges": ["a b"]}, r"tokenizer\.ggml\.merges: 'ab' is not among the tokens"),
        ({"ggml__bos_token_id": 269}, r"tokenizer\.ggml\.bos_token_id: 269 is not an integer from 0 to 268"),
        ({"ggml__eos_token_id": "2"}, r"tokenizer\.ggml\.eos_token_id: '2' is not an integer"),
        ({"ggml__add_bos_token": 1}, r"tokenizer\.ggml\.add_bos_token: not a boolean"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GGUFError, match=rf"t\.gguf: {message}"):
        build(tmp_path, **changes)


# ------------------------------------------------------------------------------------------ chat templates

HELLO = [{"role": "user", "content": "hello"}]


def test_chat_template_renders(tokenizer: Tokenizer) -> None:
    expected = "<|im_start|>user\nhello<|im_end|>\n"
    assert tokenizer.apply_chat_template(HELLO, add_generation_prompt=False) == expected
    assert tokenizer.apply_chat_template(HELLO) == f"{expected}<|im_start|>assistant\n"


def test_chat_template_knows_the_special_tokens_and_whitespace_rules(tmp_path: Path) -> None:
    template = "{{ bos_token }}\n  {% if true %}\nx{{ eos_token }}\n  {% endif %}\n{% break %}"
    template = "{% for m in messages %}" + template + "{% endfor %}"
    text = build(tmp_path, chat_template=template).apply_chat_template(HELLO)
    assert text == "<|im_start|>\nx<|im_end|>\n"


def test_chat_template_has_what_published_ones_call(tmp_path: Path) -> None:
    template = (
        "{{ strftime_now('%Y') | length }} {{ tools | tojson(separators=(',', ':')) }} "
        "{{ {'b': '<é>', 'a': 1} | tojson(sort_keys=true) }}{% generation %}{{ '!' }}{% endgeneration %}"
    )
    text = build(tmp_path, chat_template=template).apply_chat_template(HELLO, tools=[{"name": "é'", "x": 1}])
    assert text == '4 [{"name":"é\'","x":1}] {"a": 1, "b": "<é>"}!'


def test_chat_template_of_the_caller(tmp_path: Path) -> None:
    tokenizer = build(tmp_path, chat_template=None)
    assert tokenizer.apply_chat_template(HELLO, template="{{ messages[0].content }}") == "hello"


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ ('{0.__class__}').format(1).__class__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os.system('true') }}",
    ],
)
def test_chat_template_cannot_reach_python(tmp_path: Path, attack: str) -> None:
    messages = [dict(HELLO[0])]
    try:
        text = build(tmp_path, chat_template=attack).apply_chat_template(messages)
    except GGUFError as error:
        text = ""
        assert "tokenizer.chat_template: the template failed" in str(error)  # noqa: PT017
    # Where Jinja gives an undefined value instead of an error, nothing is to be seen of Python.
    assert text == ""
    assert messages == HELLO


GROWING = "{% set n = namespace(x=START) %}{% for i in range(60) %}STEP{% endfor %}{{ n.x | string | length }}"
ENDLESS = "{% set x = START %}{% for i in range(100000) %}{% for j in range(100000) %}STEP{% endfor %}{% endfor %}"


def grown(step: str, start: str = "'a'") -> str:
    return GROWING.replace("START", start).replace("STEP", step)


def endless(step: str, start: str = "'a' * 1000000") -> str:
    return ENDLESS.replace("START", start).replace("STEP", step)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * ['a'] }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ '{x:{y}}'.format_map({'x': 1, 'y': 1000000000}) }}",
        "{{ 'a'.rjust(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ ('\t' * 1000).expandtabs(1000000) }}",
        "{{ (1).to_bytes(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ ('a\nb' * 1000) | indent(1000000) }}",
        "{{ [1, 2] | tojson(indent=1000000000) }}",
        "{{ [1] | batch(1000000000, 'a') | list }}",
        "{{ [1] | slice(1000000000) | list }}",
        "{{ ('a' * 100000).replace('', 'a' * 100000) }}",
        "{{ ('a' * 100000) | replace('a', 'a' * 100000) }}",
        "{{ ('a' * 100000).join(['a'] * 100000) }}",
        "{{ (['a'] * 10000) | join('a' * 1000000) }}",
        "{{ ([[1] * 1000] * 10000) | sum(start=[]) }}",
        grown("{% set n.x = n.x + n.x %}"),
        grown("{% set n.x = n.x ~ n.x %}"),
        grown("{% set n.x = [n.x, n.x] %}"),
        grown("{% set n.x = (n.x, n.x) %}"),
        grown("{% set n.x = {'a': n.x, 'b': n.x} %}"),
        grown("{% set n.x = dict(a=n.x, b=n.x) %}"),
        grown("{% set n.x = n.x + n.x %}", "['a']"),
        grown("{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}"),
        grown("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{% set n.x = twice(n.x) %}"),
        grown("{% set n.x = '%s%s' % (n.x, n.x) %}"),
        grown("{% set n.x = '{0}{0}'.format(n.x) %}"),
        grown("{% set n.x = n.x.replace('a', 'aa') %}"),
        grown("{% set n.x = n.x | tojson | tojson %}"),
        endless(""),
        endless("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        endless("{{ x == 'b' * 1000000 }}"),
        endless("{{ 'b' in x }}"),
        endless("{{ x[1:] is lower }}"),
        endless("{{ x | upper | length }}"),
        endless("{{ x.find('b') }}"),
        endless("{{ x.count('b') }}", "['a'] * 10000"),
        endless("{{ x.next() }}", "cycler('a', 'b')"),
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for x in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}",
    ],
)
def test_chat_template_has_a_budget(attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorops.models.tokenizers.sandbox.LEAST", 1 << 23)  # by which a loop ends in less time
    tokenizer = build(tmp_path, chat_template=attack)
    tracemalloc.start()
    try:
        with pytest.raises(GGUFError, match=r"SecurityError: it takes more steps or memory than a conversation"):
            tokenizer.apply_chat_template(HELLO)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 25


@pytest.mark.parametrize("attack", ["{{ 2 ** 100000 }}", grown("{% set n.x = n.x * n.x %}", "3")])
def test_chat_template_computes_no_long_numbers(attack: str, tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"SecurityError: a number is too long"):
        build(tmp_path, chat_template=attack).apply_chat_template(HELLO)


def test_chat_template_prints_no_namespaces(tmp_path: Path) -> None:
    attack = grown("{% set n.x = namespace(a=n.x, b=n.x) %}")
    assert build(tmp_path, chat_template=attack).apply_chat_template(HELLO) == str(len("<namespace>"))


def test_published_chat_templates_are_within_their_budget() -> None:
    """Conversations of any length render as in Jinja's own sandbox."""
    function = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    turns = [{"role": ("user", "assistant")[i % 2], "content": f"words {i} " * 40} for i in range(801)]
    rendered = 0
    for path in sorted((llama_cpp_vocabularies() / "templates").glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, chat._Generation]
        )
        environment.globals |= {"raise_exception": chat._raise_exception, "strftime_now": chat._strftime_now}
        environment.filters["tojson"] = chat._to_json
        for count, tools in ((1, None), (3, [{"type": "function", "function": function}]), (801, None)):
            options = {"tools": tools, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
            try:
                expected = environment.from_string(source).render(messages=turns[:count], **options)
            except Exception:  # it is a program, and no conversation is right for all
                continue
            assert chat.render_chat(source, turns[:count], **options) == expected, path.name
            rendered += 1
    assert rendered > 100


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, r"tokenizer\.chat_template: missing: pass messages as one text, generate\(prompt, chat=False\), or"),
        ("{% if %}", r"tokenizer\.chat_template: the template failed: TemplateSyntaxError"),
        ("{{ 1 / 0 }}", r"tokenizer\.chat_template: the template failed: ZeroDivisionError"),
        ("{{ raise_exception('no such role') }}", r"the template failed: TemplateError: no such role"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", r"the template failed: OverflowError"),
    ],
)
def test_chat_template_that_fails(tmp_path: Path, template: str | None, message: str) -> None:
    with pytest.raises(GGUFError, match=message):
        build(tmp_path, chat_template=template).apply_chat_template(HELLO)


@pytest.mark.parametrize("wrong", [["hello"], [{"role": "user"}], [{"role": "user", "content": 3}]])
def test_messages_are_checked(tokenizer: Tokenizer, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"messages\[0\] must be a dict whose '(role|content)' is a string"):
        tokenizer.apply_chat_template(wrong)


# -------------------------------------------------------------------------------------------- the real model

# What llama.cpp makes of these texts, with the vocabulary of SmolLM2-135M-Instruct.Q4_1.gguf:
# llama-cpp-python 0.3.36, Llama(path, vocab_only=True).tokenize(text.encode(), add_bos=True, special=True).
FACTS = {
    "Hello world": [19556, 905],
    "It's 2024, we'll see: 12345 + 67890 = $80,235.00!!": [
        1589, 506, 216, 34, 32, 34, 36, 28, 392, 3060, 963, 42, 216, 33, 34, 35, 36, 37, 1232, 216, 38, 39,
        40, 41, 32, 446, 1885, 40, 32, 28, 34, 35, 37, 30, 32, 32, 10095,
    ],
    "naïve café — “quotes” 日本語 🙂": [
        3546, 46494, 37366, 1841, 619, 385, 2346, 573, 17097, 241, 115, 40993, 179, 120, 248, 47526,
    ],
    "def f(x):\n    return x**2  # comment\n": [
        1604, 275, 24, 104, 727, 472, 1003, 1792, 828, 34, 216, 907, 5189, 198,
    ],
    "<|im_start|>user\nHi<|im_end|>\n": [1, 4093, 198, 26843, 2, 198],
    "a\r\nb\u00a0c\u3000  ½ x²": [81, 201, 198, 82, 15442, 83, 12109, 218, 256, 16738, 1792, 19133],
    " \x06 ": [216, 216],  # this vocabulary has no token for the byte 6
}  # fmt: skip


@pytest.fixture(scope="module")
def real_path() -> Path:
    return real_model()


def test_real_vocabulary_gives_the_recorded_ids(real_path: Path) -> None:
    tokenizer = Tokenizer(open_gguf(real_path))
    assert len(tokenizer) == 49152
    for text, ids in FACTS.items():
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids, skip_special=False) == text.replace("\x06", "")


# --------------------------------------------------------------------------------------------- llama.cpp's

VOCABULARIES = (
    "aquila", "baichuan", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "gpt-neox",
    "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip
# Ends of ours that llama.cpp does not have, and of llama.cpp's that are ordinary tokens or padding here.
OTHER_ENDS = {"</s>", "<PAD>"}
PARTS = [
    "'s", "'ll", "'RE", "'T", "don't", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000",
    "\u2003", "\x85", "1", "12", "123", "4567", "½", "٣", "Ⅷ", "²", "a", "The", "hello", "World",
    "camelCase", "éÉ", "Größe", "İ", "日本語", "工作", "한국어", "हिन्दी", "ไทย", "العربية", "Ελλάδα", "привет",
    "e\u0301", "🙂", "👩\u200d👧", "🇩🇪", "\ufe0f", "_", "-", "+=", "<>", "^~", "`", "|", "$", "€", "…",
    "“", "!!", "?!", ".", ",", "(", "{", "/", "//", "\\", "#", "@", "▁", "▁▁", "<0x0A>", "\x00", "\x01",
    "\x7f", "ǅ", "ʰ", "ㄅ", "！", "～",
]  # fmt: skip


def random_text(rng: random.Random, special: list[str]) -> str:
    return "".join(
        rng.choice(special)
        if special and chance < 0.06
        else random_character(rng)
        if chance < 0.16
        else rng.choice(PARTS)
        for chance in (rng.random() for _ in range(rng.randrange(1, 25)))
    )


def random_character(rng: random.Random) -> str:
    """A character that all versions of Unicode in use know."""
    while unicodedata.category(found := chr(rng.randrange(rng.choice([0x250, 0x3100, 0x10000, 0x110000])))) in (
        "Cn",
        "Cs",
    ):
        pass
    return found


@functools.cache
def llama_cpp_vocabularies() -> Path:
    if not (folder := os.environ.get("LLAMA_CPP_SOURCES")):
        pytest.skip("LLAMA_CPP_SOURCES does not name a folder with llama.cpp's sources")
    return Path(folder) / "models"


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_equal_those_that_llama_cpp_publishes(name: str) -> None:
    path = llama_cpp_vocabularies() / f"ggml-vocab-{name}.gguf"
    texts = path.with_name(f"{path.name}.inp")
    if not texts.exists():
        pytest.skip(f"{texts.name} does not exist")
    tokenizer = Tokenizer(open_gguf(path))
    with texts.open(encoding="utf-8", newline="") as file:
        inputs = file.read().split("\n__ggml_vocab_test__\n")
    expected = path.with_name(f"{path.name}.out").read_text().split("\n")
    assert len(inputs) > 40
    for text, ids in zip(inputs, expected, strict=False):
        assert tokenizer.encode(text, add_special=False) == [int(i) for i in ids.split()]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_equal_those_of_llama_cpp(name: str) -> None:
    path = llama_cpp_vocabularies() / f"ggml-vocab-{name}.gguf"
    llama_cpp = pytest.importorskip("llama_cpp")
    llama = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    tokenizer = check_against_llama_cpp(llama, path, 4000)
    theirs = llama._model.vocab
    tokens = open_gguf(path).metadata["tokenizer.ggml.tokens"]
    ends = {i for i in range(len(tokens)) if llama_cpp.llama_vocab_is_eog(theirs, i)}
    assert {tokens[i] for i in tokenizer.end_ids ^ ends} <= OTHER_ENDS
    buffer = ctypes.create_string_buffer(1000)
    for i in random.Random(0).sample(range(len(tokens)), 2000):
        length = llama_cpp.llama_token_to_piece(theirs, i, buffer, 1000, 0, True)
        if not buffer.raw[:length].startswith(b"[UNK_BYTE"):  # not in the alphabet of bytes
            assert tokenizer.bytes_of(i, skip_special=False) == buffer.raw[:length]


def check_against_llama_cpp(theirs: Any, path: Path, count: int) -> Tokenizer:
    """Compare the ids of random texts."""
    file = open_gguf(path)
    tokenizer = Tokenizer(file)
    kinds = file.metadata["tokenizer.ggml.token_type"]
    named = zip(file.metadata["tokenizer.ggml.tokens"], kinds, strict=True)
    special = [token for token, kind in named if kind in (2, 3, 4) and token][:50]
    keep = keeps(file.metadata.get("tokenizer.ggml.pre", "default"))
    rng = random.Random(0)
    for _ in range(count):
        text = "".join(filter(keep, random_text(rng, special)))
        ids = theirs.tokenize(text.encode(), add_bos=False, special=True)
        assert tokenizer.encode(text, add_special=False) == ids, text
    return tokenizer


def keeps(rule: str) -> Callable[[str], bool]:
    """Return the characters for which llama.cpp's form of a rule is that of the model."""
    if "Lu" in RULES[rule].patterns[0]:
        # It knows capitals and small letters only of ASCII, and no marks.
        return lambda c: c.isascii() or unicodedata.category(c) not in ("Lu", "Ll", "Lt", "Mn", "Mc", "Me")
    if rule in ("deepseek-llm", "deepseek-coder"):
        return lambda c: c.isascii() or not c.isspace()  # not those within a range of its patterns
    return lambda _: True


@pytest.mark.parametrize("rule", WORDS)
def test_rules_equal_those_of_llama_cpp(tmp_path: Path, rule: str) -> None:
    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text.encode())) + text.encode()

    llama_cpp = pytest.importorskip("llama_cpp")
    raw = (llama_cpp_vocabularies() / "ggml-vocab-gpt-2.gguf").read_bytes()
    entry = string("tokenizer.ggml.pre") + struct.pack("<I", 8)
    assert raw.count(entry + string("gpt-2")) == 1
    path = tmp_path / "rule.gguf"
    path.write_bytes(raw.replace(entry + string("gpt-2"), entry + string(rule)))
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    check_against_llama_cpp(theirs, path, 1000)


def test_sentencepiece_equals_that_of_llama_cpp(tmp_path: Path) -> None:
    for space_before in (True, False):
        path, _ = sentencepiece(tmp_path, tokenizer__ggml__add_space_prefix=space_before)
        llama_cpp = pytest.importorskip("llama_cpp")
        theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        tokenizer = Tokenizer(open_gguf(path))
        rng = random.Random(0)
        for _ in range(1000):
            text = "".join(
                rng.choices(["a", "b", "c", " ", "é", "€", "</s>", "[x y]", "▁", "<unk>"], k=rng.randrange(1, 20))
            )
            assert tokenizer.encode(text, add_special=False) == theirs.tokenize(
                text.encode(), add_bos=False, special=True
            )
