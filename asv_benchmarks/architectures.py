"""Random models of several architectures on the processor, compared with llama.cpp: half a billion weights, Q4_K_M.

usage: python -m asv_benchmarks.architectures FOLDER --tokenizer FILE [--names qwen3,gemma3,…] [--rounds 3]

FOLDER keeps the models, of which each is made if it is missing. FILE is a GGUF file that lends its tokenizer. The
columns are those of `asv_benchmarks.formats`. TENSOROPS_NUM_THREADS=1 measures one thread of both.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from asv_benchmarks import formats, random_model
from tensorops.models import architectures, open_gguf
from tensorops.models.files.gguf import GGUFFile

TYPE = "Q4_K_M"
COMMON = {"block_count": 14, "context_length": 2048, "embedding_length": 1536, "feed_forward_length": 6144,
          "attention.head_count": 24, "attention.head_count_kv": 8, "attention.key_length": 64,
          "attention.value_length": 64, "rope.dimension_count": 64, "attention.layer_norm_rms_epsilon": 1e-6,
          "rope.freq_base": 10000.0}  # fmt: skip
EXPERTS = {"block_count": 10, "expert_count": 16, "expert_used_count": 4, "expert_feed_forward_length": 768}
STATES = {"ssm.conv_kernel": 4, "ssm.group_count": 8, "ssm.inner_size": 2048, "ssm.state_size": 128,
          "ssm.time_step_rank": 16, "full_attention_interval": 4, "rope.dimension_count": 32,
          "rope.dimension_sections": [11, 11, 10, 0], "block_count": 12}  # fmt: skip
NETWORKS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3moe": EXPERTS,
    "gemma3": {"attention.sliding_window": 512},
    "phi3": {},
    "qwen35": STATES,
    "gpt-oss": EXPERTS | {"attention.sliding_window": 128},
}


def write(name: str, tokenizer: Path, out: Path) -> None:
    """Write random weights in float16, as the table of an architecture has them."""
    import gguf

    writer, reader = gguf.GGUFWriter(out, name), gguf.GGUFReader(tokenizer)
    for key, field in reader.fields.items():
        if key.startswith("tokenizer."):
            of_items = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], of_items)
    kinds = gguf.GGUFValueType
    metadata = {f"{name}.{key}": value for key, value in (COMMON | NETWORKS[name]).items()}
    for key, value in metadata.items():
        of_items = kinds.INT32 if isinstance(value, list) else None
        kind = kinds.ARRAY if of_items else kinds.FLOAT32 if isinstance(value, float) else kinds.UINT32
        writer.add_key_value(key, value, kind, of_items)
    known = {"general.architecture": name, **metadata, "tokenizer.ggml.tokens": open_gguf(tokenizer).metadata[
        "tokenizer.ggml.tokens"]}  # fmt: skip
    config = architectures.read_config(GGUFFile(str(out), known, dict.fromkeys(map(str, range(1000)))))  # type: ignore[arg-type]
    weights = {"token_embd.weight": (config.vocab_size, config.dim), "output_norm.weight": (config.dim,)}
    if name == "gpt-oss":  # for which llama.cpp has no other output matrix
        weights["output.weight"] = (config.vocab_size, config.dim)
    for block in range(config.blocks):
        weights |= {f"blk.{block}.{w.name}": w.shape for w in architectures.block_weights(config, block)}
    for whole, parts in architectures.get(name).fused.items() if name == "phi3" else ():
        for block in range(config.blocks):
            shapes = [weights.pop(f"blk.{block}.{part}.weight") for part in parts]
            weights[f"blk.{block}.{whole}.weight"] = (sum(shape[0] for shape in shapes), shapes[0][1])
    rng = np.random.default_rng(0)
    for key, shape in weights.items():
        if len(shape) == 1 and not key.endswith(("bias", "ssm_a", "sinks.weight")):
            writer.add_tensor(key, np.ones(shape, np.float32))
            continue
        array = rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[-1]))
        array = -np.abs(array) if key.endswith("ssm_a") else array
        is_single = len(shape) == 1 or "conv1d" in key or key.endswith("bias")  # llama.cpp adds and convolves float32
        writer.add_tensor(key, array if is_single else array.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def made(folder: Path, tokenizer: Path, name: str) -> Path:
    """Return the file of an architecture, made if it is missing."""
    path, plain = folder / f"{name}.gguf", folder / f"{name}.f16.gguf"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write(name, tokenizer, plain)
        random_model.quantize(plain, path, TYPE)
        plain.unlink()
    return path


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--names", default=",".join(NETWORKS))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    paths = [made(options.folder, options.tokenizer, name) for name in options.names.split(",")]
    formats.print_table(paths, "network", options.rounds)


if __name__ == "__main__":
    main()
