"""Operator options: all implementations of an operator accept and refuse the same values.

Options are read from the operators' signatures, so a new one is tested without being named here.
"""

import contextlib
import inspect
from fractions import Fraction

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops._providers import GENERIC
from tensorops.libraries import LIBRARIES
from tensorops.testing import CASES, InvalidCase
from tensorops.testing._running import PLAIN, check_refusal

NAN, INF, HUGE = float("nan"), float("inf"), 10**5000  # more digits than Python prints

NOTHING = object()
ANYWHERE = [b"1", 1j, [1.5], {}, NOTHING, int, np.array([1, 2]), np.array(["a"]), np.array([NOTHING])]

OF_ANOTHER_KIND = {
    "float": [*ANYWHERE, "", True, np.True_, (1.0,), np.array(0.5)],
    "int": [*ANYWHERE, "2", True, np.True_, 1.0, 1.5, NAN, np.float64(2.0), Fraction(2), (2,), np.array(2)],
    "bool": [*ANYWHERE, "", 0, 1, 1.0, (), np.array(True)],
    "str": [*ANYWHERE, 1, ("none",), np.array("none"), HUGE],
    "Dtype": [
        *ANYWHERE, "", "float32", True, 1, 1.0, (), float, np.floating, np.generic, object, np.dtype("int32"), np.int64,
        np.dtype("complex64"), np.dtype("U3"), np.dtype([("a", "f4")]),
    ],
    "int | tuple[int, ...]": [
        *ANYWHERE[1:], "-1", True, 1.0, np.array(-1), (True,), (NAN,), ((-1,),), [[-1]], ["a"],
        (np.array(-1),), ([],) * 9,
    ],
    "int | tuple[int | None, int | None]": [
        b"1", 1j, {}, NOTHING, int, "2", True, np.True_, 1.0, NAN, np.array(2), np.array([1, 2]), (True, 1), (1.0, 1),
        (1, "1"), (1, NAN), (1, np.array(1)), [1.5, 1], (1, (1,)),
    ],
}  # fmt: skip
WITHOUT_MEANING = {
    "float": [NAN, -INF, INF, np.float32(NAN), HUGE, -HUGE],
    "int": [],
    "bool": [],
    "str": ["", "a b", "\ud800", "a" * 10**6],
    "Dtype": [],
    "int | tuple[int, ...]": [HUGE, (), (-1, -1), (HUGE,), (-1,) * 1000],
    "int | tuple[int | None, int | None]": [(), (1,), [1], (1, 1, 1), (1,) * 1000, (-2, 1), (1, -(10**30)), (-HUGE, 1)],
    "eps": [-1e-9, -1],
    "norm_eps": [-1e-9, -1],
    "b": [0, -1.5],
    "base": [0, -10.0],
    "rope_base": [0, -10.0],
    "attention_factor": [0.0, -1],
    "rope_attention_factor": [0.0, -1],
    "softcap": [0.0, -1],
    "temperature": [-1e-9],
    "label_smoothing": [-0.1, 1.5],
    "z_loss": [-0.1],
    "top_p": [0, 1.5, -1],
    "min_p": [-0.1, 2],
    "axis": [99, -99, HUGE, -HUGE],
    "channel_axis": [0, 99, -99, HUGE, -HUGE],
    "num_groups": [0, -1, 3, 10**30, HUGE, -HUGE],
    "dims": [1, -2, 10**30, HUGE, -HUGE],
    "rope_dims": [1, -2, 10**30, HUGE, -HUGE],
    "num_heads": [0, -1, 3, 10**30, HUGE, -HUGE],
    "kv_num_heads": [0, -1, 3, 10**30, HUGE, -HUGE],
    "window": [0, -1, -(10**30), -HUGE],
    "top_k": [0, -1, -(10**30), -HUGE],
    "bits": [0, 3, 10**30, HUGE],
    "group_size": [0, -32, 3, 10**30, HUGE],
    "k": [-1, 10**30, HUGE, -HUGE],
}

RIGHT = {"float": 0.5, "int": 2, "bool": True, "int | tuple[int, ...]": -1, "int | tuple[int | None, int | None]": 2}
RIGHT_BY_NAME = {"axis": -1, "channel_axis": 1}


class String(str):
    __slots__ = ()


KINDS = {
    float: (float, np.float64, np.float32, np.float16, Fraction),
    int: (int, np.int64, np.int8, np.uint8),
    bool: (bool, np.bool_),
    str: (str, np.str_, String),
}


def options_of(operator):
    """Return the kinds of an operator's options by name, and whether each may be None."""
    found = {}
    for name, parameter in inspect.signature(operator).parameters.items():
        if "Array" not in parameter.annotation:
            kind = parameter.annotation.removesuffix(" | None")
            found[name] = (kind, kind != parameter.annotation)
    return found


EVERY = [(operator, name) for operator in OPERATORS.values() for name in options_of(operator)]


COMPOSED = ("moe", "multi_head_attention")  # whose graphs take Dask many seconds


def every_option_of_every_implementation():
    for operator, name in EVERY:
        for row in LIBRARIES.values():
            for implementation in support.implementations(operator, row):
                label = f"{operator.__name__}-{name}-{row.name}-{implementation}"
                slow = row.name == "dask" and operator.__name__ in COMPOSED
                marks = pytest.mark.exhaustive if slow else ()
                yield pytest.param(operator, name, row, implementation, id=label, marks=marks)


def wrong_values(operator, name, row):
    """Return pairs of an error and a value that raises it."""
    kind, optional = options_of(operator)[name]
    for value in (*OF_ANOTHER_KIND[kind], *(() if optional else (None,))):
        yield TypeError, value
    for shape in ((), (2,)):
        for dtype in (np.float32, np.int32):
            yield TypeError, support.there(np.ones(shape, dtype), row.name)
    for value in (*WITHOUT_MEANING[kind], *WITHOUT_MEANING.get(name, ())):
        yield ValueError, value


def right_value(operator, name, args, kwargs):
    """Return a value that an option may have, and that says the same in every type that can hold it."""
    kind, _ = options_of(operator)[name]
    bound = inspect.signature(operator).bind(*args, **kwargs)
    bound.apply_defaults()
    default = bound.arguments[name]
    if kind in ("str", "Dtype") or name in ("bits", "group_size"):  # which belong together
        return default
    return RIGHT_BY_NAME.get(name, RIGHT[kind])


OF_ANY_VALUE = {"weight_offset", "alpha", "beta", "negative_slope", "scale", "routed_scaling_factor", "ignore_index"}


def test_every_number_says_which_values_have_no_meaning():
    """A new option is here or in `WITHOUT_MEANING`, and so its refusals are tested on every implementation."""
    numbers = {name for operator, name in EVERY if options_of(operator)[name][0] in ("float", "int")}
    assert numbers - set(WITHOUT_MEANING) == OF_ANY_VALUE
    assert OF_ANY_VALUE.isdisjoint(WITHOUT_MEANING)


def test_every_option_is_under_test():
    kinds = {kind for operator in OPERATORS.values() for kind, _ in options_of(operator).values()}
    assert kinds == set(OF_ANOTHER_KIND)
    assert set(WITHOUT_MEANING) <= kinds | {name for _, name in EVERY}
    assert len(EVERY) > 30


@pytest.mark.costly(5)
@pytest.mark.dimensions
@pytest.mark.parametrize(("operator", "name", "row", "implementation"), list(every_option_of_every_implementation()))
def test_wrong_options_are_refused_in_the_operators_words(operator, name, row, implementation):
    support.require(row.name)
    args, kwargs = support.there(CASES[operator.__name__][0].build(dtype_name="float32"), row.name)
    backend = support.backend_of(row.name)
    with tp.backends.settings.activate(PLAIN):
        operator(*args, **kwargs)  # from here on a kernel may be asked first
    message = rf"^{operator.__name__}: .{{,60}}\b{name}\b.{{,200}}$"
    for error, value in wrong_values(operator, name, row):
        wrong = support.with_argument(operator, args, kwargs, name, value)
        case = InvalidCase(operator.__name__, name, lambda wrong=wrong: wrong, error, message)
        try:
            check_refusal(operator, case, wrong, backend, implementation)
        except AssertionError as failure:
            raise AssertionError(f"{name} of {type(value)}: {failure}") from failure


@pytest.mark.costly(8)
@pytest.mark.dimensions
@pytest.mark.parametrize(("operator", "name", "row", "implementation"), list(every_option_of_every_implementation()))
def test_right_options_of_every_type_mean_the_same(operator, name, row, implementation):
    support.require(row.name)
    args, kwargs = support.there(CASES[operator.__name__][0].build(dtype_name="float32"), row.name)
    plain = right_value(operator, name, args, kwargs)

    def results(value):
        """Return results on the host, and the implementation that made them."""
        given, options = support.with_argument(operator, args, kwargs, name, value)
        if implementation != GENERIC:
            chosen = tp.set_backend(support.backend_of(row.name).name, providers=[implementation, GENERIC])
        else:
            chosen = contextlib.nullcontext()
        with chosen, tp.trace() as log:
            call = operator.generic if implementation == GENERIC else operator
            found = call(*given, **rng_anew(options))
        return support.back(found), log[0].kernel

    expected, ran = results(plain)
    values = [(kind(plain), plain) for kind in KINDS.get(type(plain), ()) if kind is not np.uint8 or plain > 0]
    if options_of(operator)[name][0] == "float":
        values += [(kind(1), 1.0) for kind in (float, int, np.int64, np.uint8, Fraction)]
    for value, equal in values:
        expected, ran = results(equal)
        found, by = results(value)
        same = by == ran
        assert same or isinstance(value, Fraction) or implementation not in ("cpu", "torch_cpu"), type(value)
        for ours, theirs in zip(support.arrays_in(found), support.arrays_in(expected), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=0 if same else 1e-4, atol=0 if same else 1e-5)


def rng_anew(options):
    """Return options in which a generator, if any, is restarted."""
    if isinstance(options.get("rng"), np.random.Generator):
        return options | {"rng": np.random.default_rng(0)}
    return options


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.exhaustive if n == "jax" else ()) for n in LIBRARIES if n != "cupy"]
)
def test_integers_beyond_any_size_that_mean_something(name):
    support.require(name)
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 1, 2, 5, 4)).astype(np.float32)
    logits, uniform = rng.standard_normal((6, 5)).astype(np.float32), rng.random(6, dtype=np.float32)
    targets = np.arange(6) % 5
    q, k, logits, uniform, targets = support.there((q, k, logits, uniform, targets), name)
    pairs = [
        (tp.scaled_dot_product_attention, (q, k, k), {"window": 10**30, "is_causal": True}, {"is_causal": True}),
        (tp.sample, (logits,), {"top_k": 10**30, "rng": uniform}, {"rng": uniform}),
        (tp.cross_entropy, (logits, targets), {"ignore_index": 10**30}, {}),
        (tp.cross_entropy, (logits, targets), {"ignore_index": -(10**30)}, {}),
    ]
    for operator, args, options, same in pairs:
        for call in (operator, operator.generic):
            found, expected = support.back((call(*args, **options), call(*args, **same)))
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
