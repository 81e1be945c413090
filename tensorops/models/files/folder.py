"""Folders of Hugging Face: ``config.json`` and safetensors files, with the names and keys of a GGUF file.

So a folder and its conversion to GGUF are the same model for everything else. The names of tensors come from the
package gguf, whose table llama.cpp's own converter uses.
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tensorops as tp
from tensorops.models import architectures
from tensorops.models._errors import GGUFError, missing

from . import configurations
from ._open_file import OF_PYTORCH, read_whole
from .blocks import ComputedTensor, QuantizedWeight, Tensor
from .gguf import GGUFFile
from .gguf_types import TensorType
from .layouts import DTYPES, Raw, combined
from .safetensors_header import open_safetensors

try:
    import gguf
except ImportError as error:
    raise missing("gguf") from error

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["open_folder", "read_json"]

Stored = Tensor | ComputedTensor
WHOLE = "model.safetensors"  # the file of a model that is not split
LARGEST_JSON = 1 << 26  # bytes
TYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}

# Keys of a GGUF file by those of a folder that say the same.
KEYS = {
    "first_k_dense_replace": "leading_dense_block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "max_position_embeddings": "context_length",
    "kv_lora_rank": "attention.kv_lora_rank",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_group": "expert_group_count",
    "n_routed_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "norm_topk_prob": "expert_weights_norm",
    "num_attention_heads": "attention.head_count",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "num_hidden_layers": "block_count",
    "num_key_value_heads": "attention.head_count_kv",
    "q_lora_rank": "attention.q_lora_rank",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "routed_scaling_factor": "expert_weights_scale",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "topk_group": "expert_group_used_count",
    "vocab_size": "vocab_size",
}
GATED = {"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu_tanh"}
# What sees and hears, and what makes features of it that are as wide as those of tokens.
TOWERS = re.compile(
    r"(?:model\.)?((?:vision|audio)_(?:tower|model|embedder)|embed_(?:vision|audio)|multi_modal_projector|visual)\."
)
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")


def open_folder(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a folder of Hugging Face with a language model.

    Parameters
    ----------
    path : str or path-like
        A folder with ``config.json`` and ``model.safetensors``, or with the index of several files.

    Returns
    -------
    GGUFFile
        Metadata and tensors with the names that they have in a GGUF file; tensors are read when they are needed.

    Raises
    ------
    GGUFError
        A file is missing or damaged, or needs an unsupported feature; the message names file and field.
    """
    folder = Path(path)
    if not os.path.lexists(folder / "config.json"):
        files = sorted(folder.glob("*.gguf"))
        help_ = (
            f"pass the GGUF file, {files[0]}" if files else "`hf download OWNER/NAME --local-dir FOLDER` fetches one"
        )
        raise GGUFError(str(folder), "config.json", f"missing, so this is not the folder of a model: {help_}")
    config = _Config(folder / "config.json")
    try:
        return _translated(folder, config)
    except GGUFError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Values may be of any type; those that the sizes of a network depend on are checked when these are read.
        raise config.error("contents", f"a value has a wrong type or size: {error}") from error


def _translated(folder: Path, config: _Config) -> GGUFFile:
    architecture, name = config.architecture()
    stored = combined(_tensors(folder), config.quantization())
    blocks = config.blocks()
    if blocks > len(stored):  # what follows has a table of names, and a kind, for each
        raise config.error("num_hidden_layers", f"{blocks!r:.40} blocks, but only {len(stored)} tensors")
    config.complete()
    config.check_keys()
    config.check_activation(architecture.activation)
    metadata: dict[str, Any] = {"general.architecture": name}
    metadata |= {
        f"{name}.{key}": np.asarray(value) if isinstance(value, list) else value
        for key, value in config.metadata(architecture)
    }
    tensors = dict(_named(config, name, architecture, stored))
    dims = metadata[f"{name}.attention.key_length"]
    if not 0 < dims <= max((length for tensor in tensors.values() for length in tensor.shape), default=0):
        raise config.error("head_dim", f"{dims!r:.40} is more than a tensor has, or not positive")
    tensors |= _rope_factors(config, dims, metadata.get(f"{name}.attention.key_length_swa", dims))
    return GGUFFile(str(folder), metadata, tensors, is_folder=True)


class _Config:
    """A ``config.json``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._outer = read_json(path)
        text = self._outer.get("text_config")  # of a network that sees images, too
        self._written = text if isinstance(text, dict) else self._outer
        model_type = str(self._written.get("model_type", self._outer.get("model_type")))
        self.model_type = configurations.TEXT_TYPES.get(model_type, model_type)
        self.content: Mapping[str, Any] = self._written  # until it is complete

    def error(self, key: str, problem: str) -> GGUFError:
        return GGUFError(str(self.path), key, problem)

    def architecture(self) -> tuple[type[architectures.Decoder], str]:
        """Return the architecture, and its name in GGUF files."""
        found = architectures.of_folder(self.model_type)
        if found is None:
            known = ", ".join(sorted(architectures.model_types()))
            raise self.error("model_type", f"{self.model_type!r:.80} is not supported, only {known}")
        place = found.model_types.index(self.model_type)
        return found, found.names[min(place, len(found.names) - 1)]

    def blocks(self) -> int:
        """Return the number of blocks, before anything is made for each."""
        default = configurations.DEFAULTS.get(self.model_type, {}).get("num_hidden_layers")
        blocks = self._written.get("num_hidden_layers", default)
        if type(blocks) is not int or blocks < 1:
            raise self.error("num_hidden_layers", "missing" if blocks is None else f"{blocks!r:.40} is not a number")
        return blocks

    def complete(self) -> None:
        """Add what is not written."""
        try:
            self.content = configurations.complete(self.model_type, self._written)
        except KeyError as error:
            raise self.error(str(error.args[0]), "missing") from None

    def check_keys(self) -> None:
        """Raise for a key that the network would need; name those of which that is not known in a warning."""
        unknown = []
        for key, value in self._written.items():
            allowed = configurations.SUPPORTED_ONLY.get(f"{self.model_type}.{key}")
            allowed = allowed or configurations.SUPPORTED_ONLY.get(key)
            has_effect = configurations.has_effect(self.model_type, key, value)
            if has_effect and allowed is not None and value not in allowed:
                raise self.error(key, f"{value!r:.60} is not supported")
            if has_effect is None:
                unknown.append(key)
        if unknown:
            warnings.warn(f"{self.path}: unknown keys are ignored: {', '.join(sorted(unknown))}", stacklevel=2)

    def metadata(self, architecture: type[architectures.Decoder]) -> Iterator[tuple[str, Any]]:
        """Yield keys of a GGUF file, without the name of the architecture, and their values."""
        known, config = configurations.DEFAULTS.get(self.model_type, KEYS), self.content
        for key, ours in KEYS.items():
            if key in known and config.get(key) is not None:
                yield ours, config[key]
        yield "attention.key_length", config["head_dim"]
        yield "attention.value_length", config["head_dim"]
        layers = config["layer_types"]
        is_linear = not known.keys().isdisjoint(("linear_num_key_heads", "mamba_n_heads"))
        kinds = {"full_attention", "sliding_attention", *(["linear_attention"] * is_linear),
                 *(["conv"] * ("conv_L_cache" in known))}  # fmt: skip
        if not set(layers) <= kinds:
            raise self.error("layer_types", f"{sorted(set(layers))!r:.80} is not supported")
        windowed = [kind == "sliding_attention" for kind in layers]
        if any(windowed) and config["sliding_window"] is None:
            raise self.error("sliding_window", "null, but layer_types has blocks with a window")
        yield "attention.sliding_window", config["sliding_window"] if any(windowed) else 0
        if any(windowed):
            yield "attention.sliding_window_pattern", np.asarray(windowed)
        yield from self._rotation()
        yield from architecture.read_folder(config).items()

    def check_activation(self, activation: str) -> None:
        """Raise unless the gated unit is the one of the architecture."""
        key = "hidden_activation" if "hidden_activation" in self.content else "hidden_act"
        if (given := GATED.get(self.content[key])) != activation and activation in GATED.values():
            raise self.error(key, f"{self.content[key]!r:.40} is not supported, {given} instead of {activation}")

    def quantization(self) -> dict[str, Any]:
        """Return how weights are quantised."""
        found = self._outer.get("quantization") or self._written.get("quantization_config")
        found = found or self._outer.get("quantization_config") or {}
        if not isinstance(found, dict) or found.get("quant_method", "gptq") not in ("gptq", "awq", "fp8", "mxfp4"):
            raise self.error("quantization_config", f"{found!r:.200} is not supported")
        return found

    # -------------------------------------------------------------------------------- rotary embeddings

    def rope(self, kind: str = "full_attention") -> Mapping[str, Any]:
        """Return the parameters of the rotary embedding, of blocks of a kind."""
        ropes: Mapping[str, Any] = self.content["rope_parameters"]
        parameters: Mapping[str, Any] = ropes.get(kind, ropes)
        return parameters

    def _rotation(self) -> Iterator[tuple[str, Any]]:
        rope, local = self.rope(), self.rope("sliding_attention")
        kind = rope["rope_type"]
        yield "rope.freq_base", float(rope["rope_theta"])
        if local is not rope:
            yield "rope.freq_base_swa", float(local["rope_theta"])
            if local["rope_type"] not in ("default", "linear"):
                raise self.error("rope_parameters", f"{local['rope_type']!r:.40} is not supported with a window")
        partial = rope.get("partial_rotary_factor", 1.0)
        if partial != 1.0 and kind != "proportional":
            yield "rope.dimension_count", int(self.content["head_dim"] * partial)
        if kind not in ("default", "proportional", "linear", "yarn", "llama3", "longrope"):
            raise self.error("rope_parameters", f"rope_type {kind!r:.40} is not supported")
        if "original_max_position_embeddings" in rope and kind != "llama3":
            yield "rope.scaling.original_context_length", rope["original_max_position_embeddings"]
        if kind in ("default", "proportional", "llama3"):  # whose frequencies are a tensor
            return
        yield "rope.scaling.type", kind
        if kind in ("linear", "yarn"):
            yield "rope.scaling.factor", float(rope["factor"])
        if kind == "longrope":
            yield "rope.scaling.attn_factor", float(rope["attention_factor"])
        if kind == "yarn":
            for key in ("beta_fast", "beta_slow"):
                if rope.get(key):
                    yield f"rope.scaling.yarn_{key}", float(rope[key])
            yield "rope.scaling.truncate", bool(rope.get("truncate", True))
            # A file has a factor of YaRN's own growth.
            own = 1.0 + 0.1 * math.log(max(float(rope["factor"]), 1.0))
            yield "rope.scaling.attn_factor", float(rope["attention_factor"]) / own


def _rope_factors(config: _Config, dims: int, local_dims: int) -> dict[str, Stored]:
    """Return the numbers by which frequencies are divided, as tensors."""
    rope, local = config.rope(), config.rope("sliding_attention")
    kind, base, divisors = rope["rope_type"], rope["rope_theta"], {}
    if local is not rope and local["rope_type"] == "linear":
        divisors["rope_freqs_swa"] = np.full(local_dims // 2, float(local["factor"]))
    if kind == "proportional":  # the other features do not rotate
        turning = int(dims * rope.get("partial_rotary_factor", 1.0)) // 2
        divisors["rope_freqs"] = np.where(np.arange(dims // 2) < turning, rope.get("factor") or 1.0, 1e30)
    elif kind == "llama3":
        dims = int(dims * rope.get("partial_rotary_factor", 1.0))
        options = {key: value for key, value in rope.items() if key in LLAMA3 or key == "rope_type"}
        scaled = tp.rope_scaling.from_config(dims, options, base=base).freqs
        divisors["rope_freqs"] = tp.rope_scaling.from_config(dims, None, base=base).freqs / scaled
    elif kind == "longrope":
        divisors |= {f"rope_factors_{length}": np.asarray(rope[f"{length}_factor"]) for length in ("long", "short")}
    return {f"{name}.weight": _constant(f"{name}.weight", values) for name, values in divisors.items()}


def _constant(name: str, values: Any) -> ComputedTensor:
    array = np.asarray(values, dtype=np.float32)
    return ComputedTensor(name, array.shape, lambda: array)


# ------------------------------------------------------------------------------------------------- tensors


def _named(
    config: _Config, name: str, architecture: type[architectures.Decoder], stored: Mapping[str, Stored]
) -> Iterator[tuple[str, Stored]]:
    """Yield tensors by the names that they have in a GGUF file."""
    folder, blocks = config.path.parent, config.blocks()
    prediction = config.content.get("num_nextn_predict_layers") or 0
    kind = next((kind for kind, own in gguf.MODEL_ARCH_NAMES.items() if own == name), None)
    known = None if kind is None else gguf.get_tensor_name_map(kind, blocks)

    def renamed(theirs: str) -> str:
        stem, _, suffix = theirs.rpartition(".")
        if suffix not in ("weight", "bias"):
            stem, suffix = theirs, "weight"
        if (within := re.fullmatch(r"(?:.*\.)?layers\.(\d+)\.(.*)", stem)) and within[2] in architecture.folder_names:
            return f"blk.{within[1]}.{architecture.folder_names[within[2]]}.{suffix}"
        own = None if known is None else known.get_name(stem)
        if own is None:
            raise GGUFError(str(folder), f"tensor {theirs}", f"is not known to the architecture {name}")
        return f"{own}.{suffix}"

    towers: set[str] = set()
    plain: dict[str, Stored] = {}
    experts: dict[str, dict[int, Stored]] = {}
    for theirs, tensor in stored.items():
        theirs = theirs.replace("language_model.model.", "model.").replace("model.language_model.", "model.")
        theirs = theirs.replace("language_model.lm_head.", "lm_head.")
        if tower := TOWERS.match(theirs):
            towers.add(tower[1])
            continue
        if re.search(r"rotary_emb\.inv_freq$|^(model\.)?mtp\.", theirs):  # computed; predict further tokens
            continue
        if (own := re.match(r"model\.layers\.(\d+)\.", theirs)) and blocks <= int(own[1]) < blocks + prediction:
            continue  # it predicts further tokens
        one = EXPERT.fullmatch(theirs)
        ours = renamed(f"{one[1]}.{one[3]}" if one else theirs)
        place: dict[Any, Stored] = experts.setdefault(ours, {}) if one else plain
        key = int(one[2]) if one else ours
        if key in place:
            raise GGUFError(str(folder), f"tensor {theirs}", f"another one is {ours}, too")
        place[key] = tensor
    if towers:
        warnings.warn(f"{folder}: only text is run, without {', '.join(sorted(towers))}", stacklevel=2)
    for ours, parts in experts.items():
        if ours in plain:
            raise GGUFError(str(folder), f"tensor {ours}", "is there for all experts, and for each")
        if sorted(parts) != list(range(len(parts))) or len({part.shape for part in parts.values()}) > 1:
            raise GGUFError(str(folder), f"tensor {ours}", "an expert is missing, or has another shape")
        plain[ours] = _stack(ours, [parts[i] for i in range(len(parts))])
    for ours, tensor in plain.items():
        yield from architecture.from_folder(ours, tensor, config.content)


def _stack(name: str, parts: list[Stored]) -> ComputedTensor:
    shape = (len(parts), *parts[0].shape)

    def make() -> Any:
        made: list[Any] = [part.make() if isinstance(part, ComputedTensor) else part.dequantize() for part in parts]
        if not isinstance(made[0], QuantizedWeight):
            return np.stack([part.dequantize() for part in parts])
        return made[0].mapped(lambda *arrays: np.stack(arrays), *made[1:])

    return ComputedTensor(name, shape, make, parts[0].group_size)


def _tensors(folder: Path) -> dict[str, Tensor | Raw]:
    """Return the tensors of a model by their names in its folder, which may have other files with tensors."""
    index, files = folder / f"{WHOLE}.index.json", [WHOLE]
    if os.path.lexists(index):
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(place, str) for place in places.values()):
            raise GGUFError(str(index), "weight_map", "missing, or not names of files")
        files = sorted(set(places.values()))
        if any(Path(file).name != file for file in files):
            raise GGUFError(str(index), "weight_map", "a file is not in the folder")
    elif not os.path.lexists(folder / WHOLE):
        files = sorted(file.name for file in folder.glob("*.bin"))
        others = f"; {files[0]} has {OF_PYTORCH}" if files else ""
        raise GGUFError(str(folder), WHOLE, f"neither this file nor {index.name} is there{others}")
    found: dict[str, Tensor | Raw] = {}
    for file in files:
        for name, tensor in _tensors_of(folder / file):
            if name in found:
                raise GGUFError(str(folder / file), f"tensor {name}", "is in two files")
            found[name] = tensor
    return found


def _tensors_of(path: Path) -> Iterator[tuple[str, Tensor | Raw]]:
    """Yield the tensors of a safetensors file, whose bytes stay there."""
    try:
        file, _, entries = open_safetensors(path)
    except OSError as error:
        raise GGUFError(str(path), "file", f"cannot be opened: {error}") from None
    for name, (dtype, shape, start, nbytes) in entries.items():
        if dtype in TYPES:
            yield name, Tensor(name, TYPES[dtype], shape, file, start, nbytes)
        elif dtype in DTYPES:
            yield name, Raw(name, dtype, shape, file, start, nbytes)
        else:
            known = ", ".join((*TYPES, *DTYPES))
            raise GGUFError(str(path), f"tensor {name}", f"dtype {dtype} is not supported, only {known}")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; a GGUFError says why there is none."""
    try:
        content = json.loads(read_whole(path, LARGEST_JSON))
    except GGUFError:
        raise
    except (ValueError, RecursionError) as error:
        raise GGUFError(str(path), "file", f"not valid JSON: {error}") from None
    except OSError as error:
        raise GGUFError(str(path), "file", f"cannot be opened: {error.strerror}") from None
    if not isinstance(content, dict):
        raise GGUFError(str(path), "file", "not a JSON object")
    return content
