"""Which calls of scaled_dot_product_attention the kernel for few queries computes, and with which blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorops._dtypes import INTEGER, name_of
from tensorops.kernels.pallas.blocks import CORES, LANES, MIB, VMEM, padded, tile_rows

if TYPE_CHECKING:
    from tensorops.kernels.pallas.planners import Program

_MOST_ROWS = 128  # products with each key: with more, they take longer than to fetch it
_FETCHED = 2 * MIB  # of keys and values in a step: more than what moves while a step starts
_ENOUGH = 10 * MIB  # of vector memory, which every generation has
_FEWEST_KEYS, _MOST_KEYS = 256, 2048  # in a block, if there are as many
_LEAST_STEPS = 4  # of a sequence, as its first block is waited for
_MOST_PAGES = 16  # in a step
_MOST_NUMBERS = 2**16  # in scalar memory
_MOST = 0.9  # of the vector memory
_USUAL = (1e-30, 1e30)  # factors that float32 holds
_HALVES = ("bfloat16", "float16", "float32")
_DTYPES = {"q": ("bfloat16", "float32"), "mask": ("bool", *_HALVES), "sinks": _HALVES} | dict.fromkeys(
    ("lengths", "page_table"), INTEGER
)


class Decoding(NamedTuple):
    """How the keys of a call are divided, and which of them a query attends to.

    Parameters
    ----------
    heads
        Key heads in a block.
    keys
        Keys in a block.
    pages
        Blocks of keys in a step, each at its own place in memory.
    vmem
        The bytes of vector memory that a step needs.
    turned
        Whether XLA stores the keys feature by feature, and whether the values.
    queries, all_keys
        How many queries, and at most keys, a sequence has.
    left, right
        How many keys before and after its own position a query attends to; ``None`` for all.
    """

    heads: int
    keys: int
    pages: int
    vmem: int
    turned: tuple[bool, bool]
    queries: int
    all_keys: int
    left: int | None
    right: int | None

    @property
    def step(self) -> int:
        """Return how many keys a step has."""
        return self.keys * self.pages

    @property
    def back(self) -> int:
        """Return how many keys before its end the queries of a sequence attend to."""
        return self.all_keys if self.left is None else min(self.queries + self.left, self.all_keys)

    @property
    def steps(self) -> int:
        """Return how many steps a sequence needs at most."""
        return min(-(-self.all_keys // self.step), -(-(self.back - 1) // self.step) + 1)


def plan_decode(
    generation: str,
    *,
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    is_causal: bool,
    scale: float,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    lengths: Any = None,
    page_table: Any = None,
    kv_format: str | None = None,
) -> Program | str:
    """Plan `tensorops.scaled_dot_product_attention` for few queries."""
    if kv_format is not None:
        return f"the kernel for few queries reads no blocks of format {kv_format!r}"
    given = {"q": q, "k": k, "v": v, "mask": mask, "sinks": sinks, "lengths": lengths, "page_table": page_table}
    arrays = {name: a for name, a in given.items() if a is not None}
    for name, a in arrays.items():
        dtypes = _DTYPES.get(name, _DTYPES["q"])
        if name_of(a.dtype) not in dtypes:
            return f"{name} has dtype {name_of(a.dtype)}, expected one of {', '.join(dtypes)}"
        if not all(isinstance(n, int) for n in a.shape):
            return f"{name} has a symbolic shape"
        if 0 in a.shape:
            return f"{name} is empty"
    for name, factor in (("scale", scale), ("softcap", softcap)):
        if factor and not _USUAL[0] <= abs(factor) <= _USUAL[1]:
            return f"{name} is {factor}, which is not between {_USUAL[0]} and {_USUAL[1]}"
    rows = q.shape[1] // k.shape[1] * q.shape[2]
    if rows > _MOST_ROWS:
        return f"{rows} queries share a key head, more than {_MOST_ROWS}"
    if page_table is not None and math.prod(page_table.shape) > _MOST_NUMBERS:
        return f"page_table has {math.prod(page_table.shape)} entries, more than {_MOST_NUMBERS}"
    left, right = window or (None, None)
    blocks = divided(
        generation,
        q.shape,
        v.shape,
        q.dtype.itemsize,
        None if page_table is None else page_table.shape[1],
        left,
        0 if is_causal else right,
    )
    if isinstance(blocks, str):
        return blocks
    if mask is not None and blocks.step % LANES and blocks.step < blocks.all_keys:
        return f"a mask is given, and pages have {k.shape[2]} keys: no multiple of {LANES} in {_MOST_PAGES} pages"

    def program(**arrays: Any) -> list[Any]:
        from tensorops.kernels.pallas import decoding

        return decoding.attend(blocks, generation, **arrays, scale=scale, softcap=softcap)

    return program


def divided(
    generation: str,
    of_queries: tuple[int, ...],
    of_values: tuple[int, ...],
    itemsize: int,
    pages: int | None,
    left: int | None,
    right: int | None,
) -> Decoding | str:
    """Divide heads and keys into blocks, or say why none fits; `pages` is how many pages a sequence has.

    Each array has as many blocks in vector memory as the pipeline needs, two; a third is what the kernel makes of it.
    """
    batch, heads, queries, dim = of_queries
    _, kv_heads, size, value_dim = of_values
    all_keys = size if pages is None else size * pages
    tile = tile_rows([itemsize])
    rows = padded(heads // kv_heads * queries, tile)
    # XLA stores an array so that it wastes the fewest lanes; it would copy an array that a kernel reads otherwise.
    by_feature = pages is None or size % LANES == 0
    turned = (by_feature and dim % LANES != 0, by_feature and value_dim % LANES != 0)
    lines = [padded(n, tile if is_turned else LANES) for n, is_turned in zip((dim, value_dim), turned, strict=True)]
    one = sum(lines) * itemsize  # a key and its value
    each = 3 * one + 5 * 4 * rows  # bytes of vector memory
    cores = min(CORES.get(generation, 1), kv_heads) if batch == 1 else 1
    evenly = max(-(-all_keys // _LEAST_STEPS), _FEWEST_KEYS)

    for of_block in range(kv_heads // cores, 0, -1):
        most = min(_FETCHED // one, _ENOUGH // each) // of_block
        if kv_heads % of_block or (of_block > 1 and most < _FEWEST_KEYS):
            continue
        most = max(min(most, _MOST_KEYS), LANES)
        keys = _keys_of_block(size, min(most, evenly) if pages is None else most, divides=pages is not None)
        if keys is None:
            continue
        count = 1 if pages is None or keys < size else _pages_of_step(size, min(most, evenly), pages, tile)
        vmem = of_block * (
            count * padded(keys, LANES) * each + rows * 4 * (3 * padded(dim + value_dim, LANES) + 6 * LANES)
        )
        if vmem <= _MOST * VMEM[generation]:
            clipped = (None if side is None else min(side, all_keys + queries) for side in (left, right))
            return Decoding(of_block, keys, count, vmem, turned, queries, all_keys, *clipped)
    return f"keys and values of {dim} and {value_dim} features do not fit the vector memory of a TPU {generation}"


def _keys_of_block(size: int, most: int, *, divides: bool) -> int | None:
    """Return how many keys a block has: all of them, or a multiple of the lanes, which may have to divide a page."""
    if size <= most:
        return size
    return max((n for n in range(LANES, most + 1, LANES) if not (divides and size % n)), default=None)


def _pages_of_step(size: int, most: int, pages: int, tile: int) -> int:
    """Return how many pages a step has: of whole tiles, and together a multiple of the lanes if possible."""
    if size % tile:
        return 1
    count = max(min(most // size, _MOST_PAGES, pages), 1)
    whole = LANES // math.gcd(size, LANES)
    return count // whole * whole or count
