"""The tokenizer built from a GGUF file, and the chat template that comes with it."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from make_gguf import real_model, tokenizer_metadata, vocabulary, write_gguf
from tensorops.models import GGUFError, Tokenizer, open_gguf

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = vocabulary()[0]
RULES = ("default", "gpt-2", "llama-bpe", "smollm")


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


@pytest.mark.parametrize("rule", RULES)
def test_every_text_survives(tmp_path_factory: pytest.TempPathFactory, rule: str) -> None:
    tokenizer = build(tmp_path_factory.mktemp("rule"), ggml__pre=rule)

    @given(st.text(st.characters(exclude_categories=["Cs"])))
    def check(text: str) -> None:
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(ids) == text
        assert "".join(tokenizer.stream(ids)) == text

    check()


def merged_like_llama_cpp(word: str, merges: list[str], tokens: list[str]) -> list[str]:
    """Merge the characters of one word as ``llm_tokenizer_bpe_session::tokenize`` does, then drop non-tokens.

    There, a character that is not a token stays a symbol until the end, so no pair spans it.
    """
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    symbols = list(word)
    while pairs := [pair for pair in itertools.pairwise(symbols) if pair in ranks]:
        best = min(pairs, key=ranks.__getitem__)
        at = list(itertools.pairwise(symbols)).index(best)
        symbols[at : at + 2] = ["".join(best)]
    return [symbol for symbol in symbols if symbol in tokens]


@pytest.mark.parametrize("rule", RULES)
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
        expected = [token for word in words for token in merged_like_llama_cpp(word, merges, tokens)]
        assert [tokens[i] for i in tokenizer.encode(text)] == expected

    check()


def test_a_whole_word_may_hold_a_byte_that_is_no_token(tmp_path: Path) -> None:
    tokens = [*(token for token in TOKENS if token != "Ć"), "!Ć!"]
    changes = {"ggml__tokens": tokens, "ggml__token_type": None, "ggml__add_bos_token": False}
    assert build(tmp_path, ggml__pre="llama-bpe", **changes).encode("!\x06!") == [len(tokens) - 1]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("smollm", ["1", "2", "3", "4", "!?", " a"]),
        ("gpt-2", ["1234", "!?", " a"]),
        ("llama-bpe", ["123", "4", "!?", " a"]),
        ("default", ["123", "4", "!?", " a"]),
    ],
)
def test_the_rule_says_where_words_end(tmp_path: Path, rule: str, expected: list[str]) -> None:
    # With a merge for every pair of these characters, a word is one token exactly if nothing cuts it.
    merges = ["1 2", "12 3", "123 4", "! ?", "Ġ a"]
    tokens = TOKENS + [merge.replace(" ", "") for merge in merges]
    tokenizer = build(
        tmp_path,
        ggml__pre=rule, ggml__tokens=tokens, ggml__merges=merges, ggml__token_type=None,
        ggml__add_bos_token=False,
    )  # fmt: skip
    ids = tokenizer.encode("1234!? a")
    assert [tokenizer.decode([i]) for i in ids] == expected


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


def test_decode_refuses_unknown_ids(tokenizer: Tokenizer) -> None:
    for wrong in (-1, len(tokenizer)):
        with pytest.raises(ValueError, match=rf"token id {wrong} is outside the vocabulary of 269 tokens"):
            tokenizer.decode([wrong])


def test_user_defined_tokens_are_found_and_shown(tmp_path: Path) -> None:
    tokens, kinds = vocabulary()
    tokenizer = build(tmp_path, ggml__tokens=[*tokens, "é[x]"], ggml__token_type=[*kinds, 4])
    ids = tokenizer.encode("aé[x]b")
    assert len(tokens) in ids
    assert tokenizer.decode(ids) == "aé[x]b"


# ---------------------------------------------------------------------------- beginning, end, other fields


def test_ids_of_beginning_and_end(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos_id, tokenizer.eos_id, len(tokenizer)) == (1, 2, 269)
    assert tokenizer.end_ids == {0, 2}  # <|endoftext|> also ends a text


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
        ({"ggml__model": "llama"}, r"tokenizer\.ggml\.model: 'llama' is not supported, only 'gpt2'"),
        ({"ggml__model": None}, r"tokenizer\.ggml\.model: missing"),
        (
            {"ggml__pre": "qwen2"},
            r"tokenizer\.ggml\.pre: 'qwen2' is not supported, only default, gpt-2, llama-bpe, smollm",
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


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, r"tokenizer\.chat_template: missing"),
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


@pytest.mark.parametrize("rule", RULES)
def test_ids_equal_those_of_llama_cpp(real_path: Path, tmp_path: Path, rule: str) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    metadata = open_gguf(real_path).metadata
    same = ("tokens", "token_type", "merges")
    changes = {f"ggml.{key}": list(metadata[f"tokenizer.ggml.{key}"]) for key in same}
    changes["ggml.token_type"] = [int(kind) for kind in changes["ggml.token_type"]]
    sizes = {f"llama.{key}": 64 for key in ("context_length", "embedding_length", "feed_forward_length")}
    sizes |= {f"llama.{key}": 1 for key in ("block_count", "attention.head_count")}
    sizes["llama.attention.layer_norm_rms_epsilon"] = 1e-5
    path = write_gguf(tmp_path / "vocabulary.gguf", sizes | tokenizer_metadata(**changes, **{"ggml.pre": rule}), {})
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    ours = Tokenizer(open_gguf(path))
    alphabet = st.one_of(
        st.sampled_from("ab  \n\t'sST1234567890.,$+<=>^~|é日🙂\r½\u00a0_-"), st.characters(codec="utf-8")
    )

    @given(st.text(alphabet, max_size=60))
    def check(text: str) -> None:
        assert ours.encode(text) == theirs.tokenize(text.encode(), add_bos=True, special=True)

    check()
