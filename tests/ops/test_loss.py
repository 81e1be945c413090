"""Losses: the references by hand, and targets of every dtype in every library, for kernels and bodies."""

import math
import weakref

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import support
import tensorops as tp
from support import close, to_torch
from tensorops._dtypes import INTEGER
from tensorops.libraries import LIBRARIES
from tensorops.ops import loss
from tensorops.testing import REFERENCES, assert_matches, loss as references

NUMBERS = np.array([[0, 3, 1], [2, 2, 5]])


@pytest.mark.costly(4)
@pytest.mark.parametrize("options", [{}, {"ignore_index": 2}, {"ignore_index": -1, "reduction": "none"}], ids=str)
@pytest.mark.parametrize("dtype", INTEGER)
def test_cross_entropy_takes_targets_of_every_dtype(library, dtype, options, rng):
    logits = rng.standard_normal((2, 3, 6)).astype(np.float32)
    targets, x = support.integers_there(NUMBERS, dtype, library), support.there(logits, library.name)
    expected = REFERENCES["cross_entropy"](logits, NUMBERS, **options)
    for call in (tp.cross_entropy, tp.cross_entropy.generic):
        assert_matches(support.back(call(x, targets, **options)), expected, "float32", tolerance=16)


@pytest.mark.parametrize("dtype", INTEGER)
def test_a_target_to_be_ignored_may_be_any_number_of_its_dtype(library, dtype, rng):
    """The largest and the smallest number of the dtype, which are not classes."""
    logits = rng.standard_normal((2, 3, 6)).astype(np.float32)
    x = support.there(logits, library.name)
    limits = np.iinfo(dtype)
    for ignored in {limits.max, limits.min if limits.min else limits.max}:
        some = NUMBERS.astype(dtype)
        some[0, 1] = ignored
        if library.name == "jax" and dtype.endswith("64"):
            pytest.skip("jax holds no such numbers here")
        targets = support.integers_there(some, dtype, library)
        expected = REFERENCES["cross_entropy"](logits, np.where(some == ignored, -100, NUMBERS))
        for call in (tp.cross_entropy, tp.cross_entropy.generic):
            y = support.back(call(x, targets, ignore_index=int(ignored)))
            assert_matches(y, expected, "float32", tolerance=16)


@pytest.mark.costly(2)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_unsigned_targets_are_never_negative_ones(dtype, rng):
    """What the default `ignore_index` becomes in a byte, 156, is a class like others."""
    support.require("numpy")
    logits = rng.standard_normal((2, 200)).astype(np.float32)
    targets = np.array([156, 3])
    expected = REFERENCES["cross_entropy"](logits, targets)
    for row in LIBRARIES.values():
        if not support.why_not(row.name) and not (row.name == "jax" and dtype == "uint64"):
            x, t = support.there((logits, targets.astype(dtype)), row.name)
            for call in (tp.cross_entropy, tp.cross_entropy.generic):
                assert_matches(support.back(call(x, t)), expected, "float32", tolerance=16)


inf, nan = np.inf, np.nan


LOGITS = np.log([[1.0, 1.0, 2.0], [3.0, 1.0, 4.0], [1.0, 1.0, 1.0]])


def test_cross_entropy_by_hand():
    losses = [math.log(2), math.log(8), math.log(3)]
    targets = [2, 1, 0]
    close(references.cross_entropy(LOGITS, targets, reduction="none"), losses)
    close(references.cross_entropy(LOGITS, targets, reduction="sum"), sum(losses))
    close(references.cross_entropy(LOGITS, targets), sum(losses) / 3)
    close(references.cross_entropy(LOGITS, [2, -100, 0]), (losses[0] + losses[2]) / 2)
    close(references.cross_entropy(LOGITS, targets, ignore_index=1, reduction="none"), [losses[0], 0, losses[2]])
    smoothed = 0.7 * math.log(2) + 0.3 * (math.log(4) + math.log(4) + math.log(2)) / 3
    close(references.cross_entropy(LOGITS[0], 2, label_smoothing=0.3), smoothed)


def test_cross_entropy_where_nothing_counts():
    assert np.isnan(references.cross_entropy(LOGITS, [-100] * 3))
    assert references.cross_entropy(LOGITS, [-100] * 3, reduction="sum") == 0.0
    assert_array_equal(references.cross_entropy([[nan, 0.0]], [-100], reduction="none"), [0.0])


def test_cross_entropy_of_forbidden_classes():
    logits = [[-inf, 0.0, 0.0]]
    close(references.cross_entropy(logits, [1]), math.log(2))
    assert references.cross_entropy(logits, [0]) == inf


def test_cross_entropy_refuses_an_unknown_reduction():
    with pytest.raises(ValueError, match="reduction is 'max'"):
        references.cross_entropy(LOGITS, [0, 0, 0], reduction="max")


OPTIONS = [{}, {"label_smoothing": 0.2}, {"label_smoothing": 1.0}]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["numbers", "weight", "probabilities", "weighted probabilities"])
def test_cross_entropy_is_that_of_torch(rng, kind, options, reduction):
    torch = pytest.importorskip("torch")
    logits, numbers = rng.standard_normal((6, 9)), np.array([0, 8, -100, 3, 4, -100])
    targets = numbers if kind in ("numbers", "weight") else rng.dirichlet(np.ones(9), 6)
    weight = rng.random(9) if "weight" in kind else None
    tensors = to_torch(torch, *(a for a in (logits, targets, weight) if a is not None))
    expected = torch.nn.functional.cross_entropy(*tensors, reduction=reduction, **options).numpy()
    for call in (references.cross_entropy, tp.cross_entropy, tp.cross_entropy.generic):
        actual = call(logits, targets, weight, reduction=reduction, **options)
        close(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_z_loss_is_the_square_of_torchs_logsumexp(rng, reduction):
    torch = pytest.importorskip("torch")
    logits, targets = rng.standard_normal((6, 9)), np.array([0, 8, -100, 3, 4, -100])
    tl, tt = to_torch(torch, logits, targets)
    squares = torch.where(tt == -100, 0.0, torch.logsumexp(tl, -1) ** 2)
    losses = torch.nn.functional.cross_entropy(tl, tt, reduction="none") + 0.3 * squares
    expected = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / 4}[reduction].numpy()
    for call in (references.cross_entropy, tp.cross_entropy, tp.cross_entropy.generic):
        close(call(logits, targets, z_loss=0.3, reduction=reduction), expected, rtol=1e-12)


def test_weights_do_not_apply_to_z_loss(rng):
    """The mean of squares is over the elements that count, as Liger's."""
    logits, targets, weight = rng.standard_normal((4, 5)), np.array([1, -100, 0, 3]), rng.random(5)
    squares = np.log(np.exp(logits).sum(-1)) ** 2
    mean = references.cross_entropy(logits, targets, weight) + 0.2 * squares[[0, 2, 3]].mean()
    for call in (references.cross_entropy, tp.cross_entropy, tp.cross_entropy.generic):
        close(call(logits, targets, weight, z_loss=0.2), mean, rtol=1e-12)


@pytest.mark.costly(3)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_go_with_float32_weights_and_probabilities(library, dtype, rng):
    if dtype not in support.dtypes_of(library.name):
        pytest.skip(f"{library.name} holds no {dtype}")
    logits = support.normal(rng, 3, 7, dtype=dtype)
    weight = rng.random(7).astype(np.float32)
    for targets in (np.array([1, -100, 6]), rng.dirichlet(np.ones(7), 3).astype(np.float32)):
        expected = REFERENCES["cross_entropy"](logits, targets, weight)
        x, t, w = support.there((logits, targets, weight), library.name)
        for call in (tp.cross_entropy, tp.cross_entropy.generic):
            y = support.back(call(x, t, w))
            assert y.dtype == logits.dtype
            assert_matches(y, expected, dtype, tolerance=2)


def test_what_a_mistaken_target_is_told(rng):
    logits = rng.standard_normal((3, 5))
    with pytest.raises(ValueError, match=r"targets has the index 5, outside 0 … 4"):
        tp.cross_entropy(logits, np.array([0, 5, 1]), np.ones(5))
    with pytest.raises(ValueError, match=r"targets has shape \(3, 4\).*expected \(3, 5\) for probabilities"):
        tp.cross_entropy(logits, rng.random((3, 4)))
    with pytest.raises(ValueError, match=r"weight has shape \(4,\), but there are 5 classes"):
        tp.cross_entropy(logits, np.array([0, 2, 1]), np.ones(4))
    with pytest.raises(ValueError, match=r"z_loss is -0.1, expected 0 or more"):
        tp.cross_entropy(logits, np.array([0, 2, 1]), z_loss=-0.1)


@pytest.mark.parametrize("many", [False, True], ids=["few", "more than int32 counts"])
def test_a_target_that_is_not_checked_gives_nan(many, monkeypatch, rng):
    """JAX's values are not read, so the body meets what other libraries refuse."""
    support.require("jax")
    if many:
        monkeypatch.setattr("tensorops.ops.loss.prod", lambda shape: 2**31)
    logits, targets = rng.standard_normal((4, 5)).astype(np.float32), np.array([1, 5, -3, -100])
    there = support.there((logits, targets), "jax")
    losses = support.back(tp.cross_entropy.generic(*there, reduction="none"))
    np.testing.assert_array_equal(np.isnan(losses), [False, True, True, False])
    assert_matches(
        losses[:1], REFERENCES["cross_entropy"](logits[:1], targets[:1], reduction="none"), "float32", tolerance=4
    )
    assert losses[3] == 0
    assert np.isnan(support.back(tp.cross_entropy.generic(*there)))


# --- linear_cross_entropy ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "features", "classes", "itemsize", "expected"),
    [
        (1, 8, 10, 4, 1),
        (512, 64, 1000, 4, 512),  # all logits take less than 64 MiB
        (8192, 512, 128 * 1024, 4, 128),  # 64 MiB
        (8192, 512, 128 * 1024, 8, 64),
        (8192, 4096, 128 * 1024, 4, 256),  # as much as x
        (129, 512, 128 * 1024, 4, 65),  # two blocks of about as many rows
        (3, 2, 10**9, 4, 1),  # a row is never divided
    ],
)
def test_the_rows_of_a_block(rows, features, classes, itemsize, expected):
    assert loss.rows_per_block(rows, features, classes, itemsize) == expected


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 4 rows and one of 3 for 11 rows of 2 features and 5 classes."""
    monkeypatch.setattr(loss, "_BLOCK_BYTES", 0)
    assert loss.rows_per_block(11, 2, 5, 4) == 4


def in_blocks(rng):
    x, weight, bias = rng.standard_normal((11, 2)), rng.standard_normal((5, 2)), rng.standard_normal(5)
    targets = rng.integers(0, 5, 11)
    targets[::4] = -100
    return x, weight, targets, bias, rng.random(5)


BLOCK_OPTIONS = [
    {},
    {"reduction": "none", "label_smoothing": 0.2},
    {"reduction": "sum", "z_loss": 0.3},
    {"label_smoothing": 0.1, "z_loss": 0.3},
]


@pytest.mark.costly(3)
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("options", BLOCK_OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["numbers", "probabilities"])
def test_losses_of_several_blocks(library, kind, options, rng):
    x, weight, targets, bias, ce_weight = tp.testing.cast(in_blocks(rng), "float32")
    if kind == "probabilities":
        targets = rng.dirichlet(np.ones(5), 11).astype(np.float32)
    for args in ((x, weight, targets), (x, weight, targets, bias, ce_weight)):
        expected = REFERENCES["linear_cross_entropy"](*args, **options)
        y = tp.linear_cross_entropy.generic(*support.there(args, library.name), **options)
        assert_matches(support.back(y), expected, "float32", tolerance=32)


def gradients_of_reference(x, weight, targets, bias, ce_weight, **options):
    """Return the derivatives of the float64 reference by central differences, for x, weight and bias."""
    found = []
    for i in (0, 1, 3):
        gradient = np.empty_like((x, weight, targets, bias)[i])
        for place in np.ndindex(gradient.shape):
            values = []
            for step in (1e-6, -1e-6):
                args = [x.copy(), weight.copy(), targets, bias.copy(), ce_weight]
                args[i][place] += step
                values.append(references.linear_cross_entropy(*args, **options))
            gradient[place] = (values[0] - values[1]) / 2e-6
        found.append(gradient)
    return found


GRADIENT_OPTIONS = [{}, {"reduction": "sum", "z_loss": 0.3}, {"label_smoothing": 0.1, "z_loss": 0.3}]


@pytest.mark.costly(2)
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("options", GRADIENT_OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["torch", "jax", "jax jit", "mlx"])
def test_gradients_of_several_blocks(name, options, rng):
    args = in_blocks(rng)
    expected = gradients_of_reference(*args, **options)
    name, _, jit = name.partition(" ")
    support.require(name)
    with support.holding(name, "float64"):
        x, weight, targets, bias, ce_weight = support.there(args, name)

        def loss_of(x, weight, bias):
            return tp.linear_cross_entropy(x, weight, targets, bias, ce_weight, **options)

        if name == "torch":
            moving = [a.requires_grad_() for a in (x, weight, bias)]
            loss_of(*moving).backward()
            found = [a.grad for a in moving]
        else:
            import importlib

            derivative = importlib.import_module("mlx.core" if name == "mlx" else name).grad(loss_of, (0, 1, 2))
            if jit:
                derivative = importlib.import_module("jax").jit(derivative)
            found = derivative(x, weight, bias)
        for actual, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(support.back(actual), wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.costly
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # in gradcheck itself
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("options", GRADIENT_OPTIONS, ids=str)
def test_torch_checks_derivatives_of_several_blocks(options, rng):
    torch = pytest.importorskip("torch")
    x, weight, targets, bias, ce_weight = to_torch(torch, *in_blocks(rng))

    def loss_of(x, weight, bias):
        return tp.linear_cross_entropy(x, weight, targets, bias, ce_weight, **options)

    moving = tuple(a.requires_grad_() for a in (x, weight, bias))
    assert torch.autograd.gradcheck(loss_of, moving, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(loss_of, moving)


@pytest.mark.usefixtures("small_blocks")
def test_blocks_under_torch_func_and_compile(rng):
    torch = pytest.importorskip("torch")
    x, weight, targets, _, _ = to_torch(torch, *in_blocks(rng))

    def loss_of(x, weight):
        return tp.linear_cross_entropy(x, weight, targets)

    moving = [a.clone().requires_grad_() for a in (x, weight)]
    loss_of(*moving).backward()
    found = torch.func.grad(loss_of, (0, 1))(x, weight)
    for actual, a in zip(found, moving, strict=True):
        torch.testing.assert_close(actual, a.grad)
    compiled = torch.compile(loss_of, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, weight), loss_of(x, weight))
    torch.compiler.reset()


@pytest.mark.usefixtures("small_blocks")
def test_jax_compiles_the_loop_over_blocks_once(rng):
    jax = pytest.importorskip("jax")
    from tensorops.libraries.jax import _compiled_over_blocks

    args = support.there(tp.testing.cast(in_blocks(rng)[:3], "float32"), "jax")
    body = tp.linear_cross_entropy.generic
    body(*args)
    before = _compiled_over_blocks()._cache_size()
    body(*args)
    assert _compiled_over_blocks()._cache_size() == before
    assert "while" in jax.jit(body).lower(*args).as_text()


@pytest.mark.usefixtures("small_blocks")
def test_dask_stays_lazy(rng):
    support.require("dask")
    import dask.array as da

    x, weight, targets, *_ = in_blocks(rng)
    lazy = da.from_array(x, chunks=(4, 2)), da.from_array(weight), da.from_array(targets, chunks=4)
    losses = tp.linear_cross_entropy(*lazy, reduction="none")
    assert tp.linear_cross_entropy.explain(*lazy, reduction="none").kernel == "dask"
    assert isinstance(losses, da.Array)
    close(losses.compute(), references.linear_cross_entropy(x, weight, targets, reduction="none"), rtol=1e-12)
    mean = tp.linear_cross_entropy(*lazy)
    assert isinstance(mean, da.Array)
    close(mean.compute(), references.linear_cross_entropy(x, weight, targets), rtol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_linear_cross_entropy_is_that_of_torch(rng, options, reduction):
    torch = pytest.importorskip("torch")
    function = getattr(torch.nn.functional, "linear_cross_entropy", None)
    if function is None:
        pytest.skip("this version of torch has no linear_cross_entropy")
    x, weight, targets, bias, ce_weight = in_blocks(rng)
    tx, tw, tt, tb, tc = to_torch(torch, x, weight, targets, bias, ce_weight)
    expected = function(tx, tw, tt, linear_bias=tb, weight=tc, reduction=reduction, ignore_index=-100, **options)
    for call in (references.linear_cross_entropy, tp.linear_cross_entropy):
        actual = call(x, weight, targets, bias, ce_weight, reduction=reduction, **options)
        close(actual, expected.numpy(), rtol=1e-12)


# Peak memory beside the arguments, gradients and rows, in logits of a block: of 64 rows and 4096 classes, 1 MiB.
SIZES = (512, 16, 4096)
BLOCK = 64 * 4096 * 4
VECTORS = 0.1  # numbers of each row or class


@pytest.fixture
def large(monkeypatch, rng):
    monkeypatch.setattr(loss, "_BLOCK_BYTES", BLOCK)
    rows, features, classes = SIZES
    assert loss.rows_per_block(rows, features, classes, 4) * classes * 4 == BLOCK
    x, weight = support.normal(rng, rows, features), support.normal(rng, classes, features)
    return x, weight, rng.integers(0, classes, rows)


@pytest.mark.parametrize("options", GRADIENT_OPTIONS, ids=str)
def test_numpy_holds_two_blocks(large, options):
    import tracemalloc

    tp.linear_cross_entropy.generic(*large, **options)  # imports and plans stay
    tracemalloc.start()
    try:
        tp.linear_cross_entropy.generic(*large, **options)
        assert tracemalloc.get_traced_memory()[1] <= (2 + kept_by_callers() + VECTORS) * BLOCK
    finally:
        tracemalloc.stop()


def kept_by_callers():
    """Return whether callers keep what they pass on, as after an error in a function that TorchDynamo has compiled.

    It then stays between Python's calls, of all functions.
    """

    def is_alive_after_del(x):
        seen = weakref.ref(x)
        del x
        return seen() is not None

    class Kept:
        """What can be referred to weakly."""

    return is_alive_after_del(Kept())


def peak_of_torch(torch, function):
    """Return the largest number of bytes that torch's allocator held at a time."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        function()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
    assert held.size > 10
    return int(held.max())


@pytest.mark.costly
@pytest.mark.parametrize(
    ("options", "blocks"),
    [({}, 2), ({"z_loss": 0.3}, 2), ({"label_smoothing": 0.1}, 3)],
    ids=str,
)
def test_torch_holds_two_blocks(large, options, blocks):
    torch = pytest.importorskip("torch")
    x, weight, targets = to_torch(torch, *large)

    def forward():
        with torch.no_grad():
            tp.linear_cross_entropy.generic(x, weight, targets, **options)

    assert peak_of_torch(torch, forward) <= (2 + kept_by_callers() + VECTORS) * BLOCK
    moving = [a.clone().requires_grad_() for a in (x, weight)]

    def backward():
        tp.linear_cross_entropy(*moving, targets, **options).backward()

    backward()
    gradients = sum(a.grad.nbytes for a in moving) + moving[1].nbytes  # one of weight is added to the others
    for a in moving:
        a.grad = None
    assert peak_of_torch(torch, backward) - gradients <= (blocks + kept_by_callers() + VECTORS) * BLOCK


@pytest.mark.costly
@pytest.mark.parametrize("options", GRADIENT_OPTIONS, ids=str)
def test_xla_holds_two_blocks(large, options):
    jax = pytest.importorskip("jax")
    x, weight, targets = support.there(large, "jax")

    def loss_of(x, weight):
        return tp.linear_cross_entropy(x, weight, targets, **options)

    for function, sums in ((loss_of, 0), (jax.grad(loss_of, (0, 1)), large[1].nbytes)):  # the weight's gradient grows
        analysis = jax.jit(function).lower(x, weight).compile().memory_analysis()
        assert analysis.temp_size_in_bytes - sums <= (2 + VECTORS) * BLOCK


@pytest.mark.costly
@pytest.mark.parametrize("options", GRADIENT_OPTIONS, ids=str)
def test_mlx_holds_two_blocks(large, options):
    mx = pytest.importorskip("mlx.core")
    x, weight, targets = support.there(large, "mlx")

    def loss_of(x, weight):
        return tp.linear_cross_entropy(x, weight, targets, **options)

    # Three gradients of the weight: the sum of those so far, that of a block, and the new sum.
    for function, sums in ((loss_of, 0), (mx.grad(loss_of, (0, 1)), 3 * weight.nbytes + x.nbytes)):
        mx.eval(function(x, weight))
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(function(x, weight))
        assert mx.get_peak_memory() - before - sums <= (2 + VECTORS) * BLOCK
