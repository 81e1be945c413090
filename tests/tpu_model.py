"""The collectives of a language model that the chips of a TPU share, compiled for them ahead of time without a TPU.

It prints those of a step of a model of two blocks, and fails unless a block has two sums and nothing else is exchanged.
.ci/tpu provides what it needs:

    python tests/tpu_model.py [v5e:2x2 …]
"""

from __future__ import annotations

# ruff: noqa: T201
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

import tensorops as tp
from tensorops.models import LlamaConfig
from tensorops.models.architectures import block_weights
from tensorops.models.mesh import MeshRanks
from tensorops.models.network import forward
from tensorops.models.ranks import HEADS, WHOLE, divide
from tensorops.models.weights import arrange

CONFIG = LlamaConfig(
    blocks=2, context_length=4096, dim=1024, hidden_dim=4096, heads=16, kv_heads=8, head_dim=128, vocab_size=8192
)
CAPACITY = 1024


class Described(MeshRanks):
    """The ranks of devices that are not here: arrays are described only."""

    def place(self, part: Callable[[int], Any], axis: int) -> Any:
        sharding = jax.sharding.NamedSharding(self._mesh, self._spec(axis))

        def described(own: jax.Array) -> jax.ShapeDtypeStruct:
            shape = tuple(n * self.size if i == axis else n for i, n in enumerate(own.shape))
            return jax.ShapeDtypeStruct(shape, own.dtype, sharding=sharding)

        return jax.tree.map(described, part(0))


def collectives(topology: str, tokens: int) -> tuple[Counter[str], int]:
    """Return how often each occurs in the program for so many tokens, and the number of its Pallas kernels."""
    devices = topologies.get_topology_desc(topology, "tpu").devices
    ranks = Described(jax.sharding.Mesh(np.asarray(devices), ("ranks",)), "jax")
    part = divide(CONFIG, ranks.size)
    shapes = {"output_norm.weight": (CONFIG.dim,), "token_embd.weight": (CONFIG.vocab_size, CONFIG.dim)}
    for block in range(CONFIG.blocks):
        shapes |= {f"blk.{block}.{weight.name}": weight.shape for weight in block_weights(CONFIG, block)}
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    weights, _ = arrange(CONFIG, arrays, "jax", ranks)
    network = partial(forward, part, ranks=ranks)
    program = ranks.spread(network, (weights, WHOLE, WHOLE, HEADS, HEADS), (WHOLE, HEADS, HEADS))
    ids = ranks.place(lambda rank: jax.numpy.zeros(tokens, np.int32), WHOLE)
    places = ranks.place(lambda rank: jax.numpy.zeros((1, tokens), np.int32), WHOLE)
    slots = ranks.place(lambda rank: jax.numpy.zeros((1, part.kv_heads, CAPACITY, part.head_dim)), HEADS)
    cache = [slots] * CONFIG.blocks
    lowered = jax.jit(program, donate_argnums=(3, 4)).lower(weights, ids, places, cache, cache)
    text = lowered.compile().as_text()
    found = Counter(re.findall(r" ((?:all|collective|reduce)-[a-z-]+?)(?:-start)?\(", text))
    return found, text.count('custom_call_target="tpu_custom_call"')


def main() -> None:
    """Print what is exchanged."""
    expected = {"all-reduce": 2 * CONFIG.blocks}
    for topology in sys.argv[1:] or ["v5e:2x2", "v6e:2x2"]:
        for tokens in (1, 256):
            found, kernels = collectives(topology, tokens)
            exchanged = ", ".join(f"{count} {name}" for name, count in found.items())
            print(f"{topology}, {tokens} tokens, {CONFIG.blocks} blocks: {exchanged}; {kernels} kernels", flush=True)
            if found != expected:
                raise SystemExit(f"expected {expected}")


if __name__ == "__main__":
    with tp.set_backend("jax"):
        main()
