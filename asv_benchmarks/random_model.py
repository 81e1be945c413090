"""A GGUF file of random weights in the shape of Llama, of any size, and in any type that llama.cpp writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_M": 15, "Q5_K_M": 17,
         "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30}  # fmt: skip
"""The numbers by which llama.cpp calls the types of whole files."""

SIZES = {"block_count": 6, "embedding_length": 2048, "feed_forward_length": 8192, "attention.head_count": 32,
         "attention.head_count_kv": 8, "rope.dimension_count": 64}  # fmt: skip


def write(tokenizer: Path, out: Path) -> None:
    """Write random weights in float16, with the tokenizer and other keys of another file."""
    import gguf

    writer = gguf.GGUFWriter(out, "llama")
    reader = gguf.GGUFReader(tokenizer)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            of_items = field.types[1] if len(field.types) > 1 else None
            value = SIZES.get(key.removeprefix("llama."), field.contents())
            writer.add_key_value(key, value, field.types[0], of_items)
    rng = np.random.default_rng(0)
    dim, hidden = SIZES["embedding_length"], SIZES["feed_forward_length"]
    of_keys = dim * SIZES["attention.head_count_kv"] // SIZES["attention.head_count"]

    def matrix(name: str, rows: int, columns: int) -> None:
        weight: Any = rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(columns))
        writer.add_tensor(f"{name}.weight", weight.astype(np.float16))

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(dim, dtype=np.float32))

    matrix("token_embd", len(reader.fields["tokenizer.ggml.tokens"].data), dim)
    norm("output_norm")
    for block in range(SIZES["block_count"]):
        for name in ("attn_norm", "ffn_norm"):
            norm(f"blk.{block}.{name}")
        shapes = {"attn_q": (dim, dim), "attn_k": (of_keys, dim), "attn_v": (of_keys, dim), "attn_output": (dim, dim),
                  "ffn_gate": (hidden, dim), "ffn_up": (hidden, dim), "ffn_down": (dim, hidden)}  # fmt: skip
        for name, shape in shapes.items():
            matrix(f"blk.{block}.{name}", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(plain: Path, out: Path, type_name: str) -> None:
    """Let llama.cpp write a file in another type."""
    import llama_cpp

    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = TYPES[type_name]
    if llama_cpp.llama_model_quantize(str(plain).encode(), str(out).encode(), options):
        raise RuntimeError(f"llama.cpp could not write {out}")
