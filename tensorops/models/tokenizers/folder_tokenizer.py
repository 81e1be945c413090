"""The tokenizer in a folder, as Hugging Face's libraries store it."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorops.models._errors import missing
from tensorops.models.files._open_file import read_whole
from tensorops.models.files.gguf_types import TokenType

from .regular_expressions import check_regular_expression
from .vocabulary import BYTE_TOKEN, END_TOKENS, SPACE, SPECIAL_NAMES, TokenizerParts, Vocabulary, end_tokens

try:
    from tokenizers import AddedToken, Tokenizer as FastTokenizer
except ImportError as error:
    raise missing("tokenizers") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["read_folder_tokenizer"]

# The largest files in use are a tenth of this.
MAX_TOKENIZER_BYTES = 1 << 28
MAX_CONFIG_BYTES = 1 << 24
MAX_UNUSED_IDS = 1 << 16
MOST_GROWTH = 1 << 10
FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
ADDED = "added_tokens_decoder"


class _Folder:
    """The files of a folder, whose errors name the file and the field."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def error(self, name: str, problem: str) -> ValueError:
        return ValueError(f"{self.path / name}: {problem}")

    def text(self, name: str, limit: int) -> str:
        try:
            return read_whole(self.path / name, limit).decode()
        except UnicodeDecodeError as error:
            raise self.error(name, "not UTF-8") from error
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self.error(name, str(error.strerror)) from error

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def config(self, name: str) -> dict[str, Any]:
        """Return the object in a JSON file, empty if there is no such file."""
        try:
            value = json.loads(self.text(name, MAX_CONFIG_BYTES))
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:
            raise self.error(name, f"not JSON: {error}") from error
        if not isinstance(value, dict):
            raise self.error(name, "not a JSON object")
        return value


def read_folder_tokenizer(path: str | os.PathLike[str]) -> TokenizerParts:
    """Return the parts of the tokenizer in a folder; ValueError names file and field."""
    folder = _Folder(path)
    fast = _fast_tokenizer(folder)
    config = folder.config(CONFIG_FILE)
    _add_tokens(folder, fast, config)
    vocabulary, space_before = _vocabulary(folder, fast)
    special = _Special(folder, vocabulary, config)
    bos, eos = special.token("bos_token"), special.token("eos_token")
    # The configuration may overrule what the tokenizer itself adds.
    with _panics_told(folder):
        before, after = _around(fast)
    before = special.added("add_bos_token", bos, before)
    after = special.added("add_eos_token", eos, after)
    template_file, template = _template(folder, config)
    return TokenizerParts(
        vocabulary=vocabulary,
        encode=_encoding(folder, fast),
        before=before,
        after=after,
        bos_id=bos,
        eos_id=eos,
        special=special.texts(),
        end_ids=end_tokens(vocabulary.tokens, vocabulary.kinds, (eos, *_ends(folder, len(vocabulary.tokens)))),
        space_before=space_before,
        template=template,
        template_error=lambda problem: folder.error(template_file, f"chat_template: {problem}"),
    )


def _fast_tokenizer(folder: _Folder) -> Any:
    source = folder.text(FILE, MAX_TOKENIZER_BYTES)
    # The keys of the object are written in ASCII, with or without escapes.
    if "precompiled_charsmap" in source or re.search(r"\\u00[4-7]", source):
        _check_character_maps(folder, source)
    with _panics_told(folder):
        fast = FastTokenizer.from_str(source)
        fast.no_truncation()
        fast.no_padding()
    steps = [_state(step) for step in (fast.normalizer, fast.pre_tokenizer, fast.decoder)]
    _check_regular_expressions(folder, steps)
    if (growth := _growth(steps[0])) > MOST_GROWTH:
        raise folder.error(FILE, f"normalizer: a text may become {growth:.0e} times as long")
    with _panics_told(folder):
        fast.encode("a b", add_special_tokens=True)
    return fast


def _add_tokens(folder: _Folder, fast: Any, config: dict[str, Any]) -> None:
    """Add the tokens that only the configuration has, in the order of their ids, as transformers does."""
    decoder = config.get(ADDED) or {}
    if not isinstance(decoder, dict):
        raise folder.error(CONFIG_FILE, f"{ADDED}: not a JSON object")
    known = {token.content for token in fast.get_added_tokens_decoder().values()}
    added = {}
    for key, value in decoder.items():
        token = _added_token(folder, key, value)
        if token.content not in known:
            added[int(key)] = token
    if not added:
        return
    with _panics_told(folder):
        fast.add_tokens([added[i] for i in sorted(added)])
    for i, token in added.items():
        if (its := fast.token_to_id(token.content)) != i:
            problem = f"{ADDED}: {token.content!r:.80} has the id {i}, but follows {FILE} with {its}"
            raise folder.error(CONFIG_FILE, problem)


def _added_token(folder: _Folder, key: str, value: Any) -> Any:
    """Return a token as `added_tokens_decoder` describes it."""
    flags = dict(value) if isinstance(value, dict) else {}
    content = flags.pop("content", None)
    flags.pop("__type", None)
    if not (key.isascii() and key.isdigit() and len(key) < 10 and isinstance(content, str) and content):
        raise folder.error(CONFIG_FILE, f"{ADDED}.{key:.40}: not a token with an id and a content")
    try:
        return AddedToken(content, **flags)
    except (TypeError, ValueError) as error:
        raise folder.error(CONFIG_FILE, f"{ADDED}.{key}: {error}") from error


def _encoding(folder: _Folder, fast: Any) -> Callable[[str], list[int]]:
    def encode(text: str) -> list[int]:
        with _panics_told(folder):
            return list(fast.encode(text, add_special_tokens=False).ids)

    return encode


@contextlib.contextmanager
def _panics_told(folder: _Folder) -> Iterator[None]:
    """Make an error of what the package tokenizers says of a file; a panic of Rust is no Exception."""
    try:
        yield
    except Exception as error:
        raise folder.error(FILE, str(error)) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise folder.error(FILE, str(error)) from error


def _state(step: Any) -> dict[str, Any]:
    """Return what the package has read of a step, which may be none."""
    state: dict[str, Any] = {} if step is None else json.loads(step.__getstate__())
    return state


def _check_regular_expressions(folder: _Folder, places: list[Any]) -> None:
    for place in _containers(places):
        pattern = place.get("Regex") if isinstance(place, dict) else None
        if isinstance(pattern, str):
            try:
                check_regular_expression(pattern)
            except ValueError as error:
                raise folder.error(FILE, f"the regular expression {pattern!r:.80} is refused: {error}") from error


def _check_character_maps(folder: _Folder, source: str) -> None:
    """Refuse a map of characters that is said to be longer than it is: the package takes as much memory first."""
    try:
        content = json.loads(source)
    except (ValueError, RecursionError):
        return  # the package says what is wrong
    for place in _containers([content]):
        if isinstance(place, dict) and isinstance(encoded := place.get("precompiled_charsmap"), str):
            size, rest = _character_map(encoded)
            if size > len(rest):
                raise folder.error(FILE, f"precompiled_charsmap: {size} bytes, but it has {len(rest)}")


def _containers(value: list[Any]) -> Iterator[Any]:
    """Yield the lists and dicts in a JSON value, the value itself first."""
    places: list[Any] = [value]
    for place in places:
        inner = place.values() if isinstance(place, dict) else place
        places += [each for each in inner if isinstance(each, dict | list)]
        yield place


def _character_map(encoded: str) -> tuple[int, bytes]:
    """Return the size that SentencePiece's map of characters begins with, and the bytes after it."""
    try:
        content = base64.b64decode(encoded)
    except ValueError:
        return 0, b""
    return int.from_bytes(content[:4], "little"), content[4:]


def _growth(normalizer: dict[str, Any]) -> float:
    """Return how many times as long a text may become."""
    kind = normalizer.get("type")
    if kind == "Sequence":
        return math.prod(map(_growth, normalizer["normalizers"]))
    if kind == "Replace":
        pattern = normalizer["pattern"].get("String")  # a regular expression may fit between any two characters
        added = len(normalizer["content"])
        return max(added / len(pattern), 1.0) if pattern else 1.0 + added
    if kind == "Prepend":
        return 1.0 + len(normalizer["prepend"])
    if kind == "Precompiled":
        size, rest = _character_map(normalizer["precompiled_charsmap"])
        return float(max(len(text) for text in rest[size:].split(b"\0")))
    return 18.0 if kind in ("NFKC", "NFKD") else 3.0 if kind in ("BertNormalizer", "NFC", "NFD") else 1.0


def _vocabulary(folder: _Folder, fast: Any) -> tuple[Vocabulary, bool]:
    """Return the tokens, and whether a text gets a space before it."""
    byte_letters, byte_tokens, space_before = _decoding(folder, fast)
    ids = fast.get_vocab(with_added_tokens=True)
    count = max(ids.values(), default=-1) + 1
    if count > len(ids) + MAX_UNUSED_IDS:
        raise folder.error(FILE, f"model.vocab: the id {count - 1} is too large for {len(ids)} tokens")
    tokens, kinds = [""] * count, [int(TokenType.NORMAL)] * count
    for token, i in ids.items():
        tokens[i] = token
        if byte_tokens and BYTE_TOKEN.fullmatch(token):
            kinds[i] = int(TokenType.BYTE)
    for i, added in fast.get_added_tokens_decoder().items():
        control = added.special or added.content in END_TOKENS
        kinds[i] = int(TokenType.CONTROL if control else TokenType.USER_DEFINED)
    return Vocabulary(tokens, kinds, byte_letters), space_before


def _decoding(folder: _Folder, fast: Any) -> tuple[bool, bool, bool]:
    """Return whether tokens use letters for bytes, whether some are bytes, and whether a text gets a space."""
    state = _state(fast.decoder) or {"type": None}
    steps = {step["type"]: step for step in state.get("decoders", [state])}
    if steps.keys() == {"ByteLevel"}:
        return True, False, False
    replaced, metaspace = steps.get("Replace"), steps.get("Metaspace")
    spaces = (replaced and (replaced["pattern"], replaced["content"]) == ({"String": SPACE}, " ")) or (
        metaspace and metaspace["replacement"] == SPACE
    )
    if not spaces or steps.keys() - {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}:
        raise folder.error(FILE, f"decoder: {state!r:.80} is not supported, only those of bytes and of ▁")
    stripped = steps.get("Strip", {}).get("start") == 1
    prepended = metaspace is not None and metaspace["prepend_scheme"] != "never"
    return False, "ByteFallback" in steps, stripped or prepended


def _around(fast: Any) -> tuple[list[int], list[int]]:
    """Return the tokens that the tokenizer itself adds before and after a text."""
    encoded = fast.encode("a", add_special_tokens=True)
    inside = [i for i, mask in enumerate(encoded.special_tokens_mask) if not mask]
    if not inside:
        return list(encoded.ids), []
    return list(encoded.ids[: inside[0]]), list(encoded.ids[inside[-1] + 1 :])


class _Special:
    """The special tokens that the configuration names."""

    def __init__(self, folder: _Folder, vocabulary: Vocabulary, config: dict[str, Any]) -> None:
        self.folder = folder
        self.config = config
        self.map = folder.config("special_tokens_map.json")
        self.ids = {token: i for i, token in enumerate(vocabulary.tokens) if token}

    def token(self, key: str) -> int | None:
        text, name = self._text(key)
        if text is None:
            return None
        if text not in self.ids:
            raise self.folder.error(name, f"{key}: {text!r:.80} is not among the tokens")
        return self.ids[text]

    def texts(self) -> dict[str, str]:
        """Return the tokens that templates may use, by name; those that no text begins or ends with need no id."""
        texts = {key: self._text(key)[0] for key in SPECIAL_NAMES}
        return {key: text for key, text in texts.items() if text is not None}

    def _text(self, key: str) -> tuple[str | None, str]:
        """Return a token as text, and the file that names it."""
        name, config = (CONFIG_FILE, self.config) if key in self.config else ("special_tokens_map.json", self.map)
        value = config.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        if value is not None and not isinstance(value, str):
            raise self.folder.error(name, f"{key}: {value!r:.80} is not among the tokens")
        return value, name

    def added(self, key: str, token: int | None, found: list[int]) -> list[int]:
        """Return the tokens at one end of a text: as found, if the configuration does not say otherwise."""
        wanted = self.config.get(key)
        if wanted is not None and not isinstance(wanted, bool):
            raise self.folder.error(CONFIG_FILE, f"{key}: not a boolean")
        if wanted and token is not None and token not in found:
            return [token]
        return [i for i in found if i != token] if wanted is False else found


def _ends(folder: _Folder, count: int) -> list[int]:
    """Return the ids that end a text: generation_config.json's, or those in config.json where there is no such file."""
    name = "generation_config.json"
    config = folder.config(name)
    if not folder.has(name):
        name = "config.json"
        config = folder.config(name)
        inner = config.get("text_config")
        if config.get("eos_token_id") is None and isinstance(inner, dict):
            config = inner
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for i in ids:
        if type(i) is not int or not 0 <= i < count:
            problem = f"eos_token_id: {i!r:.40} is not an integer from 0 to {count - 1}"
            raise folder.error(name, problem)
    return ids


def _template(folder: _Folder, config: dict[str, Any]) -> tuple[str, str | None]:
    """Return the chat template and the file it is in."""
    name = "chat_template.jinja"
    with contextlib.suppress(FileNotFoundError):
        return name, folder.text(name, MAX_CONFIG_BYTES)
    name = CONFIG_FILE
    value = config.get("chat_template")
    if isinstance(value, list):  # several with names
        named = (each for each in value if isinstance(each, dict) and each.get("name") == "default")
        value = next(named, {}).get("template")
    if value is not None and not isinstance(value, str):
        raise folder.error(name, "chat_template: not a string")
    return name, value
