"""What a step is declared to be: mode, lengths and pages, compared with the attention that it calls."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.persistent import CaptureError, PersistentKernel

LIBRARIES = ["numpy", "jax", "mlx", "pyopencl"]
Q, CACHE = np.ones((2, 4, 1, 8), np.float32), np.ones((2, 2, 16, 8), np.float32)
LENGTHS = np.asarray([3, 7], np.int32)
PAGES, TABLE = np.ones((9, 2, 4, 8), np.float32), np.asarray([[0, 1, 2], [3, 4, 5]], np.int32)


def kernel(library, args, *, several=1, **options):
    if library == "numpy":
        support.require_native()
    else:
        support.require(library)

    def step(q, k, lengths, table=None):
        q = tp.get_namespace(q).concat([q] * several, axis=2)
        return tp.scaled_dot_product_attention(tp.silu(q), k, k, lengths=lengths, page_table=table)

    backend = {"numpy": "cpu", "pyopencl": "opencl"}.get(library, library)
    return PersistentKernel(step, support.there(args, library), backend=backend, **options)


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_holds_is_explained(library):
    made = kernel(library, [Q, CACHE, LENGTHS], max_seq_length=16)
    assert made.explain().step == ("mode decode", "attention of a query of each sequence to at most 16 keys, once")
    made = kernel(library, [Q, PAGES, LENGTHS, TABLE], several=3, mode="prefill", max_seq_length=12, page_size=4,
                  max_num_pages=8)  # fmt: skip
    paged = "attention of 3 queries of each sequence to at most 12 keys in 9 pages of 4, once"
    assert made.explain().step == ("mode prefill", paged)
    assert paged in str(made.explain())


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("args", "options", "words"),
    [
        ([Q, CACHE, LENGTHS], {"max_seq_length": 17}, "max_seq_length is 17, but .* has room for 16 keys"),
        ([Q, PAGES, LENGTHS, TABLE], {"max_seq_length": 13}, "max_seq_length is 13, but .* has room for 12 keys"),
        ([Q, PAGES, LENGTHS, TABLE], {"page_size": 8}, "page_size is 8, but .* reads pages of 4 keys"),
        ([Q, PAGES, LENGTHS, TABLE], {"max_num_pages": 10}, "max_num_pages is 10, but .* has 9 pages"),
        ([Q, CACHE, LENGTHS], {"page_size": 4}, "page_size is 4, but the step calls no attention with a page_table"),
        ([Q, CACHE, LENGTHS], {"max_num_pages": 4}, "max_num_pages is 4, but the step calls no attention with a page_"),
        ([Q, PAGES, LENGTHS, TABLE], {"mode": "onepass"}, "mode 'onepass' has no cache, but .* reads pages"),
        ([Q, CACHE, LENGTHS], {"several": 3}, "mode is 'decode', one token of each sequence, but .* has 3 queries"),
    ],
)
def test_what_does_not_hold(library, args, options, words):
    made = kernel(library, args, **options)
    for _ in range(2):  # it is not taken for compiled
        with pytest.raises(CaptureError, match=words):
            made(*support.there(args, library))


def test_the_promised_parameters():
    parameters = inspect.signature(PersistentKernel).parameters
    options = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
    assert options == [
        "mode", "backend", "fallback_backends", "num_workers", "world_size", "mpi_rank", "max_seq_length", "page_size",
        "max_num_pages", "donate", "repack", "profile",
    ]  # fmt: skip


def test_numbers_without_a_cache():
    support.require_native()
    with pytest.raises(CaptureError, match=r"max_seq_length is 4, but the step calls no attention$"):
        PersistentKernel(tp.silu, [Q], backend="cpu", max_seq_length=4).compile()
    for name in ("max_seq_length", "page_size", "max_num_pages"):
        with pytest.raises(ValueError, match=f"{name} is 0, expected at least 1"):
            PersistentKernel(tp.silu, [Q], backend="cpu", **{name: 0})
        with pytest.raises(ValueError, match=f"mode 'onepass' has no cache, so it has no {name}"):
            PersistentKernel(tp.silu, [Q], backend="cpu", mode="onepass", **{name: 4})


def test_past_the_end_of_a_cache():
    """Where values can be read, a wrong one is an error that names the call."""
    made = kernel("numpy", [Q, CACHE, LENGTHS], max_seq_length=16)
    with pytest.raises(ValueError, match=r"^call 2, scaled_dot_product_attention: lengths has a number outside 0"):
        made(Q, CACHE, np.asarray([3, 17], np.int32))
    paged = kernel("numpy", [Q, PAGES, LENGTHS, TABLE], page_size=4)
    with pytest.raises(
        ValueError,
        match=r"^call 2, scaled_dot_product_attention: page_table has an index outside",
    ):
        paged(Q, PAGES, LENGTHS, np.asarray([[0, 1, 2], [3, 9, 5]], np.int32))
    unused = np.asarray([[0, -1, 99], [3, 4, -1]], np.int32)
    np.testing.assert_array_equal(paged(Q, PAGES, LENGTHS, unused), paged(Q, PAGES, LENGTHS, TABLE))

    def writes(x, position, cache):
        cache[position, :] = x
        return cache

    cache = np.zeros((4, 8), np.float32)
    put = PersistentKernel(writes, [Q[0, :1, 0], np.asarray([0]), cache], backend="cpu", donate=[2])
    for position in (4, -5):
        with pytest.raises(ValueError, match=r"^call 0, assignment: "):
            put(Q[0, :1, 0], np.asarray([position]), cache)
    assert not cache.any()
