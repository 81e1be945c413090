"""How attention is launched: tiles of many queries, or keys that stream past few; in spans if blocks are too few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Launch, Number, Operand, Plan, Result
from tensorops.kernels._gpu.rows import SHORT, refuse_wider

INTEGERS = {
    "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32", "int64": "i64",
    "uint64": "u64",
}  # fmt: skip
"""The element types of integer dtypes, as the sources name them."""

MAX_DIM = 1024
_LARGEST = 2**31 - 1 - 2**16  # kernels count keys, rows and blocks in 32 bits
_NO_BOUND = 2**31 - 1  # more than any number of positions
_STATES = 3  # attention.h
_FEW_ROWS = 8  # of a key head: their keys are streamed

Arguments = tuple[str | Number, ...]


@dataclass(frozen=True, slots=True)
class Blocks:
    """What one block computes; the macros of the sources are its fields."""

    source: str
    rows: int  # of a key head
    keys: int  # that it takes at a time
    threads: int
    block: int
    defines: dict[str, int]


def scaled_dot_product_attention(
    device: Device,
    q: Operand,
    k: Operand,
    v: Operand,
    *,
    mask: Operand | None,
    is_causal: bool,
    scale: float,
    window: tuple[int | None, int | None] | None,
    softcap: float | None,
    sinks: Operand | None,
    lengths: Operand | None,
    page_table: Operand | None,
    kv_format: str | None,
) -> Plan | str:
    """Plan `tensorops.scaled_dot_product_attention`."""
    if kv_format is not None:
        return f"the kernel reads no blocks of format {kv_format!r}"
    batch, heads, queries, dim = q.shape
    kv_heads, value_dim = k.shape[1], v.shape[3]
    keys = k.shape[2] * (1 if page_table is None else page_table.shape[1])
    rows = heads // max(kv_heads, 1) * queries
    if reason := _refuse(device, q, k, v, mask, sinks, keys, rows):
        return reason
    y = Result(q.dtype, (batch, heads, queries, value_dim))
    plain = mask is None and _aligned(q, k, v, y.operand)
    blocks = _blocks(device, rows, dim, value_dim, ITEM_SIZES[q.dtype], plain=plain)
    local = blocks.defines.pop("LOCAL_BYTES")
    if local > device.local_bytes:
        return f"{dim} and {value_dim} features take {local} bytes of local memory, more than {device.local_bytes}"
    row_blocks = -(-rows // blocks.rows)
    count = batch * kv_heads * row_blocks
    splits = _splits(device, count, keys, blocks.keys)
    if count * splits > _LARGEST:
        return f"there are {count * splits} blocks of rows, more than 2**31"

    real = np.float64 if q.dtype == "float64" else np.float32
    left, right = (_NO_BOUND if side is None else side for side in window or (None, None))
    unit = real(2.0 ** -max(keys - 1, 1).bit_length())
    temporaries = {
        "parts": Result(np.dtype(real).name, (batch * heads * queries, splits, value_dim)),
        "states": Result(np.dtype(real).name, (batch * heads * queries, splits, _STATES)),
    }
    arrays, kinds = _optional_arrays(q, mask, sinks, lengths, page_table, k)
    defines: dict[str, Any] = {
        "DOUBLE": int(real is np.float64),
        "WARP": device.lanes,
        "ALIGNED": int(_aligned(q, k, v, y.operand, temporaries["parts"].operand)),
        "ROW_DIMS": 1,
        "DENSE": 1,
        "KEPT": 0,
        "X": SHORT[q.dtype],
        "DIM": dim,
        "VALUE_DIM": value_dim,
        **kinds,
    }
    arguments: Arguments = (
        *_rows_of("q", q),
        *_rows_of("k", k),
        *_rows_of("v", v),
        *(a for array in arrays.values() for a in array),
        *map(np.int32, (kv_heads, heads // max(kv_heads, 1), queries, keys)),
        np.int64(left),
        np.int64(0 if is_causal else right),
        real(scale),
        real(softcap or 0.0),
        unit,
        np.int32(row_blocks),
        np.int32(splits),
    )
    split = {"SPLIT": int(splits > 1)}
    results = ("parts", "states") if splits > 1 else ("y",)
    first = Launch(
        blocks.source, blocks.source, {**defines, **blocks.defines, **split}, count * splits, blocks.block,
        (*arguments, *results),
    )  # fmt: skip
    if splits == 1:
        return Plan({"y": y}, (first,))
    threads, per_block, vec = _merge_geometry(device, value_dim, q.dtype)
    merge = Launch(
        "attention_merge",
        "attention_merge",
        {**defines, "SPLIT": 0, "THREADS": threads, "ROWS": per_block, "VEC": vec},
        -(-batch * heads * queries // per_block),
        threads * per_block,
        ("parts", "states", *arrays.get("sinks", ()), "y", np.int64(batch * heads * queries),
         *map(np.int32, (splits, queries, heads)), unit),
    )  # fmt: skip
    return Plan({"y": y}, (first, merge), temporaries)


def _refuse(
    device: Device,
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None,
    sinks: Operand | None,
    keys: int,
    rows: int,
) -> str | None:
    floating = mask if mask is not None and mask.dtype != "bool" else None
    if reason := refuse_wider(device, q=q, k=k, v=v, mask=floating, sinks=sinks):
        return reason
    for name, a in (("mask", floating), ("sinks", sinks)):
        if a is not None and a.dtype == "float64" and q.dtype != "float64":
            return f"{name} has dtype float64, more precise than the computation in float32"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.strides[3] != 1 and x.shape[3] != 1:
            return f"the features of {name} are not adjacent"
        if x.shape[3] > MAX_DIM:
            return f"{name} has {x.shape[3]} features, more than {MAX_DIM}"
    if 0 in (keys, q.shape[3], v.shape[3]) or 0 in k.shape:
        return "there are no keys, or no features"
    if max(keys, rows) > _LARGEST:
        return f"there are {keys} keys and {rows} queries of a key head, more than 2**31"
    return None


def _blocks(device: Device, rows: int, dim: int, value_dim: int, itemsize: int, *, plain: bool) -> Blocks:
    """Choose what a block computes."""
    return (
        _streaming(device, rows, dim, value_dim, itemsize, plain=plain)
        if rows <= _FEW_ROWS
        else _tiles(device, rows, dim, value_dim, itemsize)
    )


def _streaming(device: Device, rows: int, dim: int, value_dim: int, itemsize: int, *, plain: bool) -> Blocks:
    queries = 1 << (rows - 1).bit_length()
    if device.kind == "cpu":
        vec, threads, groups, keys = (8 if itemsize == 8 else 16), 1, 1, 64
    else:
        # More would not fit registers. Halves have the longest vectors and doubles take two registers, which with a
        # mask, or where vectors are not aligned, leaves too few.
        queries = min(queries, 4 if plain or itemsize == 4 else 2)
        vec = max(2, 16 // itemsize)
        vectors = -(-max(dim, value_dim) // vec)
        threads = min(1 << (vectors - 1).bit_length(), device.lanes or 32, 32)
        groups, keys = max(1, min(128, device.max_block) // threads), vec
    real = 8 if itemsize == 8 else 4
    value_vectors = -(-value_dim // (threads * vec))
    local = (threads * groups * (value_vectors * vec + 1) + 2 * groups) * real if groups > 1 else 0
    defines = {
        "VEC": vec, "THREADS": threads, "ROWS": groups, "QUERIES": queries, "KEYS": keys, "LOCAL_BYTES": local,
    }  # fmt: skip
    return Blocks("attention_decode", queries, groups * keys, threads, threads * groups, defines)


def _tiles(device: Device, rows: int, dim: int, value_dim: int, itemsize: int) -> Blocks:
    real = 8 if itemsize == 8 else 4
    if device.kind == "cpu":
        vec, threads, groups = (8 if itemsize == 8 else 16), 1, 1
        vectors = min(4, 1 << (-(-rows // vec) - 1).bit_length())
        factors = min(vec, 16 // vectors)  # as many sums as half of the registers
        keys, slice_ = 32, min(-(-max(dim, value_dim) // vec) * vec, 256)
    else:
        vec = factors = 16 // real
        vectors = 1
        threads = 8 if value_dim <= 16 * 8 else 16 if value_dim <= 32 * 16 else 32
        groups = max(1, min(1 << (-(-rows // vec) - 1).bit_length(), 128 // threads, device.max_block // threads))
        keys = slice_ = threads * vec
    each = vectors * vec

    def local_bytes(keys: int) -> int:
        return (threads * groups + slice_ * groups * each + keys * (slice_ + vec) + keys * groups * each) * real

    while factors > 1 and threads > 1 and local_bytes(keys) > device.local_bytes:
        factors, keys = factors // 2, keys // 2
    defines = {
        "VEC": vec, "THREADS": threads, "ROWS": groups, "ROW_VECTORS": vectors, "FACTORS": factors, "KEYS": keys,
        "SLICE": slice_, "LOCAL_BYTES": local_bytes(keys),
    }  # fmt: skip
    return Blocks("attention", groups * each, keys, threads, threads * groups, defines)


def _splits(device: Device, count: int, keys: int, tile: int) -> int:
    """Return in how many spans keys are divided so that the device is busy."""
    wanted = device.units * 4
    least = max(128, 2 * tile)  # keys of a span
    return max(1, min(-(-wanted // max(count, 1)), keys // least, 1024)) if count < wanted else 1


def _merge_geometry(device: Device, value_dim: int, dtype: str) -> tuple[int, int, int]:
    """Return the threads of a row, the rows of a block and the length of vectors."""
    if device.kind == "cpu":
        return 1, 1, 8 if dtype == "float64" else 16
    vec = 2 if dtype == "float64" else 4
    threads = min(32, 1 << (-(-value_dim // vec) - 1).bit_length())
    return threads, max(1, min(128, device.max_block) // threads), vec


def _aligned(*arrays: Operand) -> bool:
    """Tell whether all rows of features begin at multiples of 16 bytes."""
    return all(
        a.aligned >= 16
        and all(s * ITEM_SIZES[a.dtype] % 16 == 0 for s, n in zip(a.strides[:-1], a.shape, strict=False) if n > 1)
        for a in arrays
    )


def _rows_of(name: str, x: Operand) -> Arguments:
    return (name, np.int64(x.offset), *map(np.int64, x.strides[:3]))


def _optional_arrays(
    q: Operand,
    mask: Operand | None,
    sinks: Operand | None,
    lengths: Operand | None,
    page_table: Operand | None,
    k: Operand,
) -> tuple[dict[str, Arguments], dict[str, Any]]:
    """Return the arguments of the arrays that are given, and the macros with their element types."""
    arrays: dict[str, Arguments] = {}
    kinds: dict[str, Any] = {}
    if mask is not None:
        arrays["mask"] = ("mask", np.int64(mask.offset), *map(np.int64, mask.strides_among(4)))
        kinds |= {"MASK": SHORT.get(mask.dtype, "u8"), "MASK_BOOL": int(mask.dtype == "bool")}
    if sinks is not None:
        arrays["sinks"] = ("sinks", np.int64(sinks.offset), np.int64(sinks.strides[0]))
        kinds["SINKS"] = SHORT[sinks.dtype]
    if lengths is not None:
        arrays["lengths"] = ("lengths", np.int64(lengths.offset), np.int64(lengths.strides[0]))
        kinds["LENGTHS"] = INTEGERS[lengths.dtype]
    if page_table is not None:
        arrays["page_table"] = (
            "page_table", np.int64(page_table.offset), *map(np.int64, page_table.strides), np.int64(k.shape[0] - 1),
            np.int32(k.shape[2]),
        )  # fmt: skip
        kinds["PAGE_TABLE"] = INTEGERS[page_table.dtype]
    return arrays, kinds
