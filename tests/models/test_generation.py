"""How a text is continued: penalties, texts that end it, and what is kept for the next one."""

from __future__ import annotations

import copy
import ctypes
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

import support
import tensorops as tp
from llama_reference import float64_logits
from make_gguf import write_llama
from tensorops.models import LanguageModel, LlamaConfig, open_gguf
from tensorops.models.penalties import WINDOW, Penalties
from tensorops.models.stopping import stop_texts, tokens_until, until

CONFIG = LlamaConfig(
    blocks=2, context_length=300, dim=64, hidden_dim=96, heads=4, kv_heads=2, head_dim=16, vocab_size=269,
    eps=1e-5, rope_base=1000.0,
)  # fmt: skip
BACKENDS = {"numpy": "numpy", "array_api_strict": "array_api_strict", "jax": "jax", "mlx": "mlx", "torch": "torch",
            "opencl": "pyopencl"}  # fmt: skip
IDS = [5, 9, 100, 7, 7, 250]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> LanguageModel:
    return LanguageModel.load(path, "numpy")


def endless(model: LanguageModel) -> LanguageModel:
    """Let no token end a text."""
    assert model.tokenizer is not None
    model.tokenizer.end_ids = frozenset()
    return model


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens of each pass through the network."""
    counts: list[int] = []
    original = LanguageModel._read_piece

    def counting(self: LanguageModel, ids: Any, cache: Any) -> Any:
        counts.append(int(ids.shape[0]))
        return original(self, ids, cache)

    monkeypatch.setattr(LanguageModel, "_read_piece", counting)
    return counts


# ---------------------------------------------------------------------------------------------- penalties


def penalized(logits: np.ndarray, text: list[int], options: dict[str, Any]) -> np.ndarray:
    """Logits by the definition, one after the other in float64."""
    found = np.asarray(logits, np.float64).copy()
    last = options.get("repeat_last_n", 64)
    window = text if last == -1 else text[max(len(text) - last, 0) :]
    repeat = options.get("repeat_penalty", 1.0)
    for token in range(len(found)):
        found[token] += options.get("logit_bias", {}).get(token, 0.0)
        if count := window.count(token):
            found[token] = found[token] / repeat if found[token] > 0 else found[token] * repeat
            found[token] -= options.get("presence_penalty", 0.0) + count * options.get("frequency_penalty", 0.0)
    return found


OPTIONS: list[dict[str, Any]] = [
    {"repeat_penalty": 1.3},
    {"presence_penalty": 2.0},
    {"repeat_penalty": 1.5, "presence_penalty": 0.5},
    {"frequency_penalty": 0.7, "repeat_last_n": 5},
    {"repeat_penalty": 1.2, "logit_bias": {17: 3.0, 250: -2.5, 9: float("-inf")}, "repeat_last_n": -1},
    {"logit_bias": {17: 6.0}},
]


@pytest.mark.costly
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_penalties_are_those_of_the_definition(
    path: Path, model: LanguageModel, backend: str, options: dict[str, Any]
) -> None:
    support.require(BACKENDS[backend])
    compile_ = pytest.importorskip("jax").jit if backend == "jax" else None
    other = endless(LanguageModel.load(path, backend, compile=compile_))
    found, text = list(other.generate_ids(IDS, max_new_tokens=8, **options)), list(IDS)
    for _ in range(8):
        text.append(int(penalized(np.asarray(model(text))[-1], text, options).argmax()))
    assert found == text[len(IDS) :]
    assert found != list(other.generate_ids(IDS, max_new_tokens=8))
    batched = [token for _, token in other.generate_batch([IDS], max_new_tokens=8, **options)]
    assert batched == found


def test_penalties_of_texts_side_by_side_are_their_own() -> None:
    rng = np.random.default_rng(7)
    texts = [[3, *([4] * 70), 5], [5, 5, 1], []]
    logits = rng.standard_normal((3, 8)).astype(np.float32)
    options = {"repeat_penalty": 2.0, "presence_penalty": 0.5, "frequency_penalty": 0.25, "logit_bias": {5: -1.0}}
    found = Penalties(2.0, 0.5, 0.25, WINDOW, ((5, -1.0),))
    expected = [penalized(row, text, options) for row, text in zip(logits, texts, strict=True)]
    np.testing.assert_allclose(found.apply(logits, *found.arrays(texts, 8)), expected, rtol=1e-6)
    assert expected[0][3] == logits[0, 3]  # before the window


def test_steps_without_python_have_penalties(path: Path) -> None:
    support.require_provider("cpu")
    model = endless(LanguageModel.load(path, "cpu"))
    options = {"frequency_penalty": 0.7, "logit_bias": {17: 3.0}}
    found = dict.fromkeys(range(2), 0)
    for number, _ in model.generate_batch([IDS, IDS[:3]], max_new_tokens=6, **options):
        found[number] += 1
    assert found == {0: 6, 1: 6}
    assert {type(step).__name__ for step in model._batch_steps.values()} == {"ModelStep"}


def test_repetition_penalties_are_those_of_transformers() -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    ids, logits = [int(i) for i in rng.integers(0, 50, 90)], rng.standard_normal((1, 50)).astype(np.float32)
    theirs = transformers.RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([ids]), torch.from_numpy(logits.copy()))
    ours = Penalties(1.7, last=-1)
    np.testing.assert_allclose(ours.apply(logits, *ours.arrays([ids], 50)), theirs.numpy(), rtol=1e-6)


@pytest.mark.parametrize("last", [0, 5, 64, -1])
def test_penalties_are_llama_cpps(last: int) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    rng = np.random.default_rng(4)
    size, ids = 50, [int(i) for i in rng.integers(0, 50, 90)]
    logits = rng.standard_normal((1, size)).astype(np.float32)
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    bias = (llama_cpp.llama_logit_bias * 2)((ids[-1], 2.5), (7, -1.0))
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_logit_bias(size, 2, bias))
    window = len(ids) if last == -1 else last  # programs resolve -1 before they make a sampler
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_penalties(size, window, 1.7, 0.2, 0.3))
    for token in ids:
        llama_cpp.llama_sampler_accept(chain, token)
    data = (llama_cpp.llama_token_data * size)()
    for i in range(size):
        data[i] = llama_cpp.llama_token_data(id=i, logit=float(logits[0, i]), p=0.0)
    candidates = llama_cpp.llama_token_data_array(data=data, size=size, selected=-1, sorted=False)
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(candidates))
    theirs = [[candidates.data[i].logit for i in range(size)]]
    llama_cpp.llama_sampler_free(chain)
    ours = Penalties(1.7, 0.3, 0.2, last, ((ids[-1], 2.5), (7, -1.0)))
    np.testing.assert_allclose(ours.apply(logits, *ours.arrays([ids], size)), theirs, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeat_penalty": 0.0}, "repeat_penalty is 0.0, expected a positive number"),
        ({"repeat_penalty": float("inf")}, "repeat_penalty is inf"),
        ({"presence_penalty": float("nan")}, "presence_penalty is nan, expected a finite number"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty is inf, expected a finite number"),
        ({"repeat_last_n": -2}, "repeat_last_n is -2, expected a number of tokens, or -1 for all"),
        ({"logit_bias": {5: float("nan")}}, "logit_bias of token 5 is nan, expected a finite number or -inf"),
        ({"logit_bias": {-1: 1.0}}, "token id -1 is outside the vocabulary of 269 tokens"),
        ({"stop": ["a", ""]}, "stop has an empty text"),
        ({"stop": "a\udc80"}, r"stop has a lone surrogate, U\+DC80, at 1: it is no character"),
    ],
)
def test_options_without_a_meaning_are_refused_at_once(
    model: LanguageModel, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        model.generate_ids(IDS, **options)


# --------------------------------------------------------------------------------------- texts that end a text

LETTERS = strategies.text("ab\u00e9", max_size=12)


@given(LETTERS, strategies.lists(strategies.integers(0, 12)), strategies.lists(LETTERS.filter(bool), min_size=1))
def test_a_text_ends_before_the_stop_that_is_complete_first(text: str, cuts: list[int], stops: list[str]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [(text[a:b].encode(), True) for a, b in itertools.pairwise(edges)]
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    longest = max((len(stop) for stop in stops if ends and text[: ends[0]].endswith(stop)), default=0)
    assert b"".join(until(pieces, stops)).decode() == (text[: ends[0] - longest] if ends else text)


def written(tokens: list[str]) -> str:
    return "".join(tokens)


def shown(tokens: list[str]) -> str:
    return "".join(token for token in tokens if not token.startswith("<"))


@given(
    strategies.lists(strategies.sampled_from(["a", "b", "<a>", "<b>"]), max_size=10),
    strategies.lists(strategies.sampled_from(["a", "ab", "ba", "aa", "<a>", "a<b>", "<a>b", "<b><b>"]), min_size=1),
)
def test_control_tokens_may_be_in_a_stop_and_are_not_shown(tokens: list[str], stops: list[str]) -> None:
    lengths = range(1, len(tokens) + 1)
    count = next((n for n in lengths if any(s in f(tokens[:n]) for s in stops for f in (written, shown))), None)
    expected = shown(tokens)
    if count is not None:
        text, kept = tokens[:count], []
        for stop in stops:
            if stop in shown(text):
                kept.append(len(shown(text)) - len(stop))
            if stop in written(text):
                start = written(text).index(stop)
                kept.append(next(len(shown(text[:n])) for n in range(count) if len(written(text[: n + 1])) > start))
        expected = shown(text)[: min(kept)]
    pieces = [(token.encode(), not token.startswith("<")) for token in tokens]
    assert b"".join(until(pieces, stops)).decode() == expected
    bytes_of = lambda i, *, skip_special: (shown([tokens[i]]) if skip_special else tokens[i]).encode()  # noqa: E731
    assert list(tokens_until(range(len(tokens)), bytes_of, stops)) == list(range(count or len(tokens)))


def test_what_cannot_be_the_beginning_of_a_stop_is_not_held_back() -> None:
    pieces = iter([(b"one \n", True), (b"two", True), (b"<x>", False), (b"\n\n", True), (b"three", True)])
    found = until(pieces, ["\n\n"])
    assert (next(found), next(found)) == (b"one ", b"\ntwo")
    assert list(found) == []
    assert next(pieces) == (b"three", True)  # which was not asked for


def test_tokens_end_with_the_one_that_completes_a_text() -> None:
    parts = [b"a", b"\xc3", b"\xa9b", b"c", b"d"]  # a character in two tokens

    def bytes_of(token: int, *, skip_special: bool) -> bytes:
        return parts[token]

    assert list(tokens_until(range(5), bytes_of, ["\u00e9"])) == [0, 1, 2]
    assert list(tokens_until(range(5), bytes_of, ["x", "bc"])) == [0, 1, 2, 3]
    assert list(tokens_until(range(5), bytes_of, ["x"])) == [0, 1, 2, 3, 4]
    assert (stop_texts(None), stop_texts("a"), stop_texts(["a", "b"])) == ((), ("a",), ("a", "b"))


def test_generate_leaves_the_stop_out(path: Path) -> None:
    model = endless(LanguageModel.load(path, "numpy"))
    assert model.tokenizer is not None
    whole = list(model.generate_ids(IDS, max_new_tokens=40))
    text = model.tokenizer.decode(whole)
    stop = min(set(text) - {"\ufffd"}, key=lambda letter: abs(text.index(letter) - len(text) // 2))
    assert 3 < text.index(stop) < len(text) - 3
    ids = list(model.generate_ids(IDS, max_new_tokens=40, stop=stop))
    assert ids == whole[: len(ids)]
    assert stop in model.tokenizer.decode(ids)
    assert stop not in model.tokenizer.decode(ids[:-1])
    prompt = model.tokenizer.decode(IDS[:2])
    text = "".join(model.generate(prompt, max_new_tokens=40))
    stop = text[len(text) // 2]
    shorter = "".join(model.generate(prompt, max_new_tokens=40, stop=["zzzz", stop]))
    assert shorter == text.partition(stop)[0] != text


@pytest.mark.parametrize("backend", ["cpu", "numpy", "jax"])
def test_texts_of_a_batch_end_with_their_stops(path: Path, backend: str) -> None:
    if not tp.is_backend_available(backend):
        pytest.skip(f"backend {backend} is not available")
    model = endless(LanguageModel.load(path, backend))
    assert model.tokenizer is not None
    prompts = [IDS, IDS[1:4], list(range(40, 80)), IDS[:1]]
    text = model.tokenizer.decode(list(model.generate_ids(IDS, max_new_tokens=20, repeat_penalty=1.2)))
    options: dict[str, Any] = {"max_new_tokens": 20, "stop": [text[8], text[3:6]], "repeat_penalty": 1.2}
    found: list[list[int]] = [[] for _ in prompts]
    for number, token in model.generate_batch(prompts, max_batch=3, **options):
        found[number].append(token)
    assert found == [list(model.generate_ids(ids, **options)) for ids in prompts]
    assert min(map(len, found)) < 20


def test_stop_needs_a_tokenizer(path: Path) -> None:
    model = LanguageModel.load(path, "numpy")
    model.tokenizer = None
    with pytest.raises(ValueError, match="no tokenizer, which stop needs"):
        model.generate_ids(IDS, stop="a")
    with pytest.raises(ValueError, match="no tokenizer, which stop needs"):
        model.generate_batch([IDS], stop="a")


# ------------------------------------------------------------------------------------------ what is kept


@pytest.mark.costly
@pytest.mark.parametrize("backend", BACKENDS)
def test_only_new_tokens_of_a_longer_text_are_read(path: Path, backend: str, read: list[int]) -> None:
    support.require(BACKENDS[backend])
    compile_ = pytest.importorskip("jax").jit if backend == "jax" else None
    model = endless(LanguageModel.load(path, backend, compile=compile_))
    kept = model.new_prompt_cache()
    first = list(model.generate_ids(IDS, max_new_tokens=5, prompt_cache=kept))
    assert first == list(model.generate_ids(IDS, max_new_tokens=5))
    assert kept.ids == (*IDS, *first[:-1])  # nothing was asked about what follows the last one
    longer = [*IDS, *first, 30, 31, 32]
    alone = list(model.generate_ids(longer, max_new_tokens=5))
    del read[:]
    assert list(model.generate_ids(longer, max_new_tokens=5, prompt_cache=kept)) == alone
    assert sum(read) == 4 + 4  # the last token of the first text, three new ones, and all but the last of the result


def test_a_text_that_differs_is_read_from_there(model: LanguageModel, read: list[int]) -> None:
    kept, done = model.new_prompt_cache(), []
    list(model.generate_ids([1, 2, 3, 4, 5], max_new_tokens=1, prompt_cache=kept))
    alone = list(model.generate_ids([1, 2, 9, 4], max_new_tokens=3))
    del read[:]
    note = lambda *counts: done.append(counts)  # noqa: E731
    assert list(model.generate_ids([1, 2, 9, 4], max_new_tokens=3, prompt_cache=kept, on_read=note)) == alone
    assert read[0] == 2
    assert done == [(4, 4)]
    del read[:]
    list(model.generate_ids([1, 2, 9, 4], max_new_tokens=1, prompt_cache=kept))
    assert read == [1]  # the last token, whose successor is asked for
    list(model.generate_ids([7], max_new_tokens=1, prompt_cache=kept))
    assert kept.ids == (7,)


def test_a_long_prompt_is_read_in_pieces_that_are_told_of(path: Path) -> None:
    model, done = LanguageModel.load(path, "numpy"), []
    ids = [int(i) for i in np.random.default_rng(0).integers(3, 250, 290)]
    list(model.generate_ids(ids, max_new_tokens=1, on_read=lambda *counts: done.append(counts)))
    assert done == [(256, 290), (290, 290)]


def test_a_prompt_that_is_left_half_read_is_gone_on_with(path: Path, read: list[int]) -> None:
    class Stopped(Exception):
        pass

    def stop(count: int, total: int) -> None:
        raise Stopped

    model = LanguageModel.load(path, "numpy")
    kept = model.new_prompt_cache()
    ids = [int(i) for i in np.random.default_rng(0).integers(3, 250, 290)]
    with pytest.raises(Stopped):
        list(model.generate_ids(ids, max_new_tokens=4, prompt_cache=kept, on_read=stop))
    assert kept.ids == tuple(ids[:256])
    del read[:]
    found = list(model.generate_ids(ids, max_new_tokens=4, prompt_cache=kept))
    assert read[0] == 34
    assert found == list(model.generate_ids(ids, max_new_tokens=4))


def test_other_options_do_not_change_a_text(model: LanguageModel) -> None:
    plain = list(model.generate_ids(IDS, max_new_tokens=8))
    assert list(model.generate_ids(IDS, max_new_tokens=8, repeat_penalty=1.0, presence_penalty=0.0, stop=())) == plain
    assert tp.get_backend() == "auto"


def test_a_cache_of_states_is_read_from_the_beginning_where_a_text_differs(tmp_path: Path, read: list[int]) -> None:
    pytest.importorskip("transformers")
    import tiny_networks

    tiny_networks.save("qwen35", tmp_path)
    model = LanguageModel.load(tmp_path, "numpy")
    kept = model.new_prompt_cache()
    first = list(model.generate_ids(IDS[:4], max_new_tokens=3, prompt_cache=kept))
    longer = [*IDS[:4], *first, 1, 2]
    expected_ids = {text: list(model.generate_ids(text, max_new_tokens=3)) for text in (tuple(longer), (5, 9, 8))}
    del read[:]
    for text, following in expected_ids.items():
        assert list(model.generate_ids(text, max_new_tokens=3, prompt_cache=kept)) == following
    assert read == [3, 1, 1, 3, 1, 1]


# ------------------------------------------------------------------------------ log probabilities and vectors


@pytest.mark.costly
@pytest.mark.parametrize("backend", BACKENDS)
def test_log_probabilities_are_those_of_the_logits(path: Path, backend: str) -> None:
    support.require(BACKENDS[backend])
    model = LanguageModel.load(path, backend)
    ids = [int(i) for i in np.random.default_rng(2).integers(3, 250, 270)]  # two pieces
    logits = np.asarray(tp.to_backend(model(ids), "numpy"), np.float64)[:-1]
    expected_ones = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    found = model.logprobs(ids, top=3)
    np.testing.assert_allclose(found.chosen, expected_ones[range(269), ids[1:]], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found.top_ids, np.argsort(-expected_ones, axis=1, kind="stable")[:, :3])
    np.testing.assert_allclose(found.top, -np.sort(-expected_ones, axis=1)[:, :3], rtol=1e-4, atol=1e-4)
    assert [array.dtype.name for array in found] == ["float32", "int32", "float32"]


def test_log_probabilities_of_a_text_that_continues_another(model: LanguageModel) -> None:
    whole = model.logprobs(IDS, top=2)
    cache = model.new_cache()
    model(IDS[:2], cache)
    part = model.logprobs(IDS[2:], top=2, cache=cache)
    for all_of_it, rest in zip(whole, part, strict=True):
        np.testing.assert_allclose(all_of_it[2:], rest, rtol=1e-5)
    assert cache.length == len(IDS) - 1
    assert [array.shape for array in model.logprobs([5], top=2)] == [(0,), (0, 2), (0, 2)]
    assert model.logprobs(IDS).top.shape == (5, 0)
    assert model.logprobs(IDS, top=269).top_ids.shape == (5, 269)
    for top in (-1, 270):
        with pytest.raises(ValueError, match=f"top is {top}, expected 0 to the vocabulary's 269"):
            model.logprobs(IDS, top=top)


def features(path: Path, ids: list[int]) -> np.ndarray:
    """The features after the last norm, in float64: those whose products with the embedding are the logits."""
    weights = {name: tensor.dequantize().astype(np.float64) for name, tensor in open_gguf(path).tensors.items()}
    weights["output.weight"] = np.eye(CONFIG.dim)
    return float64_logits(CONFIG, weights, ids)


@pytest.mark.costly
@pytest.mark.parametrize("backend", BACKENDS)
def test_vectors_are_the_pooled_features(path: Path, backend: str) -> None:
    support.require(BACKENDS[backend])
    model = LanguageModel.load(path, backend)
    assert model.tokenizer is not None
    long = [int(i) for i in np.random.default_rng(2).integers(3, 250, 260)]  # two pieces
    texts: list[Any] = ["hello world", IDS, long]
    hidden = [features(path, ids) for ids in (model.tokenizer.encode("hello world"), IDS, long)]
    for pooling, of in (("mean", lambda x: x.mean(axis=0)), ("last", lambda x: x[-1]), ("cls", lambda x: x[0])):
        found = model.embed(texts, pooling)
        assert type(found) is type(tp.to_backend(np.zeros(1, np.float32), backend))
        vectors = tp.to_backend(found, "numpy")
        assert (vectors.dtype, vectors.shape) == (np.float32, (3, 64))
        np.testing.assert_allclose(vectors, [of(x) for x in hidden], rtol=1e-4, atol=1e-4)
        for text, vector in zip(texts, vectors, strict=True):
            single = tp.to_backend(model.embed(text, pooling), "numpy")
            np.testing.assert_allclose(single, vector, rtol=1e-5, atol=1e-6)


def test_what_has_no_vector_is_refused(path: Path) -> None:
    model = LanguageModel.load(path, "numpy")
    with pytest.raises(ValueError, match="pooling is 'max', expected one of mean, last, cls"):
        model.embed("hello", "max")
    for nothing in ("", [], [[]]):
        with pytest.raises(ValueError, match=r"no text|non-empty"):
            model.embed(nothing)
    model.tokenizer = None
    with pytest.raises(ValueError, match="no tokenizer: give token ids"):
        model.embed(["hello"])
    assert model.embed(np.asarray(IDS)).shape == (64,)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_model_is_copied_but_not_pickled(model: LanguageModel, copied: Any) -> None:
    again = copied(model)
    assert list(again.generate("a", max_new_tokens=3)) == list(model.generate("a", max_new_tokens=3))
    with pytest.raises(TypeError, match=r"cannot be pickled: .*; call LanguageModel\.load in each process$"):
        pickle.dumps(again)
