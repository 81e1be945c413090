"""How much memory a model needs, before any of it is used."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import tensorops as tp

from .cache import FIRST_CAPACITY, PREFILL_TOKENS, grown, layout, slots_in_windows
from .files.blocks import ComputedTensor, Tensor
from .files.loading import stays_packed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .config import ModelConfig

__all__ = ["cache_bytes", "weights_bytes"]


def cache_bytes(config: ModelConfig, tokens: int, kv_dtype: str = "float32") -> int:
    """Return the number of bytes of a cache with room for some tokens."""
    most = slots_in_windows(config.window, PREFILL_TOKENS)
    parts = layout(config, grown(FIRST_CAPACITY, tokens), kv_dtype, most)
    return sum(prod(shape) * dtype.itemsize for part in parts for shape, dtype in part)


def weights_bytes(tensors: Mapping[str, Tensor | ComputedTensor], backend: str) -> int:
    """Return about how many bytes the weights of a file take on a backend."""
    packed: dict[tuple[Any, ...], bool] = {}

    def size(tensor: Tensor | ComputedTensor) -> int:
        if isinstance(tensor, ComputedTensor):  # it becomes float32, unless it is in groups of at most 8 bits
            return tensor.nbytes if tensor.group_size == 1 else tensor.nbytes // 4
        if len(tensor.shape) > 1 and tensor.is_quantized:
            kind = (tensor.type.name.lower(), tensor.shape[-1])
            if kind not in packed:
                with tp.set_backend(backend):
                    packed[kind] = stays_packed(*kind, backend)
            if packed[kind]:
                return tensor.nbytes
        return 4 * prod(tensor.shape)

    return sum(map(size, tensors.values()))
