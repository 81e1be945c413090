"""Steps on PyOpenCL arrays as launches that are ready to be enqueued."""

import contextlib
import gc
import json
import threading
import weakref

import numpy as np
import pytest

import support
import tensorops as tp
from make_gguf import write_llama
from tensorops._operator import OPERATORS
from tensorops._trees import map_arrays
from tensorops.persistent import CaptureError, PersistentKernel
from tensorops.testing import CASES, REFERENCES
from tensorops.testing._libraries import arrays_in
from tensorops.testing.conformance import check_result

ROW = support.require("pyopencl")
support.require_provider("opencl")

import pyopencl as cl  # noqa: E402
import pyopencl.array as cla  # noqa: E402

import array_api_pyopencl as xp  # noqa: E402

pytestmark = pytest.mark.usefixtures("platform")
X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
KINDS = {"bare": lambda a: xp.asarray(a).cl_array, "wrapped": xp.asarray}


def compiled(step, *args, **options):
    kernel = PersistentKernel(step, args, backend="opencl", **options)
    kernel.compile()
    return kernel


def near(found, expected):
    np.testing.assert_allclose(support.back(found), expected, rtol=1e-5, atol=1e-6)


def norm(x):
    return REFERENCES["rms_norm"](np.asarray(x, np.float64))


def silu(x):
    return REFERENCES["silu"](np.asarray(x, np.float64))


# --------------------------------------------------------------------------------------------------- values


def cases():
    """The cases of each operator that can be in float32, of which a short run has the first."""
    for name in OPERATORS:
        for number, case in enumerate(case for case in CASES[name] if "float32" in case.dtypes):
            yield pytest.param(case, marks=pytest.mark.exhaustive if number else (), id=str(case))


@pytest.mark.parametrize("case", list(cases()))
def test_every_operator_whoever_computes_it(case):
    operator = case.operator
    args, options = case.build(dtype_name="float32")
    if any(isinstance(value, np.random.Generator) for value in (*args, *options.values())):
        pytest.skip("a generator is not an array")
    call = support.there((args, options), "pyopencl")

    def step(*arrays):
        left = iter(arrays)
        given, named = map_arrays(lambda _: next(left), call)
        return OPERATORS[operator](*given, **named)

    # Attention to a cache may have several queries.
    kernel = PersistentKernel(step, arrays_in(call), backend="opencl", mode="prefill")
    if "empty" in case.tags or case.name == "no_rows":
        with contextlib.suppress(CaptureError):
            kernel.compile()
        pytest.skip("there is nothing to compute")
    calls = kernel.explain().calls
    assert {each.operator for each in calls} <= {operator}
    for _ in range(2):
        found = kernel(*[x.copy() for x in arrays_in(call)])
        check_result(found, REFERENCES[operator](*args, **options), case, ROW, "float32", call)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_keeps_a_history(kind):
    there = KINDS[kind]

    def step(x, position, history):
        history[position, :] = tp.rms_norm(x)
        return tp.silu(history[1:3, :]), history, position + 1

    kernel = compiled(step, *map(there, (X[:1], np.asarray([0]), np.zeros((4, 8), np.float32))), donate=[2])
    history, expected, position = there(np.zeros((4, 8), np.float32)), np.zeros((4, 8)), there(np.asarray([0]))
    kept = []
    for i in range(4):
        x = X[i % 3 : i % 3 + 1] + i
        y, same, position = kernel(there(x), position, history)
        assert same is history
        expected[i] = norm(x)[0]
        kept.append((y, silu(expected[1:3])))
    assert {type(y) for y, _ in kept} == {type(history)}
    assert support.back(position).tolist() == [4]
    near(history, expected)
    for y, wanted in kept:  # a later run does not write to an earlier one's results
        near(y, wanted)


def test_array_functions_and_constants_on_either_side():
    weight, table = xp.asarray(X), np.arange(24, dtype=np.float32).reshape(3, 8)
    bare = xp.asarray(X).cl_array
    lines = xp.asarray(table)

    def step(x, at):
        y = weight * x + bare * xp.exp(x) - tp.silu(x + 1)
        z = xp.where(y > 0, y, xp.sum(y * y, axis=-1, keepdims=True)) @ xp.permute_dims(weight, (1, 0))
        return xp.concat([z, xp.astype(xp.take(lines, at, axis=0), xp.float32)[:, :3]], axis=0), tp.linear(weight, x)

    kernel = compiled(step, xp.asarray(X), xp.asarray(np.asarray([0])))
    x, at = 0.5 * X - 0.25, np.asarray([2])
    z, product = kernel(xp.asarray(x), xp.asarray(at))
    w, x = X.astype(np.float64), x.astype(np.float64)
    y = w * x + w * np.exp(x) - silu(x + 1)
    y = np.where(y > 0, y, (y * y).sum(-1, keepdims=True)) @ w.T
    near(z, np.concatenate([y, table[at][:, :3]]))
    near(product, w @ x.T)


def test_memory_is_shared_and_nothing_in_it_is_read_before_it_is_written():
    def step(x):
        for _ in range(20):
            x = tp.rms_norm(tp.silu(x) + x)
        return x

    kernel = compiled(step, xp.asarray(X))
    statistics = kernel.explain().statistics
    assert statistics.calls == 60
    assert statistics.arena_bytes <= statistics.separate_bytes / 10
    queue = xp.default_device().queue
    for part in kernel._engine._prepared.kept:
        if isinstance(part, cl.MemoryObjectHolder):
            cl.enqueue_fill_buffer(queue, part, np.uint8(0xFF), 0, part.size)
    expected = X
    for _ in range(20):
        expected = norm(silu(expected) + expected)
    np.testing.assert_allclose(support.back(kernel(xp.asarray(X))), expected, rtol=1e-4, atol=1e-5)


def test_results_may_be_arguments_and_views():
    kernel = compiled(lambda x, y: {"x": x, "row": x[1, :], "both": (tp.silu(y), y[:, 2:])}, *map(xp.asarray, (X, X)))
    x, y = xp.asarray(X + 1), xp.asarray(2 * X)
    found = kernel(x, y)
    assert found["x"] is x
    near(found["row"], (X + 1)[1])
    near(found["both"][0], silu(2 * X))
    near(found["both"][1], 2 * X[:, 2:])


def test_positions_out_of_range_touch_nothing():
    def step(x, at, history):
        history[at, :] = x
        return xp.take(history, at, axis=0), history

    kernel = compiled(step, *map(xp.asarray, (X[:2], np.asarray([0, 1]), X)), donate=[2])
    history = xp.asarray(X)
    rows, _ = kernel(xp.asarray(9 + X[:2]), xp.asarray(np.asarray([-1, 3])), history)
    near(history, np.concatenate([X[:2], 9 + X[:1]]))
    near(rows[0, :], 9 + X[0])
    assert np.isnan(support.back(rows)[1]).all()


def test_indices_that_the_step_changes_are_read_again():
    def step(at, x):
        first = xp.take(x, at, axis=0)
        at[:] = at + 1
        return first, xp.take(x, at, axis=0)

    kernel = compiled(step, *map(xp.asarray, (np.asarray([0]), X)), donate=[0])
    first, second = kernel(xp.asarray(np.asarray([1])), xp.asarray(X))
    near(first, X[1:2])
    near(second, X[2:])


# -------------------------------------------------------------------------------------------------- refusals


def writes_to_a_constant(x):
    constant = xp.zeros((3, 8), dtype=xp.float32)
    constant[...] = x
    return constant


def keeps_adding(x):
    x += 1
    return x


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda x: tp.silu(x) if x[0, 0] > 0 else x, r"reads values of an array in Python \(__bool__\)"),
        (lambda x: x * float(x[0, 0]), r"reads values of an array in Python \(__float__\)"),
        (lambda x: tp.silu(xp.asarray(np.tanh(np.asarray(x)))), r"reads values of an array in Python \(__array__\)"),
        (lambda x: x[x > 0], r"reads values of an array in Python \(__getitem__\)"),
        (lambda x: xp.linalg.inv(x @ x.mT), r"reads values of an array in Python \(inv\)"),
        (lambda x: tp.silu(x.get()), "'Array' object has no attribute 'get'"),
        (lambda x: cla.maximum(x, x), "cannot be recorded: "),
        (lambda x: tp.silu(x.cl_array), r"uses the queue of an array \(cl_array\)"),
        (lambda x: tp.silu(xp.asarray(X)), "returns an array that does not depend on its arguments"),
        (lambda x: tp.sample(x, rng=np.random.default_rng(0)), "sample: numbers of a generator would stay the same"),
        (lambda x: tp.sample(logits=x, rng=np.random.default_rng(0)), "sample: numbers of a generator would stay"),
        (  # by the body: no kernel takes such a temperature
            lambda x: tp.sample(logits=x, temperature=2.0**101, rng=np.random.default_rng(0)),
            "sample: numbers of a generator would stay",
        ),
        (writes_to_a_constant, "assignment: the step writes to an array that is not one of its arguments"),
        (keeps_adding, "assignment: the step writes to argument 0, which is not in `donate`"),
    ],
)
def test_what_cannot_be_run_again_is_named(step, words):
    with pytest.raises(CaptureError, match=words):
        compiled(step, xp.asarray(X))


def test_the_step_s_own_errors_are_its_own():
    def wrong(x):
        raise KeyError("weight")

    with pytest.raises(KeyError, match="weight"):
        compiled(wrong, xp.asarray(X))
    with pytest.raises(ValueError, match="rms_norm: "):
        compiled(lambda x: tp.rms_norm(x, xp.asarray(X[0, :3])), xp.asarray(X))


def test_arguments_that_do_not_fit(queue):
    def step(x, history):
        history[0, :] = x[0, :]
        return history

    x, history = xp.asarray(X), xp.asarray(X)
    with pytest.raises(CaptureError, match="an array is among the arguments twice"):
        compiled(step, x, x, donate=[1])
    with pytest.raises(CaptureError, match="argument 2 is donated, and an array in it is not contiguous"):
        compiled(step, x, history, x[1:, :], donate=[0, 2])
    kernel = compiled(step, x, history, donate=[1])
    for args, words in [
        ((x,), "the arguments differ from those when the step was compiled in more than values"),
        (
            (x[:2, :], history),
            r"array 0 of the arguments was float32 \(3, 8\) when compiled, and is now float32 \(2, 8\)",
        ),
        ((x, xp.astype(history, xp.int32)), r"array 1 of the arguments was float32 .* is now int32"),
        ((history, history), "an array that the step writes to is among the arguments twice"),
        ((x, xp.asarray(X.T.copy()).T), "array 1 of the arguments is not contiguous from the start of a buffer"),
        ((x, cla.to_device(queue, X)), "array 1 of the arguments is on another queue than the first array"),
    ]:
        with pytest.raises(ValueError, match=words):
            kernel(*args)
    near(kernel(x, history), X)


def test_threads_are_the_driver_s():
    with pytest.raises(ValueError, match="num_workers: the OpenCL driver chooses its threads"):
        PersistentKernel(tp.silu, [xp.asarray(X)], num_workers=2)


# ----------------------------------------------------------------------------------------------- many arrays


def test_arrays_that_are_read_may_be_anywhere(queue):
    kernel = compiled(tp.silu, xp.asarray(X))
    host, strided = 2 * X, xp.asarray(X.T.copy()).T
    bare, elsewhere = strided.cl_array, cla.to_device(queue, X)
    for x in (host, strided, bare, elsewhere):
        for value in (1.0, 2.0):
            same = x if x is host else xp.asarray(x)
            same[0, :] = value  # in the same memory
            near(kernel(x), silu(support.back(x)))


def test_the_queue_is_the_first_array_s(queue):
    x = cla.to_device(queue, X)
    y = compiled(lambda x: tp.silu(tp.rms_norm(x)), x)(cla.to_device(queue, 2 * X))
    assert y.queue == queue
    near(y, silu(norm(2 * X)))


def test_a_run_waits_for_events_of_its_arguments(queue):
    first, second = (cl.CommandQueue(queue.context) for _ in range(2))
    kernel = compiled(tp.silu, cla.to_device(first, X))
    gate = cl.UserEvent(queue.context)
    x = cla.zeros(first, X.shape, X.dtype)
    first.finish()
    x.add_event(cl.enqueue_copy(second, x.base_data, 2 * X, is_blocking=False, wait_for=[gate]))
    y = kernel(x)
    gate.set_status(cl.command_execution_status.COMPLETE)
    near(y, silu(2 * X))


def test_other_threads_compute_while_a_step_is_recorded():
    x, found = xp.asarray(X), []

    def step(y):
        thread = threading.Thread(target=lambda: found.append(tp.rms_norm(x) + x))
        thread.start()
        thread.join()
        return tp.silu(tp.rms_norm(y))

    kernel = compiled(step, xp.asarray(X))
    near(found[0], norm(X) + X)
    near(kernel(x), silu(norm(X)))


def test_threads_that_run_it_get_their_own_results():
    kernel = compiled(lambda x: tp.silu(tp.rms_norm(x) + x), xp.asarray(X))

    def work(i):
        for _ in range(20):
            near(kernel(xp.asarray(i * X)), silu(norm(i * X) + i * X))

    support.in_threads(work, range(1, 5))


def test_release_lets_go_of_what_was_passed():
    kernel = compiled(lambda x, h: (tp.silu(x), h), xp.asarray(X), xp.asarray(X), donate=[1])
    history = xp.asarray(X)
    gone = weakref.ref(history)
    kernel(xp.asarray(X), history)
    del history
    gc.collect()
    assert gone() is not None
    kernel.release()
    gc.collect()
    assert gone() is None
    near(kernel(xp.asarray(X), xp.asarray(X))[0], silu(X))


# ------------------------------------------------------------------------------------------- what was captured


def test_what_was_captured():
    weight = xp.asarray(X[0])

    def step(x):
        return tp.rms_norm(x, weight)[:, :4] + 1

    captured = compiled(step, xp.asarray(X)).explain()
    assert captured.mechanism == "a list of launches, each ready to be enqueued"
    assert [(c.operator, c.kernel, c.shapes) for c in captured.calls] == [
        ("rms_norm", "rms_norm", ("float32[3, 8]", "float32[8]", "float32[3, 8]")),
        ("__add__", "elementwise", ("float32[3, 8]", "48 B")),
    ]
    assert captured.calls[0].bytes == 4 * (24 + 8 + 24)
    assert captured.statistics.bytes == sum(call.bytes for call in captured.calls)
    assert "float32[8]" in str(captured)


def test_times_of_launches(tmp_path):
    kernel = PersistentKernel(lambda x: tp.silu(tp.rms_norm(x)), [xp.asarray(X)], backend="opencl", profile=True)
    near(kernel(xp.asarray(2 * X)), silu(norm(2 * X)))
    profile = kernel.profile()
    assert [call.operator for call in profile.calls] == ["rms_norm", "silu"]
    assert all(0 < seconds < 1 for seconds in profile.seconds)
    profile.write_trace(tmp_path / "trace.json")
    assert [e["name"] for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]] == ["rms_norm", "silu"]


# ------------------------------------------------------------------------------------------------ a model's step


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("kind", ["Q4_1", "F32"])
def test_a_model_s_step(tmp_path, kind, temperature):
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    from tensorops.models import Llama

    path, prompt, rng = write_llama(tmp_path / "model.gguf", kind), [100, 7, 7, 250, 0], np.random.default_rng(1)
    llama = Llama.from_gguf(path, "opencl")
    kernel = llama.persistent(max_seq_length=32, temperature=temperature)
    operators = {call.operator for call in kernel.explain().calls}
    assert {"rms_norm", "rope", "scaled_dot_product_attention", "swiglu", "sample"} <= operators
    cache, text = llama.new_cache(32), list(prompt)
    keys, values = cache.keys, cache.values
    for position in range(12):
        token, place = (tp.to_backend(np.asarray([n], np.int32), "opencl") for n in (text[position], position))
        last = position >= len(prompt) - 1
        drawn = rng.random(1, dtype=np.float32) if last else np.zeros(1, np.float32)
        numbers = [tp.to_backend(drawn, "opencl")] if temperature else []
        following, keys, values = kernel(token, place, keys, values, *numbers)
        if last:
            text.append(int(support.back(following)[0]))
    expected = llama.generate_ids(prompt, max_new_tokens=8, temperature=temperature, seed=1)
    assert text[5:] == list(expected)
    if not temperature:
        assert text[5:] == list(Llama.from_gguf(path, "numpy").generate_ids(prompt, max_new_tokens=8))


@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "q8_0"])
def test_many_sequences_in_one_step(tmp_path, kv_dtype):
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    from tensorops.models import Llama

    if kv_dtype == "float16" and kv_dtype not in support.dtypes_of("pyopencl"):
        pytest.skip("the device holds no float16")
    path = write_llama(tmp_path / "model.gguf", "F32")
    llama, prompts = Llama.from_gguf(path, "opencl"), [[5], [1, 2, 3], [*range(20)], [*range(16), 9]]
    options = {"max_new_tokens": 6, "page_size": 4, "max_batch": 3, "kv_dtype": kv_dtype}
    found, expected = [[] for _ in prompts], [[] for _ in prompts]
    for model, texts in ((llama, found), (Llama.from_gguf(path, "numpy"), expected)):
        for number, token in model.generate_batch(prompts, **options):
            texts[number].append(token)
    assert all(isinstance(step, PersistentKernel) for step in llama._batch_steps.values())
    assert found == expected
