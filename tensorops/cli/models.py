"""``tensorops models``: which language models load, and what is in a file of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from tensorops.cli import _memory, _model
from tensorops.cli._options import ModelPath, escape, print_table, require_configuration, say, warnings_told, write_json
from tensorops.hardware.cpu import available_memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorops.models import ModelConfig, Tokenizer
    from tensorops.models.files.blocks import ComputedTensor, Tensor
    from tensorops.models.files.gguf import GGUFFile


@click.command()
@click.argument("path", type=ModelPath(), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def models(path: Path | None, as_json: bool) -> None:
    """List what loads as a language model, or describe PATH, a GGUF file or a folder; or say why it does not.

    No weight is read for that. The exit code is 1 if PATH does not load.
    """
    require_configuration()
    try:
        import tensorops.models  # noqa: F401 - an installation without the extra has no such package
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    facts = supported() if path is None else described(path, as_json)
    if as_json:
        write_json(facts, indent=2)
    elif path is None:
        print_supported(Console(), facts)
    else:
        print_facts(Console(), facts)


# --------------------------------------------------------------------------------------------- what loads at all


def supported() -> dict[str, Any]:
    """Return the architectures, formats of weights and tokenizers, from the tables of those that read them."""
    from tensorops.models import architectures
    from tensorops.models.files.blocks import supported_types
    from tensorops.models.files.layouts import DTYPES
    from tensorops.models.tokenizers.gguf_tokenizer import MODELS
    from tensorops.models.tokenizers.pretokenizers import RULES

    found = dict.fromkeys(map(architectures.get, architectures.names()))
    return {
        "architectures": [{"names": list(each.names), "model_types": list(each.model_types)} for each in found],
        "formats": [kind.name for kind in supported_types()],
        "dtypes": ["F32", "F16", "BF16", *DTYPES],
        "tokenizers": list(MODELS),
        "pretokenizers": sorted(RULES),
    }


def print_supported(console: Console, facts: dict[str, Any]) -> None:
    """Print them as a table of architectures and lines about the rest."""
    table = Table(title="Architectures")
    table.add_column("general.architecture of a GGUF file")
    table.add_column("model_type of a folder")
    for row in facts["architectures"]:
        table.add_row(escape(", ".join(row["names"])), escape(", ".join(row["model_types"])))
    print_table(console, table)
    for label, key in (
        ("weights of GGUF files", "formats"),
        ("dtypes in folders", "dtypes"),
        ("tokenizers of GGUF files", "tokenizers"),
        ("tokenizer.ggml.pre of gpt2", "pretokenizers"),
    ):
        say(console, ", ".join(facts[key]), label=f"[bold]{label}[/]: ")
    say(console, "tokenizer.json", label="[bold]tokenizers of folders[/]: ")
    console.print()
    say(console, "tensorops models PATH describes a file or a folder, or says why it does not load")


# ------------------------------------------------------------------------------------------------- a file or folder


def described(path: Path, as_json: bool) -> dict[str, Any]:
    """Return facts about a model; one that does not load ends the command with the reason."""
    from tensorops.models.model_file import read_model

    try:
        with warnings_told():
            facts = facts_of(path, *read_model(path))
    except (ImportError, OSError, ValueError) as error:
        if not as_json:
            raise click.ClickException(str(error)) from None
        write_json({"path": str(path), "loads": False, "reason": str(error)}, indent=2)
        click.get_current_context().exit(1)
    return facts


def facts_of(
    path: Path,
    file: GGUFFile,
    config: ModelConfig,
    tensors: Mapping[str, Tensor | ComputedTensor],
    tokenizer: Tokenizer | None,
) -> dict[str, Any]:
    """Return what is in a file."""
    from tensorops.models.memory import cache_bytes, weights_bytes

    backend = _model.default_backend()
    sizes = {"blocks": config.blocks, "features": config.dim, "heads": config.heads, "kv_heads": config.kv_heads}
    sizes |= {"head_features": config.head_dim, "hidden_features": config.hidden_dim, "vocabulary": config.vocab_size}
    if config.experts:
        sizes |= {"experts": config.experts, "experts_used": config.experts_used}
    names = ("tokenizer.ggml.model", "tokenizer.ggml.pre")
    of_file = [file.metadata[name] for name in names if isinstance(file.metadata.get(name), str)]
    return {
        "path": str(path),
        "loads": True,
        "architecture": config.architecture,
        "parameters": sum(prod(tensor.shape) for tensor in tensors.values()),
        "sizes": sizes,
        "tensors": [{"type": kind, "count": count} for kind, count in kinds(path, file).most_common()],
        "tokenizer": None if tokenizer is None else "tokenizer.json" if file.is_folder else " ".join(of_file),
        "chat_template": tokenizer is not None and tokenizer.chat_template is not None,
        "context": config.context_length,
        "backend": backend.name,
        "bytes": {
            "files": _memory.file_bytes(path),
            "weights": weights_bytes(tensors, backend.name),
            "cache": cache_bytes(config, config.context_length),
            "available": available_memory(),
        },
    }


def kinds(path: Path, file: GGUFFile) -> Counter[str]:
    """Return how many tensors there are of each type, as files store them."""
    if file.is_folder:
        return Counter(dtype for part in _memory.files_of(path) for dtype in _dtypes(part))
    from tensorops.models.files.blocks import Tensor

    return Counter(tensor.type.name for tensor in file.tensors.values() if isinstance(tensor, Tensor))


def _dtypes(path: Path) -> Iterator[str]:
    from tensorops.models.files.safetensors_header import open_safetensors

    _, _, entries = open_safetensors(path)
    return (entry.dtype for entry in entries.values())


def print_facts(console: Console, facts: dict[str, Any]) -> None:
    """Print facts about a model, a line each."""
    sizes, size = facts["sizes"], facts["bytes"]
    heads = f"{sizes['heads']} ({sizes['kv_heads']} of keys and values) with {sizes['head_features']} features"
    features = f"{sizes['features']}, {sizes['hidden_features']} inside feed-forward layers"
    memory = f"{_memory.gigabytes(size['weights'])} for weights on {facts['backend']}, "
    memory += f"{_memory.gigabytes(size['cache'])} for keys and values of a full context"
    if size["available"] is not None:
        memory += f"; {_memory.gigabytes(size['available'])} are available"
    lines = {
        "file": f"{facts['path']}, {_memory.gigabytes(size['files'])}",
        "architecture": facts["architecture"],
        "parameters": f"{facts['parameters'] / 1e6:,.1f} million",
        "blocks": sizes["blocks"],
        "features": features,
        "heads": heads,
        "vocabulary": sizes["vocabulary"],
        "tensors": ", ".join(f"{row['count']} {row['type']}" for row in facts["tensors"]),
        "tokenizer": facts["tokenizer"] or "none: tokenizer.json is missing",
        "chat template": "yes" if facts["chat_template"] else "no: `tensorops chat` needs one",
        "context": f"{facts['context']} tokens",
        "memory": memory,
    }
    if "experts" in sizes:
        lines["experts"] = f"{sizes['experts']}, {sizes['experts_used']} for each token"
    for label, words in lines.items():
        say(console, words, label=f"[bold]{label}[/]: ")
