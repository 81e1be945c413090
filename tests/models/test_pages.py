"""Pages of keys and values, batches of sequences on them, and a model's step as a PersistentKernel."""

from __future__ import annotations

import gc
import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

import support
import tensorops as tp
from llama_reference import float64_logits
from make_gguf import llama_arrays, real_model, write_llama
from tensorops.models import Llama, LlamaConfig, OutOfPagesError, PagedKVCache, architectures
from tensorops.models.files.gguf import open_gguf

CONFIG = LlamaConfig(
    blocks=2, context_length=300, dim=64, hidden_dim=96, heads=4, kv_heads=2, head_dim=16, vocab_size=269,
    eps=1e-5, rope_base=1000.0,
)  # fmt: skip
BACKENDS = ["cpu", "numpy", "jax"]


def pages(page_size=4, max_num_pages=6, **options):
    return PagedKVCache(replace(CONFIG, blocks=1, kv_heads=1, head_dim=2), page_size, max_num_pages, **options)


def model(backend, **options):
    if backend not in tp.get_available_backends():
        pytest.skip(f"backend {backend} is not available")
    if backend == "jax":
        options["compile"] = pytest.importorskip("jax").jit
    return Llama(CONFIG, llama_arrays(), backend=backend, **options)


# -------------------------------------------------------------------------------------------------- pages


def test_pages_are_given_out_and_taken_back():
    cache = pages()
    first, known = cache.join([1, 2, 3, 4, 5])
    assert known == 0
    cache.append(first, [1, 2, 3, 4, 5])
    second, _ = cache.join([9])
    cache.append(second, [9])
    assert cache.free_pages == 3
    assert cache.length(first) == 5
    table = cache.table([first, second], 3)
    assert len({*table[0, :2], table[1, 0]}) == 3
    assert table[0, 2] == table[1, 1] == 6  # the page of no sequence
    np.testing.assert_array_equal(cache.places(first, 3, 5), [[table[0, 0], table[0, 1]], [3, 0]])
    cache.leave(first)
    assert cache.free_pages == 5
    with pytest.raises(KeyError, match="there is no sequence 0: it has not joined, or has left"):
        cache.length(first)
    assert cache.sequences == (second,)
    assert repr(cache) == "<PagedKVCache: 1 sequences, 1 of 6 pages in use>"


def test_sequences_that_begin_alike_share_full_pages():
    cache = pages()
    text = list(range(10))
    first, _ = cache.join(text)
    cache.append(first, text)
    assert cache.known([*text[:9], 50, 51]) == 8
    second, known = cache.join([*text[:9], 50, 51])
    assert known == 8
    cache.append(second, [8, 50, 51])
    table = cache.table([first, second])
    np.testing.assert_array_equal(table[0, :2], table[1, :2])
    assert table[0, 2] != table[1, 2]
    assert cache.free_pages == 2
    cache.leave(first)
    assert cache.free_pages == 3  # the shared ones are still in use
    cache.leave(second)
    assert cache.free_pages == 6
    third, known = cache.join(text)  # pages are known after all have left
    assert known == 8
    assert cache.free_pages == 4
    cache.leave(third)
    assert cache.join(text[:8])[1] == 4  # the last token is always computed
    assert cache.join([5, *text])[1] == 0  # the same tokens at other positions have other keys


def test_pages_that_nobody_uses_are_forgotten_when_they_are_needed():
    cache = pages(4, 4)
    text = list(range(8))
    first, _ = cache.join(text)
    cache.append(first, text)
    cache.leave(first)
    second, _ = cache.join([90])
    cache.append(second, list(range(90, 103)))  # four pages: all there are
    assert cache.free_pages == 0
    cache.leave(second)
    assert cache.join(text)[1] == 0


def test_a_page_that_is_forgotten_takes_those_after_it_along():
    cache = pages(2, 4)
    text = [1, 2, 3, 4, 5, 6, 7]
    first, _ = cache.join(text)
    cache.append(first, text[:6])
    cache.leave(first)
    cache._take()  # the one that was never used
    cache._take()  # the last of the three: the beginning stays known
    assert cache.join(text)[1] == 4


def test_out_of_pages():
    cache = pages(4, 3)
    first, _ = cache.join([1])
    cache.append(first, [1] * 8)
    second, _ = cache.join([2])
    message = "sequence 1 needs 2 more of 3 pages, of which 1 are free; 1 other sequences have pages"
    with pytest.raises(OutOfPagesError, match=message):
        cache.append(second, [2] * 5)
    assert cache.length(second) == 0
    assert cache.free_pages == 1
    cache.append(second, [2] * 4)


@pytest.mark.parametrize("seed", range(5))
def test_no_page_is_lost_or_given_out_twice(seed):
    """Random joins, growth and leaves; each page in use belongs to sequences with the same beginning."""
    rng = np.random.default_rng(seed)
    cache, texts = pages(2, 12), {}
    for _ in range(400):
        choice = rng.integers(3)
        if choice == 0 or not texts:
            text = [int(token) for token in rng.integers(0, 2, rng.integers(1, 9))]
            number, known = cache.join(text)
            assert known < len(text)
            texts[number] = text[:known]
            new = (number, text[known:])
        elif choice == 1:
            number = int(rng.choice(list(texts)))
            new = (number, [int(token) for token in rng.integers(0, 2, rng.integers(1, 4))])
        else:
            number = int(rng.choice(list(texts)))
            cache.leave(number)
            del texts[number]
            continue
        try:
            cache.append(*new)
            texts[new[0]] = texts[new[0]] + new[1]
        except OutOfPagesError:
            pass
        holding = {}
        for number, text in texts.items():
            assert cache.length(number) == len(text)
            own = cache.table([number])[0]
            assert len(own) == -(-len(text) // 2) or (len(text) == 0 and not len(own))
            for i, page in enumerate(own):
                holding.setdefault(int(page), set()).add(tuple(text[: 2 * i + 2]))
        assert all(len(beginnings) == 1 for beginnings in holding.values())
        assert cache.free_pages == 12 - len(holding)


def test_wrong_sizes():
    for options, words in [
        ({"page_size": 0}, "page_size is 0, expected at least 1"),
        ({"max_num_pages": True}, "max_num_pages is True, expected at least 1"),
        ({"dtype": "int8"}, "dtype is 'int8', expected one of float32, float16, bfloat16"),
    ]:
        with pytest.raises(ValueError, match=words):
            pages(**options)
    cache = pages(4, 3)
    number, _ = cache.join([1])
    cache.append(number, [1] * 9)
    with pytest.raises(ValueError, match="a sequence has 3 pages, more than 2"):
        cache.table([number], 2)


# ------------------------------------------------------------------------------------------------- batches

PROMPTS = [[5], [1, 2, 3], [100, 7, 7, 250, 0, 268, 33, 12], list(range(40)), [*range(36), 9], [250] * 5]


def together(llama, prompts, **options):
    found = [[] for _ in prompts]
    for number, token in llama.generate_batch(prompts, **options):
        found[number].append(token)
    return found


def assert_likeliest(prompt, tokens):
    """Assert that each token is the likeliest one in float64, up to rounding."""
    text = [*prompt, *tokens]
    logits = float64_logits(CONFIG, llama_arrays(), text[:-1])[len(prompt) - 1 :]
    chosen = logits[np.arange(len(tokens)), tokens]
    assert np.all(logits.max(axis=-1) - chosen < 1e-3)


@pytest.mark.costly
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_gives_the_likeliest_tokens(backend):
    llama = model(backend)
    found = together(llama, PROMPTS, max_new_tokens=9, max_batch=4, page_size=4)
    for prompt, tokens in zip(PROMPTS, found, strict=True):
        assert len(tokens) == 9
        assert_likeliest(prompt, tokens)


def test_a_batch_gives_the_tokens_of_each_alone():
    """Also with pages for hardly more than one sequence, where some begin again, and with random numbers."""
    llama = model("cpu")
    for options in ({}, {"temperature": 0.8, "top_k": 20, "seed": 3}):
        alone = [list(llama.generate_ids(ids, max_new_tokens=12, **options)) for ids in PROMPTS]
        for few in ({}, {"max_batch": 1}, {"page_size": 3, "max_num_pages": 19}, {"page_size": 64, "max_num_pages": 2}):
            assert together(llama, PROMPTS, max_new_tokens=12, **options, **few) == alone


@pytest.mark.parametrize("dtype", [*support.HALVES, "q8_0"])
def test_keys_and_values_in_fewer_bits(dtype):
    llama = model("cpu")
    found = together(llama, PROMPTS, max_new_tokens=4, kv_dtype=dtype)
    for prompt, tokens in zip(PROMPTS, found, strict=True):
        logits = float64_logits(CONFIG, llama_arrays(), [*prompt, *tokens][:-1])[len(prompt) - 1 :]
        lost = logits.max(axis=-1) - logits[np.arange(len(tokens)), tokens]
        assert np.all(lost < 0.05 * np.abs(logits).max())


def test_a_batch_on_the_cpu_runs_a_plan():
    llama = model("cpu")
    together(llama, PROMPTS[:3], max_new_tokens=3)
    steps = list(llama._batch_steps.values())
    assert all(isinstance(step, tp.PersistentKernel) for step in steps)
    captured = steps[0].explain()
    operators = {call.operator for call in captured.calls}
    pages = "a query of each sequence to at most 32 keys in 9 pages of 32"
    assert captured.step == ("mode decode", f"attention of {pages}, 2 times")
    assert {"scaled_dot_product_attention", "rope", "add_rms_norm", "linear", "swiglu", "sample"} <= operators


def test_steps_of_batches_are_compiled_once_and_keep_no_pages():
    llama = model("cpu")
    first = together(llama, PROMPTS[:3], max_new_tokens=3)
    steps = list(llama._batch_steps.values())
    assert all(x is None or x.nbytes <= 65536 for step in steps for x in step._engine._kept)
    assert together(llama, PROMPTS[:3], max_new_tokens=3) == first
    assert list(llama._batch_steps.values()) == steps


@pytest.fixture
def steps(monkeypatch):
    """Return a list to which each step of a batch adds its tokens: a sequence and a position each."""
    found, step = [], PagedKVCache.step

    def noting(self, sequences, pages, batch, positions=()):
        if sequences:  # the example of a step has none
            found.append(list(zip(sequences, positions, strict=True)))
        return step(self, sequences, pages, batch, positions)

    monkeypatch.setattr(PagedKVCache, "step", noting)
    return found


def test_prompts_use_the_rows_that_no_sequence_needs(steps):
    """Those of a prompt that no longer has tokens to be read go to the next one; all sequences go on meanwhile."""
    found = together(model("cpu"), [[5], [1, 2, 3], [7, 8, 9, 7, 8, 9]], max_new_tokens=5)
    assert steps[:4] == [
        [(0, 0), (1, 0), (1, 1), (1, 2)],
        [(0, 1), (1, 3), (2, 0), (2, 1)],
        [(0, 2), (1, 4), (2, 2), (2, 3)],
        [(0, 3), (1, 5), (2, 4), (2, 5)],
    ]
    assert [*map(len, found)] == [5, 5, 5]
    assert sum(map(len, steps)) == 1 + 3 + 6 + 3 * 4  # each token once, and none after the last


def test_prompts_in_one_step_share_their_beginning(steps):
    llama, prompts = model("cpu"), [[1, 2, 3, 4, 9], [1, 2, 3, 4, 8, 7], [1, 2, 3, 4, 6]]
    alone = [list(llama.generate_ids(ids, max_new_tokens=4)) for ids in prompts]
    assert together(llama, prompts, max_new_tokens=4, page_size=4, max_batch=8) == alone
    assert [position for _, position in steps[0]] == [0, 1, 2, 3]
    assert [position for step in steps for sequence, position in step if sequence == 1][:2] == [4, 5]


def test_a_long_prompt_shares_only_what_is_computed():
    """It is read before the step in which the end of another one, with which it begins, is computed."""
    llama = model("cpu")
    prompts = [list(range(28)), [*range(28), *range(100, 160)], *([n] for n in range(6))]
    alone = [list(llama.generate_ids(ids, max_new_tokens=6)) for ids in prompts]
    assert together(llama, prompts, max_new_tokens=6, page_size=4) == alone


def test_long_prompts_are_read_apart_from_steps(steps):
    prompts = [[3], list(range(40))]
    assert [*map(len, together(model("cpu"), prompts, max_new_tokens=3))] == [3, 3]
    assert min(position for step in steps for sequence, position in step if sequence == 1) == 40


def test_too_few_pages_for_one_sequence():
    with pytest.raises(OutOfPagesError):
        together(model("cpu"), PROMPTS, max_new_tokens=4, page_size=4, max_num_pages=5)


def test_what_a_batch_refuses():
    llama = model("cpu")
    for options, words in [
        ({"max_batch": 0}, "max_batch is 0, expected at least 1"),
        ({"page_size": 0}, "page_size is 0, expected at least 1"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1, expected 0 or more"),
        ({"max_seq_length": 301}, "max_seq_length is 301, expected 1 to the context length, 300"),
        ({"max_seq_length": 41, "max_new_tokens": 2}, r"make 42, more than max_seq_length \(41\)"),
    ]:
        with pytest.raises(ValueError, match=words):
            llama.generate_batch(PROMPTS, **options)
    with pytest.raises(ValueError, match="non-empty sequence"):
        llama.generate_batch([[]])


def test_a_batch_says_when_a_text_ends():
    """After its last token, also if another text goes on, if the model ends it, and if it gets no token."""
    llama = model("cpu")
    alone = [list(llama.generate_ids(ids, max_new_tokens=9)) for ids in PROMPTS]
    llama.tokenizer = SimpleNamespace(end_ids={alone[2][4]})
    expected = [list(llama.generate_ids(ids, max_new_tokens=9)) for ids in PROMPTS]
    found, ended, so_far = [[] for _ in PROMPTS], {}, []

    def end(number):
        ended[number] = len(found[number])
        so_far.append(sum(map(len, found)))

    for number, token in llama.generate_batch(PROMPTS, max_new_tokens=9, max_batch=2, on_end=end):
        assert number not in ended
        found[number].append(token)
    assert found == expected
    assert ended == {number: len(tokens) for number, tokens in enumerate(expected)}
    assert so_far[0] < so_far[-1]  # not all of them at last
    ended.clear()
    assert list(llama.generate_batch(PROMPTS, max_new_tokens=0, on_end=end)) == []
    assert list(ended) == [*range(len(PROMPTS))]


def test_a_batch_of_nothing():
    llama = model("cpu")
    for nothing in ([], iter([])):
        assert list(llama.generate_batch(nothing)) == list(llama.generate_batch(nothing, max_new_tokens=0)) == []
    found = [list(llama.generate_batch(prompts, max_new_tokens=3)) for prompts in (PROMPTS, iter(PROMPTS))]
    assert found[0] == found[1] != []
    assert together(llama, PROMPTS, max_new_tokens=0) == [[] for _ in PROMPTS]


# ----------------------------------------------------------------------------------------- a persistent step


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("backend", ["cpu", "jax"])
def test_a_model_s_step(backend, temperature):
    llama = model(backend)
    kernel = llama.persistent(max_seq_length=64, temperature=temperature)
    assert repr(kernel) == f"<PersistentKernel: decode on {backend}, not yet compiled>"
    prompt, rng = PROMPTS[2], np.random.default_rng(1)
    cache, text, found = llama.new_cache(64), list(prompt), []
    keys, values = cache.keys, cache.values
    for position in range(20):
        token, place = (tp.to_backend(np.asarray([n], np.int32), backend) for n in (text[position], position))
        last = position >= len(prompt) - 1
        drawn = rng.random(1, dtype=np.float32) if last else np.zeros(1, np.float32)
        numbers = [tp.to_backend(drawn, backend)] if temperature else []
        following, keys, values = kernel(token, place, keys, values, *numbers)
        if last:
            found.append(int(tp.to_backend(following, "numpy")[0]))
            text.append(found[-1])
    expected = llama.generate_ids(prompt, max_new_tokens=len(found), temperature=temperature, seed=1)
    assert found == list(expected)


def test_a_model_s_step_on_the_cpu_is_all_kernels():
    captured = model("cpu").persistent(max_seq_length=32).explain()
    counts = {name: len(list(calls)) for name, calls in itertools.groupby(sorted(c.operator for c in captured.calls))}
    assert counts["scaled_dot_product_attention"] == CONFIG.blocks
    assert counts["assignment"] == 2 * CONFIG.blocks
    assert captured.statistics.arena_bytes < captured.statistics.separate_bytes / 2


def with_affine_weights(path):
    """A model whose weights are affine groups, as a program has them that makes its own."""
    file = open_gguf(path)
    weights = {name: t.quantized() if t.is_quantized else t.dequantize() for name, t in file.tensors.items()}
    return Llama(architectures.read_config(file), weights, backend="cpu")


def test_decoding_repacks_affine_weights_where_that_is_faster(tmp_path):
    native = support.require_native()
    llama = with_affine_weights(write_llama(tmp_path / "model.gguf", "Q4_1"))

    def products(**options):
        calls = llama.persistent(max_seq_length=32, **options).explain().calls
        return {call.kernel for call in calls if call.operator == "quantized_linear"}

    weights = [np.zeros((32, 32), np.uint8), *(np.ones((32, 2), np.float16) for _ in range(2))]
    helps = native.pack_panels_supports(*weights, bits=4, group_size=32) is None
    assert products() == {"panel_linear" if helps else "quantized_linear"}
    assert products(repack=False) == products(mode="prefill", length=8) == {"quantized_linear"}


def test_steps_of_a_model_share_its_weights_in_another_order(tmp_path):
    """However many steps there are; with the last one, they go."""
    llama = with_affine_weights(write_llama(tmp_path / "model.gguf", "Q4_1"))
    steps = [llama.persistent(max_seq_length=32), llama.persistent(max_seq_length=32, batch=2, page_size=8)]
    steps[0].compile()
    packed = dict(llama._panels)
    steps[1].compile()
    assert dict(llama._panels) == packed
    calls = [each.explain().calls for each in steps]
    kernels = [call.kernel for call in calls[1] if call.operator == "quantized_linear"]
    assert (len(packed) == len(kernels) > 0) == ("panel_linear" in kernels)
    packed.clear()
    del steps[0]
    gc.collect()
    assert len(llama._panels) == kernels.count("panel_linear")
    steps.clear()
    gc.collect()
    assert not llama._panels


def test_what_a_persistent_step_refuses():
    for options, words in [
        ({"mode": "train"}, "mode is 'train', expected one of decode, prefill, onepass"),
        ({"mode": "prefill"}, "mode 'prefill' needs length, the number of tokens in a run"),
        ({"length": 8}, "length is the number of tokens of modes 'prefill' and 'onepass'; 'decode' has one"),
        ({"mode": "prefill", "length": 9, "max_seq_length": 8}, "length is 9, but a sequence has at most 8"),
        ({"mode": "prefill", "length": 9, "page_size": 8}, "page_size is for mode 'decode'; mode 'prefill' has no"),
        ({"mode": "onepass", "length": 9, "max_seq_length": 9}, "mode 'onepass' has no cache and chooses no token"),
        ({"mode": "onepass", "length": 9, "temperature": 1.0}, "mode 'onepass' has no cache and chooses no token"),
        ({"batch": 2}, "batch is 2, which needs pages: give page_size"),
        ({"max_num_pages": 2}, "max_num_pages is 2, which needs pages: give page_size"),
        ({"kv_dtype": "float16"}, "kv_dtype is 'float16', which needs pages: give page_size"),
        ({"page_size": 0}, "page_size is 0, expected at least 1"),
        ({"max_seq_length": 301}, "max_seq_length is 301, expected 1 to the context length, 300"),
    ]:
        with pytest.raises(ValueError, match=words):
            model("cpu").persistent(**options)
    with pytest.raises(ValueError, match="no backend can replay this step: numpy: it has no compiled kernels"):
        model("numpy").persistent()


def there(backend, *numbers):
    return [tp.to_backend(np.asarray(n, np.int32), backend) for n in numbers]


@pytest.mark.costly
@pytest.mark.parametrize("backend", ["cpu", "jax", "mlx"])
def test_a_prompt_in_pieces_and_then_decoding(backend):
    """Whatever is after the count, and before in the cache, has no effect."""
    llama, prompt = model(backend), [*range(19, 5, -1), 250, 7, 268]
    first = llama.persistent(mode="prefill", length=8, max_seq_length=32)
    then = llama.persistent(max_seq_length=32)
    expected = list(llama.generate_ids(prompt, max_new_tokens=9))
    assert_likeliest(prompt, expected)
    for padding, stale in ((0, 0.0), (268, 1e4)):
        cache = llama.new_cache(32)
        keys, values = ([x + stale for x in each] for each in (cache.keys, cache.values))
        for start in range(0, len(prompt), 8):
            piece = prompt[start : start + 8]
            ids = [*piece, *[padding] * (8 - len(piece))]
            token, keys, values = first(*there(backend, ids, [start], [len(piece)]), keys, values)
        found = [int(tp.to_backend(token, "numpy")[0])]
        for position in range(len(prompt), 25):
            token, keys, values = then(token, np.asarray([position], np.int32), keys, values)
            found.append(int(tp.to_backend(token, "numpy")[0]))
        assert found == expected


@pytest.mark.parametrize("backend", ["cpu", "jax", "mlx"])
def test_logits_in_one_pass(backend):
    llama = model(backend)
    kernel = llama.persistent(mode="onepass", length=12)
    for prompt in (list(range(12)), [268, 0, 7, 7, 9, 250, 3, 3, 3, 1, 2, 0]):
        logits = tp.to_backend(kernel(*there(backend, prompt)), "numpy")
        expected = float64_logits(CONFIG, llama_arrays(), prompt)
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    prompt[8:] = [5, 6, 7, 8]
    changed = tp.to_backend(kernel(*there(backend, prompt)), "numpy")
    np.testing.assert_allclose(changed[:8], logits[:8], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "q8_0"])
@pytest.mark.parametrize("backend", ["cpu", "jax", "mlx"])
def test_a_model_s_step_on_pages(backend, dtype):
    llama = model(backend)
    cache = llama.new_paged_cache(4, 7, dtype=dtype)
    kernel = llama.persistent(batch=3, page_size=4, max_num_pages=7, max_seq_length=14, kv_dtype=dtype)
    texts = [[5], [100, 7, 7, 250, 0]]
    sequences = [cache.join(text)[0] for text in texts]
    for position in range(12):
        for text, sequence in zip(texts, sequences, strict=True):
            cache.append(sequence, text[position : position + 1])
        positions, table, places = cache.step(sequences, pages=4, batch=3)
        ids = [*(text[position] for text in texts), 0]
        where = there(backend, table, places)
        tokens, cache.keys, cache.values = kernel(*there(backend, ids), positions, cache.keys, cache.values, *where)
        for text, token in zip(texts, tp.to_backend(tokens, "numpy"), strict=False):
            if len(text) == position + 1:
                text.append(int(token))
    for text, count in zip(texts, (1, 5), strict=True):
        logits = float64_logits(CONFIG, llama_arrays(), text[:-1])[count - 1 :]
        lost = logits.max(axis=-1) - logits[np.arange(len(text) - count), text[count:]]
        assert np.all(lost < (1e-3 if dtype == "float32" else 0.05 * np.abs(logits).max()))


@pytest.mark.parametrize("backend", ["cpu", "jax"])
def test_a_position_past_the_cache(backend):
    llama = model(backend)
    one = there(backend, [1])
    cache = llama.new_cache(16)
    decoding = llama.persistent(max_seq_length=16)
    for position in (16, -1):
        for given in (there(backend, [position])[0], np.asarray([position], np.int32)):
            with pytest.raises(ValueError, match=f"position {position} is not in the cache, which has 16 places"):
                decoding(*one, given, cache.keys, cache.values)
    filling, ids = llama.persistent(mode="prefill", length=8, max_seq_length=16), there(backend, [1] * 8)
    for start, count, words in [
        (9, 3, "8 tokens from position 9 on are not in the cache, which has 16 places; those after the count need"),
        (-1, 3, "8 tokens from position -1 on are not in the cache"),
        (0, 0, "count is 0, expected 1 to 8, the length of a run"),
        (0, 9, "count is 9, expected 1 to 8"),
    ]:
        with pytest.raises(ValueError, match=words):
            filling(*ids, *there(backend, [start], [count]), cache.keys, cache.values)
    token, *_ = filling(*ids, *there(backend, [8], [8]), cache.keys, cache.values)
    assert 0 <= int(tp.to_backend(token, "numpy")[0]) < 269


def test_where_a_step_puts_keys():
    cache = PagedKVCache(replace(CONFIG, blocks=1, head_dim=2), 4, 6)
    number, _ = cache.join([1])
    with pytest.raises(ValueError, match="sequence 0 has no token yet"):
        cache.step([number], 2)
    cache.append(number, [1] * 6)
    positions, table, places = cache.step([number], pages=2, batch=2)
    (first, second) = cache.table([number])[0]
    np.testing.assert_array_equal(positions, [5, 0])
    np.testing.assert_array_equal(table, [[first, second], [6, 6]])
    np.testing.assert_array_equal(places, [second * 8 + 1, second * 8 + 5, 48, 52])
    positions, _, places = cache.step([number, number], pages=2, positions=[1, 4])
    np.testing.assert_array_equal(positions, [1, 4])
    np.testing.assert_array_equal(places, [first * 8 + 1, first * 8 + 5, second * 8, second * 8 + 4])
    with pytest.raises(ValueError, match="there are 1 sequences, more than 0"):
        cache.step([number], 2, 0)
    for position in (-1, 6):
        with pytest.raises(ValueError, match=f"position {position} is not in sequence 0, which has 6 tokens"):
            cache.step([number], 2, positions=[position])


@pytest.mark.exhaustive
def test_a_real_model_in_a_batch():
    llama = Llama.from_gguf(real_model(), "cpu")
    texts = ["The capital of France is", "Once upon a time", "Water boils at", "def fibonacci(n):"]
    prompts = [llama.tokenizer.encode(text) for text in texts]
    alone = [list(llama.generate_ids(ids, max_new_tokens=24)) for ids in prompts]
    assert together(llama, prompts, max_new_tokens=24) == alone
