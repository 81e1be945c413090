"""Which calls of scaled_dot_product_attention the kernel for many queries computes, and with which blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorops._dtypes import name_of
from tensorops.kernels.pallas import blocks

if TYPE_CHECKING:
    from tensorops.kernels.pallas.planners import Program

_DTYPES = {"mask": ("bool", "bfloat16", "float32"), "sinks": ("bfloat16", "float32")}
_OF_KERNELS = ("bfloat16", "float32")


def plan_prefill(
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
    statistics: bool = False,
) -> Program | str:
    """Plan `tensorops.scaled_dot_product_attention` for many queries; with `statistics`, also `log_totals`."""
    if kv_format is not None:
        return f"the kernel for many queries reads no blocks of format {kv_format!r}"
    if page_table is not None:
        return "keys and values are in pages, which the kernel for many queries does not read"
    if reason := _refuse({"q": q, "k": k, "v": v, "mask": mask, "sinks": sinks, "lengths": lengths}):
        return reason
    _, heads, queries, dim = q.shape
    kv_heads, keys, value_dim = v.shape[1:]
    left, right = _sides(queries, keys, is_causal, window)
    reached = keys if left is None else min(queries + left, keys)
    found = blocks.attention(
        heads // kv_heads, queries, keys, reached, (dim, value_dim), q.dtype.itemsize, _of_mask(mask), generation
    )
    if found is None:
        return f"{dim} and {value_dim} features do not fit the vector memory of a TPU {generation}"

    def program(**arrays: Any) -> list[Any]:
        from tensorops.kernels.pallas import attention

        rules = attention.Rules(queries, keys, left, right, scale, softcap)
        return attention.scaled_dot_product_attention(found, generation, rules, **arrays, statistics=statistics)

    return program


def plan_gradients(
    generation: str, wanted: tuple[str, ...], rest: Sequence[Any], *, q: Any, k: Any, v: Any, **options: Any
) -> Program | str:
    """Plan the derivative of `tensorops.scaled_dot_product_attention` in reverse mode, if its kernel was planned."""
    if "mask" in wanted:
        return "the gradient of a mask has as many elements as there are scores"
    if isinstance(reason := plan_prefill(generation, q=q, k=k, v=v, **options), str):
        return reason
    _, heads, queries, dim = q.shape
    kv_heads, keys, value_dim = v.shape[1:]
    left, right = _sides(queries, keys, options["is_causal"], options.get("window"))
    found = blocks.attention(
        heads // kv_heads,
        queries,
        keys,
        keys,
        (dim, value_dim),
        q.dtype.itemsize,
        _of_mask(options.get("mask")),
        generation,
        gradients=True,
    )
    if found is None:
        return f"{dim} and {value_dim} features do not fit the vector memory of a TPU {generation}"

    def program(rest: Sequence[Any], **arrays: Any) -> list[Any]:
        from tensorops.kernels.pallas import attention, attention_gradients

        rules = attention.Rules(queries, keys, left, right, options["scale"], options.get("softcap"))
        return attention_gradients.gradients(found, generation, rules, wanted, rest, **arrays)

    return program


def _refuse(arrays: dict[str, Any]) -> str | None:
    for name, a in arrays.items():
        if a is None:
            continue
        if name != "lengths" and name_of(a.dtype) not in _DTYPES.get(name, _OF_KERNELS):
            expected = " and ".join(_OF_KERNELS)
            return f"{name} has dtype {name_of(a.dtype)}, and Pallas' compiler for TPUs takes {expected}"
        if not all(isinstance(n, int) for n in a.shape):
            return f"{name} has a symbolic shape"
        if 0 in a.shape:
            return f"{name} is empty"
    return None


def _sides(
    queries: int, keys: int, is_causal: bool, window: tuple[int | None, int | None] | None
) -> tuple[int | None, int | None]:
    """Return how many keys before and after its own position a query attends to; ``None`` where that hides none."""
    left, right = window or (None, None)
    if is_causal:
        right = 0
    if left is not None and left >= keys - 1:  # so is the distance from the last position to the first
        left = None
    if right is not None and right >= queries - 1:
        right = None
    return left, right


def _of_mask(mask: Any) -> tuple[int, bool, bool]:
    """Return the bytes of an element in vector memory, and whether the mask differs by head and by query."""
    if mask is None:
        return 0, False, False
    _, heads, queries, keys = (1,) * (4 - len(mask.shape)) + tuple(mask.shape)
    if keys == 1:
        return 0, False, False
    size = 4 if queries == 1 else 1 if name_of(mask.dtype) == "bool" else mask.dtype.itemsize
    return size, heads > 1, queries > 1
