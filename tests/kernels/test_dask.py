"""Operators block by block on Dask arrays: what is accepted, what a task does, and where it may run.

That the results agree with the references on all cases is tested in `test_conformance`, and that nothing is computed
early in `test_transformations`.
"""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops import _providers
from tensorops._operator import OPERATORS
from tensorops._row_axes import elementwise
from tensorops.backends.settings import Settings
from tensorops.backends.trace import Trace
from tensorops.kernels.dask import _launch
from tensorops.kernels.dask._launch import Task, register
from tensorops.testing import DTYPES, REFERENCES, assert_matches
from tensorops.typing import Array

support.require("dask")

import dask  # noqa: E402
import dask.array as da  # noqa: E402

NAMES = [name for name, operator in OPERATORS.items() if "dask" in operator.kernels]
A = np.random.default_rng(3).standard_normal((6, 8)).astype(np.float32)
W = np.random.default_rng(4).standard_normal(8).astype(np.float32)
X = da.from_array(A, chunks=(2, 8))
SPLIT = da.from_array(A, chunks=(2, 4))


def reason(operator, *args, **kwargs):
    return operator.explain(*args, **kwargs).refused.get("dask")


@pytest.fixture
def calls(monkeypatch):
    """The operators called on blocks, each with the types of their arguments."""
    seen = []
    run = Task.__call__

    def note(task, *blocks):
        seen.append((task.operator.__name__, *(type(b).__name__ for b in blocks)))
        return run(task, *blocks)

    monkeypatch.setattr(Task, "__call__", note)
    return seen


# --- what is taken ------------------------------------------------------------------------------------


def test_which_operators_run_by_blocks():
    assert set(OPERATORS) - set(NAMES) == {"quantize", "dequantize", "sample", "einsum", "multi_head_attention"}


@pytest.mark.parametrize(
    ("name", "args", "options"),
    [
        ("silu", (SPLIT,), {}),
        ("gelu", (SPLIT,), {"approximate": "tanh"}),
        ("swiglu", (X, SPLIT), {}),
        ("rms_norm", (X, da.from_array(W, chunks=3)), {"weight_offset": 1.0}),
        ("rms_norm", (SPLIT.T.rechunk({1: 6}),), {"axis": 1, "eps": 1e-3}),
        ("rms_norm", (X.T, da.from_array(W)), {"axis": 0}),
        ("layer_norm", (X, da.from_array(W), da.from_array(W, chunks=5)), {}),
        ("layer_norm", (X.reshape(6, 2, 4), da.from_array(W.reshape(2, 4))), {"axis": (2, 1)}),
        ("softmax", (X,), {"where": da.from_array(A > 0, chunks=(3, 8))}),
        ("softmax", (X,), {"where": da.from_array(W > 0, chunks=3)}),
        ("softmax", (X,), {"where": da.from_array(A[:, :1] > 0, chunks=(3, 1))}),
        ("softmax", (X.reshape(6, 2, 4),), {"axis": (1, -1)}),
        ("logsumexp", (X,), {}),
        ("logsumexp", (X,), {"keepdims": True}),
        ("logsumexp", (X.reshape(6, 2, 4),), {"axis": (-1, 1)}),
        ("logsumexp", (da.from_array(A),), {"axis": (0, 1)}),
        ("rope", (da.from_array(A.reshape(2, 1, 3, 8), chunks=(1, 1, 2, 8)), da.arange(3, chunks=1)), {"dims": 4}),
        ("rope", (da.from_array(A.reshape(2, 1, 3, 8), chunks=1).rechunk({3: 8}), da.ones((2, 3), chunks=(2, 1))), {}),
        ("rope", (da.from_array(A.reshape(2, 1, 3, 8), chunks=2).rechunk({3: 8}), da.ones((1, 3), chunks=3)), {}),
        ("rope", (X[None], da.arange(6)), {"freqs": da.from_array(W[:4], chunks=2), "interleaved": True}),
        (
            "rope",
            (
                da.from_array(A.reshape(2, 1, 3, 8), chunks=(1, 1, 2, 8)),
                da.from_array([[2, 1, 0], [5, 5, 3]], chunks=1),
            ),
            {"cos": da.from_array(A[:, :4]), "sin": da.from_array(A[:, 4:])},
        ),
        (
            "rope",
            (da.from_array(A.reshape(2, 1, 3, 8), chunks=(1, 1, 2, 8)),),
            {"cos": da.from_array(A[:3, :4], chunks=(2, 4)), "sin": da.from_array(A[3:, 4:], chunks=(1, 4))},
        ),
    ],
)
def test_blocks_of_every_shape(name, args, options, calls):
    operator = OPERATORS[name]
    assert reason(operator, *args, **options) is None
    y = operator(*args, **options)
    assert calls == []
    host_args, host_options = dask.compute(args, options)
    expected = REFERENCES[name](*host_args, **host_options)
    assert y.shape == expected.shape
    assert y.dtype == args[0].dtype
    result = y.compute()
    assert calls == [(name, *calls[0][1:])] * y.npartitions
    assert result.shape == expected.shape
    assert result.dtype == y.dtype
    assert type(y._meta) is np.ndarray
    assert_matches(result, expected, "float32", tolerance=8)


@pytest.mark.parametrize(
    ("operator", "args", "options", "why"),
    [
        (tp.softmax, (SPLIT,), {}, "axis -1 of x is split into 2 blocks"),
        (tp.rms_norm, (X,), {"axis": 0}, "axis -2 of x is split into 3 blocks"),
        (tp.softmax, (da.ones(8, chunks=3),), {}, "axis -1 of x is split into 3 blocks"),
        (tp.softmax, (X,), {"where": SPLIT > 0}, "axis -1 of where is split into 2 blocks"),
        (tp.add_rms_norm, (X, SPLIT), {}, "axis -1 of residual is split into 2 blocks"),
        (tp.silu, (X.map_blocks(np.ma.masked_array),), {}, "the blocks of x: MaskedArray is not supported; pass"),
        (tp.linear, (SPLIT, X), {}, "axis -1 of x is split into 2 blocks"),
    ],
)
def test_says_what_it_refuses(operator, args, options, why):
    assert reason(operator, *args, **options).startswith(why)


def test_a_split_axis_is_computed_by_the_body(calls):
    y = tp.softmax(SPLIT)
    assert_matches(y.compute(), REFERENCES["softmax"](A), "float32", tolerance=8)
    assert calls == []


def test_blocks_of_several_libraries_are_refused():
    support.require("array_api_strict")
    strict = support.there(W, "array_api_strict")
    w = da.from_array(W).map_blocks(lambda b: b, meta=strict)
    assert type(w._meta) is type(strict)
    assert reason(tp.rms_norm, X, w) == "the blocks of weight are of array_api_strict, those of x of numpy"


def test_a_plain_array_among_dask_s_is_an_error():
    tp.rms_norm(X, da.from_array(W))  # leaves its plan
    with pytest.raises(TypeError, match=r"^rms_norm: x is an array of dask, but weight of numpy"):
        tp.rms_norm(X, W)


# --- the graph ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["silu", "swiglu", "rms_norm", "layer_norm", "softmax", "logsumexp"])
def test_one_task_a_block(name):
    x = da.ones((8, 4), chunks=(2, 4), dtype="float32")
    others = {"swiglu": (x,), "rms_norm": (da.ones(4),), "layer_norm": (da.ones(4),)}.get(name, ())
    y = OPERATORS[name](x, *others)
    given = {key for a in (x, *others) for key in a.__dask_graph__()}
    assert len(y.__dask_graph__()) == len(given) + 4


def test_names_are_those_of_equal_calls():
    """Dask computes equal calls once, also those of another process."""
    names = {tp.rms_norm(X, eps=1e-5).name, tp.rms_norm(X, None, 1e-5).name}
    assert len(names | {tp.rms_norm(X, eps=1e-4).name}) == 2
    code = (
        "import dask.array as da, tensorops as tp;"
        "print(tp.rms_norm(da.ones((4, 8), chunks=2).rechunk({1: 8}), eps=1e-5).name)"
    )
    here = tp.rms_norm(da.ones((4, 8), chunks=2).rechunk({1: 8}), eps=1e-5).name
    assert support.python(code).stdout.strip() == here


def test_two_results_are_computed_together(calls):
    y, residual = tp.add_rms_norm(X, X + 1, da.from_array(W, chunks=2))
    expected = REFERENCES["add_rms_norm"](A, A + 1, W)
    for actual, wanted in zip(dask.compute(y, residual), expected, strict=True):
        assert_matches(actual, wanted, "float32", tolerance=8)
    assert [name for name, *_ in calls] == ["add_rms_norm"] * 3
    assert_matches((y + residual).compute(), expected[0] + expected[1], "float32", tolerance=8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_are_known_before(dtype):
    x = X.astype(DTYPES[dtype])
    for y in (tp.silu(x), tp.logsumexp(x), *tp.add_rms_norm(x, x)):
        assert y.dtype == x.dtype == y._meta.dtype == y.compute().dtype
        assert y._meta.ndim == y.ndim


def test_unknown_sizes():
    kept = X[da.from_array(A[:, 0], chunks=2) > 0]
    rows = A[A[:, 0] > 0]
    for y, expected in (
        (tp.silu(kept), REFERENCES["silu"](rows)),
        (tp.swiglu(kept, kept + 1), REFERENCES["swiglu"](rows, rows + 1)),
        (tp.rms_norm(kept, da.from_array(W)), REFERENCES["rms_norm"](rows, W)),
        (tp.softmax(kept), REFERENCES["softmax"](rows)),
    ):
        assert np.isnan(y.shape[0])
        assert_matches(y.compute(), expected, "float32", tolerance=8)
    with pytest.raises(ValueError, match=r"^swiglu: up has shape \(nan, 4\), but gate has \(nan, 8\)"):
        tp.swiglu(kept, kept[:, :4])


def test_empty_blocks():
    x = X[:0]
    assert tp.rms_norm(x, da.from_array(W)).compute().shape == (0, 8)
    assert_matches(
        tp.softmax(da.from_array(A, chunks=((0, 4, 2), (8,)))).compute(),
        REFERENCES["softmax"](A),
        "float32",
        tolerance=8,
    )


def test_special_values_give_no_warnings():
    x = da.from_array(np.full((2, 4), -np.inf, np.float32))
    assert np.isnan(tp.softmax(x).compute(scheduler="threads")).all()


# --- indices ------------------------------------------------------------------------------------------

TABLE, MATRICES = A[:, :4], np.stack([A, -A, A + 1])
POSITIONS = {"cos": np.cos(TABLE), "sin": np.sin(TABLE)}
INDEXED = {  # the operator, the arguments as a function of indices, the indices, the largest that is allowed
    "embedding": ("embedding", lambda i: ((i, A), {}), np.array([[1, 5], [0, 3]]), 5),
    "mean": ("cross_entropy", lambda i: ((A, i), {}), np.array([0, 7, 1, -100, 2, 3]), 7),
    "sum": ("cross_entropy", lambda i: ((A, i), {"reduction": "sum"}), np.arange(6), 7),
    "none": ("cross_entropy", lambda i: ((A, i), {"reduction": "none"}), np.arange(6), 7),
    "weighted": ("cross_entropy", lambda i: ((A, i, np.abs(W)), {"label_smoothing": 0.1}), np.arange(6), 7),
    "linear mean": ("linear_cross_entropy", lambda i: ((A, MATRICES[0], i), {}), np.arange(6), 5),
    "linear none": ("linear_cross_entropy", lambda i: ((A, MATRICES[0], i), {"reduction": "none"}), np.arange(6), 5),
    "experts": ("grouped_linear", lambda i: ((A, i, MATRICES), {}), np.array([0, 2, 1, 1, 0, 2]), 2),
    "positions": ("rope", lambda i: ((A[None, None], i), POSITIONS), np.array([0, 5, 1, 2, 4, 3]), 5),
    "lengths": (
        "scaled_dot_product_attention",
        lambda i: ((A[:, None, None], A[:, None, None], A[:, None, None]), {"lengths": i}),
        np.array([1, 0, 1, 1, 0, 1]),
        1,
    ),
    "pages": (
        "scaled_dot_product_attention",
        lambda i: ((A[:2, None, None], MATRICES[:, None], MATRICES[:, None]), {"page_table": i}),
        np.array([[0, 2], [1, 0]]),
        2,
    ),
}


def blockings(call, split):
    """Return a call with its arrays as Dask's, in blocks of two along the axes that `split` names from the front."""

    def lazy(a):
        return da.from_array(a, chunks=tuple(2 if i in split else -1 for i in range(a.ndim)))

    return support.map_arrays(lazy, call)


@pytest.mark.parametrize("split", [(), (0,), (1,), (0, 1, 2)], ids=["one_block", "rows", "columns", "both"])
@pytest.mark.parametrize("name", INDEXED)
def test_indices_out_of_range_are_errors_when_they_are_computed(name, split):
    """As on NumPy arrays, in whatever blocks they are, and not before."""
    operator, call, indices, most = INDEXED[name]
    args, options = call(indices)
    expected = REFERENCES[operator](*args, **options)

    def refuse(*_, **__):
        raise AssertionError("something was computed early")

    args, options = blockings((args, options), split)
    assert_matches(OPERATORS[operator](*args, **options).compute(), expected, "float32", tolerance=64, scale_axis=None)
    for wrong in (most + 1, -1):
        changed = indices.copy()
        changed[-1:] = wrong
        args, options = call(changed)
        with pytest.raises(ValueError, match="outside") as said:
            OPERATORS[operator](*args, **options)
        args, options = blockings((args, options), split)
        with dask.config.set(scheduler=refuse):
            y = OPERATORS[operator](*args, **options)
        with pytest.raises(ValueError, match=re.escape(str(said.value))):
            y.compute()


# --- where blocks are computed ------------------------------------------------------------------------


def test_blocks_of_other_libraries_stay_there(calls):
    support.require("array_api_strict")
    strict = support.there(A, "array_api_strict")
    x = X.map_blocks(lambda b: support.there(b, "array_api_strict"), meta=strict[:0, :0])
    (block,) = dask.compute(tp.silu(x).to_delayed()[0, 0])
    assert type(block) is type(strict)
    assert calls == [("silu", type(strict).__name__)]
    assert_matches(support.back(block), REFERENCES["silu"](A[:2]), "float32", tolerance=8)


def test_settings_concern_the_graph_alone(monkeypatch):
    ran = []
    dispatch = type(tp.silu)._select

    def note(self, settings, call):
        kernel, refused = dispatch(self, settings, call)
        ran.append((call.library.name, kernel.provider if kernel else "generic"))
        return kernel, refused

    monkeypatch.setattr(type(tp.silu), "_select", note)
    monkeypatch.setattr("tensorops.kernels.dask._launch._PLAIN", tp.backends.settings.Settings())
    with tp.trace() as made:
        y = tp.silu(X)
    assert [(r.kernel, r.library) for r in made] == [("dask", "dask")]
    with tp.set_backend("numpy", providers=["generic"]), tp.trace() as computed:
        ran.clear()
        y.compute(scheduler="synchronous")
    assert len(computed) == 0
    assert set(ran) == {("numpy", "generic" if _providers.load("cpu") else "cpu")}
    with tp.set_backend("dask", providers=["generic"]):
        assert tp.silu.explain(X).kernel == "generic"


@pytest.mark.parametrize(
    ("providers", "expected"),
    [(["dask"], "cpu"), (["dask", "generic"], "generic"), (["dask", "cpu", "generic"], "cpu")],
)
def test_providers_named_after_dask_compute_the_blocks(providers, expected, monkeypatch):
    support.require_provider("cpu")
    log = Trace()
    inner = _launch.activate
    monkeypatch.setattr(_launch, "activate", lambda s: inner(Settings(s.backend, s.providers, log, s.tuned)))
    with tp.set_backend("dask", providers=providers):
        y = tp.silu(X)
    assert_matches(y.compute(scheduler="synchronous"), REFERENCES["silu"](A), "float32", tolerance=8)
    assert [(r.kernel, r.library) for r in log] == [(expected, "numpy")] * 3


def test_blocks_that_no_named_provider_takes_are_an_error():
    support.require_provider("cpu")
    with tp.set_backend("dask", providers=["dask", "mlx_fast"]):
        y = tp.silu(X)
    with pytest.raises(tp.KernelRefusedError, match="mlx_fast"):
        y.compute(scheduler="synchronous")


def test_tuned_values_and_providers_are_part_of_a_name():
    """Dask would otherwise take the result of another choice for that of this one."""
    support.require_provider("cpu")
    weight = da.from_array(A)
    names = [tp.linear(X, weight).name]
    with tp.tune("linear", "cpu", few_rows=2):
        names.append(tp.linear(X, weight).name)
    with tp.set_backend("dask", providers=["dask", "generic"]):
        names.append(tp.linear(X, weight).name)
    assert len(set(names)) == 3


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_every_scheduler(scheduler):
    y = tp.rms_norm(X, da.from_array(W)) + tp.add_rms_norm(X, X)[1]
    with dask.config.set({"multiprocessing.context": "spawn"}):
        result = y.compute(scheduler=scheduler, num_workers=2)
    assert_matches(result, REFERENCES["rms_norm"](A, W) + 2 * A.astype(float), "float32", tolerance=8)


def test_tasks_are_pickled_by_reference():
    task = Task(tp.rms_norm, ("x", "weight"), (("eps", 1e-5),), True)
    copy = pickle.loads(pickle.dumps(task))
    assert copy == task
    assert copy.operator is tp.rms_norm
    assert len(pickle.dumps(task)) < 300


def test_tasks_of_another_version_are_refused(monkeypatch):
    monkeypatch.setattr(tp, "__version__", "9.8.7")
    made = pickle.dumps(Task(tp.rms_norm, ("x",), (), True))
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match=r"pickled by tensorops 9\.8\.7"):
        pickle.loads(made)


def test_blocks_side_by_side_stay_on_one_thread():
    support.require_provider("cpu")
    from tensorops.kernels.cpu import _native

    seen = []

    def body(x: Array):
        before = _native.use_one_thread(True)
        _native.use_one_thread(before)
        seen.append((len(x), before))
        return x

    with support.temporary_operator(body, rows=elementwise("x")) as operator:
        register(operator)
        for chunks in (2, 6):
            operator(da.from_array(A, chunks=(chunks, 8))).compute(scheduler="synchronous")
    assert seen == [(2, True)] * 3 + [(6, False)]
    assert _native.use_one_thread(False) is False
