"""Folders of Hugging Face: ``config.json`` and safetensors files, with the names and keys of a GGUF file.

So a folder and its conversion to GGUF are the same model for everything else. The names of tensors come from the
package gguf, whose table llama.cpp's own converter uses.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tensorops as tp
from tensorops.models import architectures
from tensorops.models._errors import GGUFError, missing

from ._open_file import read_whole
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

__all__ = ["open_folder"]

Stored = Tensor | ComputedTensor
WHOLE = "model.safetensors"  # the file of a model that is not split
LARGEST_JSON = 1 << 26  # bytes
TYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}

# Keys of a GGUF file by those of a folder that say the same.
KEYS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "head_dim": "attention.key_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "moe_intermediate_size": "expert_feed_forward_length",
    "norm_topk_prob": "expert_weights_norm",
    "num_attention_heads": "attention.head_count",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "num_hidden_layers": "block_count",
    "num_key_value_heads": "attention.head_count_kv",
    "num_local_experts": "expert_count",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "vocab_size": "vocab_size",
}
# Keys that are read below, and those that have no effect on what a network computes.
OTHERS = frozenset(
    [
        "architectures",
        "attention_bias",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "cache_implementation",
        "chunk_size_feed_forward",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "experts_per_token",
        "hidden_act",
        "hidden_activation",
        "id2label",
        "initial_context_length",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "label2id",
        "layer_types",
        "max_window_layers",
        "mlp_bias",
        "model_type",
        "original_max_position_embeddings",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "partial_rotary_factor",
        "pretraining_tp",
        "problem_type",
        "quantization",
        "quantization_config",
        "resid_pdrop",
        "return_dict",
        "rope_local_base_freq",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "tie_word_embeddings",
        "torch_dtype",
        "transformers_version",
        "unk_token_id",
        "use_cache",
        "use_sliding_window",
    ]
)
# Keys that are supported only with one value.
NEUTRAL = {
    "use_bidirectional_attention": "vision",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
}
GATED = {"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu_tanh"}
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
    config.check_activation(architecture.activation)
    metadata: dict[str, Any] = {"general.architecture": name}
    metadata |= {
        f"{name}.{key}": np.asarray(value) if isinstance(value, list) else value
        for key, value in config.metadata(architecture)
    }
    tensors = dict(_named(folder, name, architecture, config))
    dims = metadata.get(f"{name}.attention.key_length") or config.head_dim()
    if not 0 < dims <= max((length for tensor in tensors.values() for length in tensor.shape), default=0):
        raise config.error("head_dim", f"{dims!r:.40} is more than a tensor has, or not positive")
    tensors |= _rope_factors(config, dims)
    return GGUFFile(str(folder), metadata, tensors, is_folder=True)


class _Asked(Mapping[str, Any]):
    """A ``config.json`` that notes for which of its keys it was asked."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content
        self.keys_asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.keys_asked.add(key)
        return self._content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)


class _Config:
    """A ``config.json``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content = _read_json(path)
        self.model_type = str(content.get("model_type"))
        self._outer = content
        text = content.get("text_config")  # of a network that sees images, too
        self._content = {**text} if isinstance(text, dict) else content
        if isinstance(text, dict):
            self.model_type = str(text.get("model_type", self.model_type))

    def error(self, key: str, problem: str) -> GGUFError:
        return GGUFError(str(self.path), key, problem)

    def get(self, key: str, default: Any = None) -> Any:
        found = self._content.get(key)
        return default if found is None else found

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(key, "missing" if value is None else f"{value!r:.40} is not a number")
        return value

    def architecture(self) -> tuple[type[architectures.Decoder], str]:
        """Return the architecture, and its name in GGUF files."""
        found = architectures.of_folder(self.model_type)
        if found is None:
            known = ", ".join(sorted(architectures.model_types()))
            raise self.error("model_type", f"{self.model_type!r:.80} is not supported, only {known}")
        place = found.model_types.index(self.model_type)
        return found, found.names[min(place, len(found.names) - 1)]

    def metadata(self, architecture: type[architectures.Decoder]) -> Iterator[tuple[str, Any]]:
        """Yield keys of a GGUF file, without the name of the architecture, and their values."""
        asked = _Asked(self._content)
        own = architecture.read_folder(asked)
        known = KEYS.keys() | OTHERS | asked.keys_asked | architecture.ignored_folder_keys
        for key, value in self._content.items():
            if key in KEYS and value is not None:
                yield KEYS[key], value
            elif key not in known:
                allowed: tuple[Any, ...] = (None, False, 0, "", [], {}, NEUTRAL.get(key))
                if value not in allowed and not key.startswith("_"):
                    raise self.error(key, f"{value!r:.60} is not supported")
        head_dim = self.get("head_dim")
        if head_dim is not None:
            yield "attention.value_length", head_dim
        if layers := self.get("layer_types"):
            kinds = {"full_attention", "sliding_attention", *(["linear_attention"] * ("ssm.group_count" in own))}
            if not set(layers) <= kinds:
                raise self.error("layer_types", f"{sorted(set(layers))!r:.80} is not supported")
            if "sliding_attention" in layers:
                yield "attention.sliding_window_pattern", np.asarray([kind == "sliding_attention" for kind in layers])
        elif self.get("use_sliding_window") is False:
            yield "attention.sliding_window", 0
        yield from self._rotation()
        yield from own.items()

    def check_activation(self, activation: str) -> None:
        """Raise unless the gated unit is the one of the architecture."""
        key = "hidden_activation" if self.get("hidden_activation") else "hidden_act"
        if (given := GATED.get(self.get(key, "silu"))) != activation and activation in GATED.values():
            raise self.error(key, f"{self.get(key)!r:.40} is not supported, {given} instead of {activation}")

    def quantization(self) -> dict[str, Any]:
        """Return how weights are quantised."""
        found = self._outer.get("quantization") or self.get("quantization_config") or {}
        if not isinstance(found, dict) or found.get("quant_method", "gptq") not in ("gptq", "awq", "fp8", "mxfp4"):
            raise self.error("quantization_config", f"{found!r:.200} is not supported")
        return found

    # -------------------------------------------------------------------------------- rotary embeddings

    def rope(self, kind: str = "full_attention") -> dict[str, Any]:
        """Return the parameters of the rotary embedding, of blocks of a kind."""
        given = self.get("rope_parameters") or self.get("rope_scaling") or {}
        given = given.get(kind, given) if isinstance(given, dict) else {}
        found = {"rope_theta": self.get("rope_theta"), **(given or {})}
        return {key: value for key, value in found.items() if value is not None}

    def rope_type(self) -> str:
        rope = self.rope()
        return str(rope.get("rope_type", rope.get("type", "default")))

    def original_context(self) -> int:
        """Return the length of the context before it was made longer."""
        given = self.rope().get("original_max_position_embeddings", self.get("original_max_position_embeddings"))
        return int(given or self.number("max_position_embeddings"))

    def head_dim(self) -> int:
        return int(self.get("head_dim") or self.number("hidden_size") // self.number("num_attention_heads"))

    def _rotation(self) -> Iterator[tuple[str, Any]]:
        rope, kind = self.rope(), self.rope_type()
        if "rope_theta" in rope:
            yield "rope.freq_base", rope["rope_theta"]
        local = self.rope("sliding_attention").get("rope_theta") if "rope_parameters" in self._content else None
        if local := self.get("rope_local_base_freq", local if local != rope.get("rope_theta") else None):
            yield "rope.freq_base_swa", local
        partial = rope.get("partial_rotary_factor", self.get("partial_rotary_factor", 1.0))
        if partial != 1.0 and kind != "proportional":
            yield "rope.dimension_count", int(self.head_dim() * partial)
        if kind in ("default", "proportional"):  # whose frequencies are a tensor
            return
        if kind not in ("linear", "yarn", "llama3", "longrope"):
            raise self.error("rope_parameters", f"rope_type {kind!r:.40} is not supported")
        if kind != "llama3":
            yield "rope.scaling.type", kind
        if kind in ("linear", "yarn"):
            yield "rope.scaling.factor", float(rope.get("factor", 1.0))
        if kind == "longrope":
            yield "rope.scaling.original_context_length", self.original_context()
            factor = self.number("max_position_embeddings") / self.original_context()
            growth = math.sqrt(1.0 + math.log(factor) / math.log(self.original_context())) if factor > 1.0 else 1.0
            yield "rope.scaling.attn_factor", float(rope.get("attention_factor", growth))
        if kind == "yarn":
            yield "rope.scaling.original_context_length", self.original_context()
            yield from self._yarn(rope)

    def _yarn(self, rope: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for key in ("beta_fast", "beta_slow"):
            if key in rope:
                yield f"rope.scaling.yarn_{key}", float(rope[key])
        yield "rope.scaling.truncate", bool(rope.get("truncate", True))
        if rope.get("mscale_all_dim") and rope.get("mscale"):
            if rope["mscale"] != 1.0:
                raise self.error("rope_parameters", f"mscale {rope['mscale']!r:.40} is not supported, only 1.0")
            yield "rope.scaling.yarn_log_multiplier", float(rope["mscale_all_dim"])
        elif "attention_factor" in rope:
            own = 1.0 + 0.1 * math.log(max(float(rope.get("factor", 1.0)), 1.0))
            yield "rope.scaling.attn_factor", float(rope["attention_factor"]) / own


def _rope_factors(config: _Config, dims: int) -> dict[str, Stored]:
    """Return the numbers by which frequencies are divided, as tensors."""
    rope, kind = config.rope(), config.rope_type()
    base = rope.get("rope_theta", 10000.0)
    if kind == "proportional":  # the other features do not rotate
        turning = int(dims * rope.get("partial_rotary_factor", 1.0)) // 2
        own = np.where(np.arange(dims // 2) < turning, 1.0, 1e30)
        return {"rope_freqs.weight": _constant("rope_freqs.weight", own)}
    if kind == "llama3":
        options = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
        scaled = tp.rope_scaling.from_config(dims, options, base=base).freqs
        own = tp.rope_scaling.from_config(dims, None, base=base).freqs / scaled
        return {"rope_freqs.weight": _constant("rope_freqs.weight", own)}
    if kind != "longrope":
        return {}
    named = {f"rope_factors_{length}.weight": rope.get(f"{length}_factor") for length in ("long", "short")}
    return {name: _constant(name, np.asarray(factors)) for name, factors in named.items()}


def _constant(name: str, values: Any) -> ComputedTensor:
    array = np.asarray(values, dtype=np.float32)
    return ComputedTensor(name, array.shape, lambda: array)


# ------------------------------------------------------------------------------------------------- tensors


def _named(
    folder: Path, name: str, architecture: type[architectures.Decoder], config: _Config
) -> Iterator[tuple[str, Stored]]:
    """Yield tensors by the names that they have in a GGUF file."""
    blocks, found = config.number("num_hidden_layers"), combined(_tensors(folder), config.quantization())
    if blocks > len(found):  # a table of names is made for each
        raise config.error("num_hidden_layers", f"{blocks!r:.40} blocks, but only {len(found)} tensors")
    kind = next((kind for kind, own in gguf.MODEL_ARCH_NAMES.items() if own == name), None)
    known = None if kind is None else gguf.get_tensor_name_map(kind, int(blocks))

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

    plain: dict[str, Stored] = {}
    experts: dict[str, dict[int, Stored]] = {}
    for theirs, tensor in found.items():
        theirs = theirs.replace("language_model.model.", "model.").replace("model.language_model.", "model.")
        if re.search(r"rotary_emb\.inv_freq$|^(model\.)?(vision_tower|multi_modal_projector|visual|mtp)\.", theirs):
            continue
        one = EXPERT.fullmatch(theirs)
        ours = renamed(f"{one[1]}.{one[3]}" if one else theirs)
        place: dict[Any, Stored] = experts.setdefault(ours, {}) if one else plain
        key = int(one[2]) if one else ours
        if key in place:
            raise GGUFError(str(folder), f"tensor {theirs}", f"another one is {ours}, too")
        place[key] = tensor
    for ours, parts in experts.items():
        if ours in plain:
            raise GGUFError(str(folder), f"tensor {ours}", "is there for all experts, and for each")
        if sorted(parts) != list(range(len(parts))) or len({part.shape for part in parts.values()}) > 1:
            raise GGUFError(str(folder), f"tensor {ours}", "an expert is missing, or has another shape")
        plain[ours] = _stack(ours, [parts[i] for i in range(len(parts))])
    for ours, tensor in plain.items():
        yield from architecture.from_folder(ours, tensor)


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
        places = _read_json(index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(place, str) for place in places.values()):
            raise GGUFError(str(index), "weight_map", "missing, or not names of files")
        files = sorted(set(places.values()))
        if any(Path(file).name != file for file in files):
            raise GGUFError(str(index), "weight_map", "a file is not in the folder")
    elif not os.path.lexists(folder / WHOLE):
        raise GGUFError(str(folder), WHOLE, f"neither this file nor {index.name} is there")
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


def _read_json(path: Path) -> dict[str, Any]:
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
