"""`mlx.core.fast`: automatic only where it keeps the promises, else by name; and declared deviations are real."""

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops.testing import CASES, REFERENCES, assert_matches
from tensorops.testing._stored_blocks import random_blocks

support.require("mlx")
support.require_provider("mlx_fast")

FAST = [name for name, operator in OPERATORS.items() if "mlx_fast" in operator.kernels]
NORMS = ["rms_norm", "add_rms_norm", "layer_norm"]


def first_case(name, dtype):
    args, kwargs = CASES[name][0].build(dtype_name=dtype)
    return support.there((args, kwargs), "mlx")


def by_name():
    return tp.set_backend("mlx", providers=["mlx_fast"])


def test_which_operators_it_has():
    assert set(FAST) == {*NORMS, "rope", "scaled_dot_product_attention"}


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_it_is_chosen_where_it_does_not_deviate(name, dtype):
    operator = OPERATORS[name]
    args, kwargs = first_case(name, dtype)
    plain = operator.explain(*args, **kwargs)
    with by_name():
        named = operator.explain(*args, **kwargs)
        with tp.trace() as log:
            operator(*args, **kwargs)
    assert (named.kernel, log[0].kernel) == ("mlx_fast", "mlx_fast")
    if name in NORMS and dtype == "float16":
        assert (plain.kernel, plain.deviation, named.deviation) == ("mlx_fast", "", "")
        return
    assert plain.kernel == "generic"
    assert named.deviation.startswith(f"deviates in {dtype}: ")
    assert plain.refused["mlx_fast"] == f"{named.deviation}; it runs where it is named: providers=['mlx_fast']"
    assert named.deviation in str(named)
    assert named.deviation in named._repr_html_()


@pytest.mark.parametrize("name", FAST)
def test_calls_after_the_first_choose_alike(name):
    for dtype in ("float16", "float32", "float16", "bfloat16", "float16"):
        args, kwargs = first_case(name, dtype)
        chosen = OPERATORS[name].explain(*args, **kwargs).kernel
        with tp.trace() as log:
            OPERATORS[name](*args, **kwargs)
        OPERATORS[name](*args, **kwargs)  # may leave a plan, which must not serve another dtype
        assert log[0].kernel == chosen


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_squares_overflow_as_declared(name, dtype):
    (case,) = (case for case in CASES[name] if "overflow" in case.tags and dtype in case.dtypes)
    args, kwargs = case.build(dtype_name=dtype)
    expected = REFERENCES[name](*args, **kwargs)
    there, options = support.there((args, kwargs), "mlx")

    def check(result):
        one, wanted = (result[0], expected[0]) if isinstance(expected, tuple) else (result, expected)
        assert_matches(support.back(one), wanted, dtype, tolerance=case.tolerance_for(dtype))

    check(OPERATORS[name](*there, **options))
    with by_name(), pytest.raises(AssertionError, match="differ"):
        check(OPERATORS[name](*there, **options))


def test_attention_overflows_as_declared(rng):
    q, k = (rng.standard_normal((1, 1, 4, 64)).astype(np.float16) * np.float16(200) for _ in range(2))
    v = rng.standard_normal((1, 1, 4, 64)).astype(np.float16)
    args = support.there((q, k, v), "mlx")
    expected = REFERENCES["scaled_dot_product_attention"](q, k, v)
    assert_matches(support.back(tp.scaled_dot_product_attention(*args)), expected, "float16", tolerance=4)
    with by_name():
        assert np.isnan(support.back(tp.scaled_dot_product_attention(*args))).any()


def test_angles_are_rounded_as_declared(rng):
    x = rng.standard_normal((1, 2, 1, 64)).astype(np.float32)
    args = support.there((x, np.array([8191])), "mlx")
    expected = REFERENCES["rope"](x, np.array([8191]))
    assert_matches(support.back(tp.rope(*args)), expected, "float32", tolerance=8)
    with by_name(), pytest.raises(AssertionError, match="differ"):
        assert_matches(support.back(tp.rope(*args)), expected, "float32", tolerance=800)


@pytest.mark.parametrize("columns", [1 << 20, (1 << 20) + 1])
def test_float16_rows_are_taken_as_long_as_their_sums_are_exact(columns, rng):
    x = (1 + 0.1 * rng.standard_normal((1, columns))).astype(np.float16)
    there = support.there(x, "mlx")
    explained = tp.layer_norm.explain(there)
    assert explained.kernel == ("mlx_fast" if columns == 1 << 20 else "generic"), explained
    assert_matches(support.back(tp.layer_norm(there)), REFERENCES["layer_norm"](x), "float16", tolerance=2)


def test_attention_to_blocks_goes_to_the_body(rng):
    q, blocks = rng.standard_normal((1, 2, 3, 32)).astype(np.float32), random_blocks(rng, "q8_0", 1, 1, 5, 32)
    there = support.there((q, blocks, blocks), "mlx")
    with tp.set_backend("mlx", providers=["mlx_fast", "generic"]):
        refused = tp.scaled_dot_product_attention.explain(*there, kv_format="q8_0").refused["mlx_fast"]
        y = support.back(tp.scaled_dot_product_attention(*there, kv_format="q8_0"))
    assert refused == "k has dtype uint8, mlx.core.fast takes float16, bfloat16 and float32"
    expected = REFERENCES["scaled_dot_product_attention"](q, blocks, blocks, kv_format="q8_0")
    assert_matches(y, expected, "float32", tolerance=32, scale_axis=None)


def test_rope_with_what_mlx_lacks_goes_to_the_body(rng):
    x, positions = rng.standard_normal((1, 2, 3, 8)).astype(np.float32), np.arange(3)
    for options, reason in (
        ({"cos": np.ones((3, 4), np.float32), "sin": np.ones((3, 4), np.float32)}, "cos and sin are given"),
        ({"attention_factor": 1.5}, "attention_factor is 1.5"),
    ):
        args, there = support.there(((x, positions), options), "mlx")
        with tp.set_backend("mlx", providers=["mlx_fast", "generic"]):
            assert reason in tp.rope.explain(*args, **there).refused["mlx_fast"]
            y = support.back(tp.rope(*args, **there))
        assert_matches(y, REFERENCES["rope"](x, positions, **options), "float32", tolerance=8)
