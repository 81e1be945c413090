"""Tiny GGUF files for tests, and the path of the one real model that some tests need."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTROL, NORMAL = 3, 1
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġwor l", "Ġworl d", "Ġ Ġ")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_characters() -> list[str]:
    """The 256 characters that represent bytes in GPT-2's vocabulary, in byte order."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(moved)) for byte in range(256)]


def vocabulary() -> tuple[list[str], list[int]]:
    """Tokens and their types: three control tokens, every byte, and the results of the merges."""
    merged = [merge.replace(" ", "") for merge in MERGES]
    ordinary = byte_characters() + merged
    return [*SPECIAL, *ordinary], [CONTROL] * len(SPECIAL) + [NORMAL] * len(ordinary)


def tokenizer_metadata(**changes: Any) -> dict[str, Any]:
    tokens, kinds = vocabulary()
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    return {**metadata, **{f"tokenizer.{key}": value for key, value in changes.items()}}


def llama_metadata(**changes: Any) -> dict[str, Any]:
    """Two blocks of 64 features, 4 heads and 2 of keys; names in `changes` are those after ``llama.``."""
    metadata = {
        "block_count": 2,
        "context_length": 300,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 1000.0,
    }
    merged = {**metadata, **changes}
    return {f"llama.{key}": value for key, value in merged.items() if value is not None}


def llama_arrays(seed: int = 0, *, tied: bool = True) -> dict[str, np.ndarray]:
    """Random weights that match `llama_metadata`, by their names in a file."""
    rng = np.random.default_rng(seed)
    vocab, dim, hidden, queries, keys = len(vocabulary()[0]), 64, 96, 64, 32
    shapes = {"token_embd": (vocab, dim), "output_norm": (dim,)}
    if not tied:
        shapes["output"] = (vocab, dim)
    for block in range(2):
        of_block = {
            "attn_norm": (dim,), "attn_q": (queries, dim), "attn_k": (keys, dim), "attn_v": (keys, dim),
            "attn_output": (dim, queries), "ffn_norm": (dim,), "ffn_gate": (hidden, dim),
            "ffn_up": (hidden, dim), "ffn_down": (dim, hidden),
        }  # fmt: skip
        shapes |= {f"blk.{block}.{name}": shape for name, shape in of_block.items()}
    return {
        f"{name}.weight": (
            1 + 0.1 * rng.standard_normal(shape) if len(shape) == 1 else 0.2 * rng.standard_normal(shape)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    kinds: Mapping[str, str] | str = "F32",
    architecture: str = "llama",
) -> Path:
    """Write a file; `kinds` is the storage type of all matrices, or of each by name. Vectors stay F32.

    An array of bytes is stored as it is: the package writes few of the types.
    """
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        add_to(gguf, writer, key, value)
    for name, array in arrays.items():
        kind = kinds if isinstance(kinds, str) else kinds.get(name, "F32")
        if array.ndim == 1:
            kind = "F32"
        stored = gguf.GGMLQuantizationType[kind]
        raw = array if array.dtype == np.uint8 else gguf.quants.quantize(array, stored)
        writer.add_tensor(name, raw, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_to(gguf: Any, writer: Any, key: str, value: Any) -> None:
    kinds = gguf.GGUFValueType
    if isinstance(value, list):
        of = {str: kinds.STRING, float: kinds.FLOAT32, bool: kinds.BOOL}
        inner = of.get(type(value[0]), kinds.INT32) if value else kinds.INT32
        writer.add_key_value(key, value, kinds.ARRAY, sub_type=inner)
        return
    kind = {str: kinds.STRING, bool: kinds.BOOL, float: kinds.FLOAT32, int: kinds.UINT32}[type(value)]
    if kind == kinds.UINT32 and value >= 2**32:
        kind = kinds.UINT64
    writer.add_key_value(key, value, kind)


def write_llama(
    path: Path, kinds: Mapping[str, str] | str = "F32", *, seed: int = 0, tied: bool = True, **changes: Any
) -> Path:
    """Write a whole tiny model; `changes` as for `llama_metadata`."""
    metadata = llama_metadata(**changes) | tokenizer_metadata()
    return write_gguf(path, metadata, llama_arrays(seed, tied=tied), kinds)


def real_model() -> Path:
    """The real model's file, from ``TENSOROPS_MODEL`` or the user's cache folder; skip if missing."""
    from tensorops.models.files.download import SHA256, cached_model_path

    pytest.importorskip("platformdirs")
    path = Path(os.environ.get("TENSOROPS_MODEL") or cached_model_path())
    if not path.is_file():
        pytest.skip(f"{path} is not here: set TENSOROPS_MODEL, or run `tensorops generate` once to fetch it")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        pytest.skip(f"{path} is not the file that these tests' facts are about")
    return path
