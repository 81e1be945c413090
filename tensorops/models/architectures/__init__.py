"""Architectures of networks, one in each file: what their files say, which weights they have, how a block computes.

A file here is found by its name; `register` adds an architecture from elsewhere. `read_config` and `find_misfit` are
what loading needs of them.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tensorops.models._errors import GGUFError
from tensorops.models.config import ModelConfig
from tensorops.models.fields import Fields

from ._decoder import WHOLE, Decoder, Weight

if TYPE_CHECKING:
    from tensorops.models.files.gguf import GGUFFile

__all__ = [
    "WHOLE",
    "Decoder",
    "Weight",
    "block_weights",
    "find_misfit",
    "get",
    "model_types",
    "names",
    "of_folder",
    "read_config",
    "register",
    "weights",
]

# Keys without effect here. A key outside of this set, those that an architecture asks for or ignores, and those read
# below may change the result, so it is refused rather than ignored.
HARMLESS = {
    "attention.layer_norm_epsilon",
    "pooling_type",  # how `embed` would join the vectors of tokens
    "rope.scaling.finetuned",
    "tensor_data_layout",
}
# Keys that are supported only with a neutral value.
NEUTRAL = {
    "attention.causal": True,
    "attention.sliding_window": 0,
    "rope.scale_linear": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
}
READ = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window_pattern",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_feed_forward_length",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_used_count",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "expert_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "feed_forward_length",
    "leading_dense_block_count",
    "nextn_predict_layers",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.truncate",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier",
    "vocab_size",
}
YARN = {  # parameters of `tensorops.rope_scaling.yarn`
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
    "mscale_all_dim": "yarn_log_multiplier",
}
SCALINGS = ("none", "linear", "yarn", "longrope")
SCORINGS = {1: "softmax", 2: "sigmoid"}
LONGEST_CONTEXT = 2**31 - 1  # positions are 32-bit integers
TENSORS_PER_BLOCK = 6  # at least

_registered: dict[str, type[Decoder]] = {}


def register(architecture: type[Decoder]) -> type[Decoder]:
    """Add an architecture, or replace the one of the same names; returns it, as a decorator does.

    Parameters
    ----------
    architecture : subclass of Decoder
        The architecture.
    """
    _registered.update(dict.fromkeys(architecture.names, architecture))
    return architecture


@functools.cache
def _own() -> Mapping[str, type[Decoder]]:
    found: dict[str, type[Decoder]] = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            there = importlib.import_module(f"{__name__}.{module.name}")
            (made,) = (getattr(there, name) for name in there.__all__)
            found |= dict.fromkeys(made.names, made)
    return found


def _all() -> Mapping[str, type[Decoder]]:
    return {**_own(), **_registered}


def names() -> tuple[str, ...]:
    """Return the names of all architectures, as in GGUF files."""
    return tuple(_all())


def get(name: str) -> type[Decoder]:
    """Return an architecture by its name.

    Raises
    ------
    ValueError
        There is none of this name.
    """
    if (found := _registered.get(name) or _own().get(name)) is None:
        raise ValueError(f"{name!r:.80} is not supported, only {', '.join(names())}")
    return found


def model_types() -> tuple[str, ...]:
    """Return the ``model_type`` of the folders that are supported."""
    return tuple(model_type for found in dict.fromkeys(_all().values()) for model_type in found.model_types)


def of_folder(model_type: str) -> type[Decoder] | None:
    """Return the architecture of a folder by the ``model_type`` in its ``config.json``, or None."""
    return next((found for found in _all().values() if model_type in found.model_types), None)


def read_config(file: GGUFFile) -> ModelConfig:
    """Read the sizes and options of a network from a file's metadata.

    Parameters
    ----------
    file : GGUFFile
        A model, or a folder of one.

    Returns
    -------
    ModelConfig
        The sizes; `find_misfit` checks that the tensors have them.

    Raises
    ------
    GGUFError
        A key is missing, contradicts another, or needs an unsupported feature.
    """
    fields, key = Fields(file), "general.architecture"
    name = fields.string(key)
    try:
        architecture = get(name)
    except ValueError as error:
        raise fields.error(key, str(error)) from None
    blocks = fields.positive(f"{name}.block_count")
    if blocks * TENSORS_PER_BLOCK > len(file.tensors):
        raise fields.error(f"{name}.block_count", f"{blocks} blocks, but only {len(file.tensors)} tensors")
    if (prediction := fields.natural(f"{name}.nextn_predict_layers", 0)) >= blocks:
        raise fields.error(f"{name}.nextn_predict_layers", f"{prediction} of {blocks} blocks")
    context = fields.positive(f"{name}.context_length")
    if context > LONGEST_CONTEXT:
        raise fields.error(f"{name}.context_length", f"{context} is more than {LONGEST_CONTEXT}")
    dim, heads = fields.count(f"{name}.embedding_length"), fields.count(f"{name}.attention.head_count")
    head_dim = _head_dim(fields, name, dim, heads)
    kv_heads = _kv_heads(fields, name, heads, blocks)
    expert_count = fields.natural(f"{name}.expert_count", 0)
    hidden = fields.counts(f"{name}.feed_forward_length", blocks, 1 if expert_count else None)
    read = {
        "architecture": name,
        "activation": architecture.activation,
        "interleaved": architecture.interleaved_in_folders if file.is_folder else architecture.interleaved,
        "blocks": blocks - prediction,
        "prediction_blocks": prediction,
        "context_length": context,
        "dim": dim,
        "heads": heads,
        "kv_heads": max(kv_heads),
        "head_dim": head_dim,
        "vocab_size": _vocab_size(fields, name),
        "eps": fields.number(f"{name}.attention.layer_norm_{'' if architecture.subtracts_mean else 'rms_'}epsilon"),
        **_rotation(fields, name, head_dim, context, architecture.yarn_scales_scores),
        **(fields.windows(name, 0) if file.is_folder else {}),  # which says for every block whether it has one
        **_feed_forward(fields, name, hidden[-1], architecture.scoring),
    }
    try:
        own = architecture.read(fields, name)
        if absent := {block for block, count in enumerate(kv_heads) if not count} - set(own.get("recurrent", ())):
            raise fields.error(f"{name}.attention.head_count_kv", f"0 in block {min(absent)}, which has attention")
        dense = fields.natural(f"{name}.leading_dense_block_count", 0)
        _refuse_unsupported(fields, name, architecture.ignored_keys)
        config = _with_own(read, own, kv_heads, hidden, dense)
        config.rotation  # noqa: B018 - computed here, as its functions refuse numbers
    except GGUFError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise fields.error(name, f"a value has a wrong type or size: {error}") from error
    return config


def _with_own(
    read: dict[str, Any], own: dict[str, Any], kv_heads: list[int], hidden: list[int], dense: int
) -> ModelConfig:
    """Return a configuration with what its architecture has read, and what differs by block: `dense` lack experts."""
    overrides: dict[int, dict[str, Any]] = {block: dict(changes) for block, changes in own.pop("overrides", {}).items()}
    for field, of_blocks in (("kv_heads", kv_heads), ("hidden_dim", hidden)):
        for block, value in enumerate(of_blocks):
            if value not in (0, read[field]):
                overrides.setdefault(block, {})[field] = value
    for block in range(min(dense, read["blocks"])):
        overrides.setdefault(block, {}).update(experts=0, hidden_dim=hidden[block])
    return ModelConfig(**{**read, **own}, overrides=overrides)


def block_weights(config: ModelConfig, block: int) -> list[Weight]:
    """Return the weights of a block by its number."""
    return list(get(config.architecture).weights(config.of_block(block), block))


def find_misfit(config: ModelConfig, shapes: Mapping[str, Iterable[int]]) -> tuple[str, str] | None:
    """Compare the shapes of a model's weights with those that a configuration requires.

    Parameters
    ----------
    config : ModelConfig
        The sizes and options.
    shapes : mapping of str to tuple of int
        Shape of every weight, by its name in a GGUF file.

    Returns
    -------
    tuple of str or None
        The first name that does not fit and the reason, or None if all fit.
    """
    seen: set[str] = set()
    together: dict[tuple[str, str], str] = {}  # the first of those that multiply the same input
    for weight in weights(config):
        name = weight.name
        seen.add(name)
        first = together.setdefault((name.split(".")[1], weight.joined or name), name)
        if (name in shapes) != (first in shapes):
            absent, present = (name, first) if first in shapes else (first, name)
            return absent, f"missing, but {present} is there"
        if name not in shapes:
            if weight.is_optional:
                continue
            return name, "missing"
        if tuple(shapes[name]) != weight.shape:
            return name, f"shape {tuple(shapes[name])} should be {weight.shape}"
    other = next((name for name in shapes if name not in seen), None)
    return None if other is None else (other, f"not part of the architecture {config.architecture}")


def weights(c: ModelConfig) -> Iterator[Weight]:
    """Yield all weights that a network may have, with their names in a GGUF file."""
    pairs = ((c.rope_dims or c.head_dim) // 2,)
    yield Weight("token_embd.weight", (c.vocab_size, c.dim))
    yield Weight("output_norm.weight", (c.dim,))
    yield Weight("output.weight", (c.vocab_size, c.dim), is_optional=True)
    if c.windowed:
        yield Weight("rope_freqs_swa.weight", (c.of_block(c.windowed[0]).head_dim // 2,), is_optional=True)
    for name in ("rope_freqs", "rope_factors_long", "rope_factors_short"):
        yield Weight(f"{name}.weight", pairs, is_optional=True)
    yield from get(c.architecture).model_weights(c)
    for block in range(c.blocks):
        yield from (weight._replace(name=f"blk.{block}.{weight.name}") for weight in block_weights(c, block))


def _refuse_unsupported(fields: Fields, name: str, ignored: frozenset[str]) -> None:
    """Raise unless the file needs exactly what was asked for."""
    for key, value in fields.file.metadata.items():
        own = key.removeprefix(f"{name}.")
        if own == key or key in fields.asked or own in READ | HARMLESS | ignored:
            continue
        if own not in NEUTRAL:
            raise fields.error(key, "is not supported")
        if type(value) is not type(NEUTRAL[own]) or value != NEUTRAL[own]:
            raise fields.error(key, f"{value!r:.80} is not supported, only {NEUTRAL[own]!r}")


def _rotation(fields: Fields, name: str, head_dim: int, context: int, scales_scores: bool) -> dict[str, Any]:
    scaling = fields.string(f"{name}.rope.scaling.type", "linear")
    if scaling not in SCALINGS:
        known = ", ".join(map(repr, SCALINGS))
        raise fields.error(f"{name}.rope.scaling.type", f"{scaling!r:.80} is not supported, only {known}")
    given = {option: f"{name}.rope.scaling.{key}" for option, key in YARN.items()}
    options = {option: fields.number(key) for option, key in given.items() if fields.value(key) is not None}
    if scaling == "yarn":
        options["truncate"] = fields.flag(f"{name}.rope.scaling.truncate", True)
        if "mscale_all_dim" in options:
            options["mscale"] = options["mscale_all_dim"] if scales_scores else 1.0
    elif other := next(iter(options), None):
        raise fields.error(given[other], f"is not supported with the scaling {scaling!r}")
    dims = fields.count(f"{name}.rope.dimension_count", head_dim)
    if dims % 2 or dims > head_dim:
        raise fields.error(f"{name}.rope.dimension_count", f"{dims} of the {head_dim} features of a head, or odd")
    return {
        "rope_base": fields.number(f"{name}.rope.freq_base", 10000.0),
        "rope_scaling": scaling,
        "rope_factor": fields.number(f"{name}.rope.scaling.factor", 1.0),
        "rope_growth": fields.number(f"{name}.rope.scaling.attn_factor", 1.0),
        "original_context_length": fields.positive(f"{name}.rope.scaling.original_context_length", context),
        "rope_options": options,
        "rope_dims": None if dims == head_dim else dims,
    }


def _feed_forward(fields: Fields, name: str, hidden: int, scoring: str) -> dict[str, Any]:
    experts = fields.natural(f"{name}.expert_count", 0)
    if not experts:
        return {"hidden_dim": hidden}
    used = fields.count(f"{name}.expert_used_count")
    if used > experts:
        raise fields.error(f"{name}.expert_used_count", f"{used}, but there are {experts} experts")
    if (number := fields.value(f"{name}.expert_gating_func")) is not None:
        if type(number) is not int or number not in SCORINGS:
            known = ", ".join(f"{key} ({value})" for key, value in SCORINGS.items())
            raise fields.error(f"{name}.expert_gating_func", f"{number!r:.40} is not supported, only {known}")
        scoring = SCORINGS[number]
    expert_hidden = fields.count(f"{name}.expert_feed_forward_length", hidden)
    shared = fields.natural(f"{name}.expert_shared_count", 0) * expert_hidden
    groups = fields.positive(f"{name}.expert_group_count", 1)
    groups_used = fields.positive(f"{name}.expert_group_used_count", groups)
    if experts % groups or groups_used > groups or used * groups > experts * groups_used or experts < 2 * groups > 2:
        raise fields.error(
            f"{name}.expert_group_count", f"{used} of {experts} experts in {groups_used} of {groups} groups"
        )
    return {
        "hidden_dim": hidden,
        "experts": experts,
        "experts_used": used,
        "expert_hidden_dim": expert_hidden,
        "scoring": scoring,
        "expert_groups": groups,
        "expert_groups_used": groups_used,
        "expert_scale": fields.optional(f"{name}.expert_weights_scale") or 1.0,
        "renormalize": fields.flag(f"{name}.expert_weights_norm", True),
        "shared_hidden_dim": fields.natural(f"{name}.expert_shared_feed_forward_length", shared),
    }


def _kv_heads(fields: Fields, name: str, heads: int, blocks: int) -> list[int]:
    key = f"{name}.attention.head_count_kv"
    found = fields.counts(key, blocks, heads, least=0)  # none without attention
    if not any(found):
        raise fields.error(key, "0 in all blocks")
    if wrong := next((kv_heads for kv_heads in found if kv_heads and heads % kv_heads), None):
        raise fields.error(key, f"{heads} query heads are not a multiple of {wrong}")
    return found


def _head_dim(fields: Fields, name: str, dim: int, heads: int) -> int:
    """Return the features per head, from the file if it has them, else by dividing a token's features."""
    key = f"{name}.attention.key_length"
    if key not in fields.file.metadata and dim % heads:
        raise fields.error(f"{name}.attention.head_count", f"{dim} features do not divide into {heads} heads")
    head_dim = fields.count(key, dim // heads or 1)
    if head_dim % 2:
        raise fields.error(key, f"{head_dim} is odd, but features rotate in pairs")
    key = f"{name}.attention.value_length"
    if f"{name}.attention.kv_lora_rank" in fields.file.metadata:  # where both are made of a latent
        return head_dim
    if (other := fields.count(key, head_dim)) != head_dim:
        raise fields.error(key, f"{other} is not supported, only the {head_dim} features of a head")
    return head_dim


def _vocab_size(fields: Fields, name: str) -> int:
    key = f"{name}.vocab_size"
    if "tokenizer.ggml.tokens" not in fields.file.metadata and fields.file.is_folder:
        return fields.count(key)
    tokens = len(fields.strings("tokenizer.ggml.tokens"))
    if (size := fields.positive(key, tokens)) != tokens:
        raise fields.error(key, f"{size}, but tokenizer.ggml.tokens has {tokens}")
    return size
