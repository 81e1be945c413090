"""Frequencies for longer contexts: against the papers' formulas, transformers' values, and in every library."""

import math

import numpy as np
import pytest

import support
import tensorops as tp
from support import close
from tensorops import rope_scaling
from tensorops.testing import REFERENCES, assert_matches

SHORT, LONG = [1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 2.5, 3.0], [1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 64.0]
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}
LONGROPE = {
    "short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 4096, "factor": 32.0,
}  # fmt: skip


# --- the formulas, as in the papers and their programs -----------------------------------------------


def plain(dims, base):
    return np.power(base, -np.arange(0, dims, 2) / dims)


def llama3_reference(dims, base, factor, low, high, length):
    """Return the frequencies as `apply_scaling` of meta-llama/llama-models, one by one."""
    new = []
    for freq in plain(dims, base):
        wavelength = 2 * np.pi / freq
        if wavelength < length / high:
            new.append(freq)
        elif wavelength > length / low:
            new.append(freq / factor)
        else:
            smooth = (length / wavelength - low) / (high - low)
            new.append((1 - smooth) * freq / factor + smooth * freq)
    return np.array(new)


def yarn_reference(dims, base, factor, length, fast=32.0, slow=1.0, truncate=True):
    """Return what the authors' `LlamaYaRNScaledRotaryEmbedding` computes (github.com/jquesnelle/yarn)."""
    bounds = [dims * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(base)) for turns in (fast, slow)]
    low, high = (np.floor(bounds[0]), np.ceil(bounds[1])) if truncate else bounds
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    extrapolated = 1 - np.clip((np.arange(dims // 2) - low) / (high - low), 0, 1)
    return plain(dims, base) / factor * (1 - extrapolated) + plain(dims, base) * extrapolated


@pytest.mark.parametrize("dims", [0, 2, 6, 64, 128])
@pytest.mark.parametrize("base", [10000, 500000.0])
def test_linear_divides_all(dims, base):
    freqs, factor = rope_scaling.linear(dims, factor=2.5, base=base)
    assert freqs.dtype == np.float64
    assert factor == 1.0
    close(freqs, plain(dims, base) / 2.5)


@pytest.mark.parametrize("dims", [2, 16, 128])
@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("length", [16, 1000, 8192])
def test_llama3(dims, base, length):
    options = {"factor": 8.0, "low_freq_factor": 1.5, "high_freq_factor": 5.0}
    freqs, factor = rope_scaling.llama3(dims, **options, original_max_position_embeddings=length, base=base)
    assert factor == 1.0
    close(freqs, llama3_reference(dims, base, 8.0, 1.5, 5.0, length), rtol=1e-13)


@pytest.mark.parametrize("dims", [2, 16, 128])
@pytest.mark.parametrize("base", [2, 10000.0, 1000000.0])
@pytest.mark.parametrize("length", [7, 2048, 32768])
@pytest.mark.parametrize("truncate", [True, False])
def test_yarn(dims, base, length, truncate):
    freqs, factor = rope_scaling.yarn(
        dims, factor=16.0, original_max_position_embeddings=length, base=base, truncate=truncate
    )
    close(factor, 0.1 * math.log(16.0) + 1.0)
    close(freqs, yarn_reference(dims, base, 16.0, length, truncate=truncate), rtol=1e-12)


def test_yarn_keeps_frequencies_with_many_turns_and_divides_those_with_few():
    freqs = rope_scaling.yarn(128, **YARN, beta_fast=64.0, beta_slow=2.0).freqs
    close(freqs, yarn_reference(128, 10000.0, 4.0, 32768, 64.0, 2.0), rtol=1e-13)
    turns = 32768 * plain(128, 10000.0) / (2 * np.pi)
    ratio = freqs / plain(128, 10000.0)
    close(ratio[turns > 75], 1.0, rtol=1e-12)
    close(ratio[turns < 1.7], 0.25, rtol=1e-12)
    assert ((ratio[(turns < 60) & (turns > 2.3)] < 1) & (ratio[(turns < 60) & (turns > 2.3)] > 0.25)).all()


def test_the_factor_of_yarn():
    def factor(**options):
        return rope_scaling.yarn(8, original_max_position_embeddings=4096, **options).attention_factor

    assert factor(factor=1.0) == factor(factor=0.5) == 1.0
    assert factor(factor=4.0, attention_factor=0.8) == 0.8
    expected = (0.1 * 1.2 * math.log(40) + 1) / (0.1 * 0.7 * math.log(40) + 1)
    close(factor(factor=40.0, mscale=1.2, mscale_all_dim=0.7), expected)
    assert factor(factor=40.0, mscale=1.2) == factor(factor=40.0, mscale=0.0, mscale_all_dim=1.0) == factor(factor=40.0)


def test_longrope_divides_by_the_factors_of_the_length():
    for length, factors in ((1, SHORT), (4096, SHORT), (4097, LONG)):
        freqs, factor = rope_scaling.longrope(16, **LONGROPE, length=length)
        close(freqs, plain(16, 10000.0) / factors, rtol=1e-13)
        close(factor, math.sqrt(1 + math.log(32) / math.log(4096)))
    arrays = LONGROPE | {"long_factor": np.asarray(LONG, np.float32)}
    close(rope_scaling.longrope(16, **arrays, length=5000).freqs, freqs)
    assert rope_scaling.longrope(16, **LONGROPE | {"factor": 1.0}, length=1).attention_factor == 1.0
    assert rope_scaling.longrope(16, **LONGROPE, length=1, attention_factor=1.5).attention_factor == 1.5


# Every eighth part of the frequencies that transformers 5.23 computes in float32, and its attention factor.
TRANSFORMERS = {
    "linear": (
        (16, {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}),
        [0.25, 0.07905694, 0.025, 0.007905695, 0.0025, 0.0007905695, 0.00025, 7.905695e-05],
        1.0,
    ),
    "llama3": (
        (128, {"rope_type": "llama3", **LLAMA3, "rope_theta": 500000.0}),
        [1.0, 0.1939228, 0.03760603, 0.007292665, 0.000524846, 3.428102e-05, 6.64787e-06, 1.289173e-06],
        1.0,
    ),
    "yarn": (
        (128, {"rope_type": "yarn", **YARN, "rope_theta": 1000000.0}),
        [1.0, 0.1778279, 0.03162278, 0.005375321, 0.0006029411, 4.445699e-05, 7.905694e-06, 1.405853e-06],
        1.138629436111989,
    ),
    "DeepSeek": (
        (64, {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
              "mscale": 1.0, "mscale_all_dim": 0.707}),
        [1.0, 0.3162278, 0.1, 0.02687936, 0.0055, 0.0007905694, 2.5e-05, 7.905694e-06],
        1.0857263992561355,
    ),
    "gpt-oss": (
        (64, {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
              "beta_slow": 1.0, "truncate": False, "rope_theta": 150000}),
        [1.0, 0.225418, 0.05081327, 0.006794959, 0.0004564839, 1.818834e-05, 4.099978e-06, 9.24209e-07],
        1.3465735902799727,
    ),
    "longrope": (
        (16, {"rope_type": "longrope", **LONGROPE}),
        [1.0, 0.1581139, 0.025, 0.003952847, 0.000625, 0.0001317616, 3.125e-05, 4.941059e-06],
        1.1902380714238083,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_configurations_give_the_values_of_transformers(name):
    (head_dim, config), expected, factor = TRANSFORMERS[name]
    freqs, attention_factor = rope_scaling.from_config(head_dim, config, length=5000)
    assert freqs.shape == (head_dim // 2,)
    close(freqs[:: max(1, head_dim // 16)], expected, rtol=4e-7)
    close(attention_factor, factor)


def test_configurations_are_completed_from_outside():
    close(rope_scaling.from_config(8, None).freqs, plain(8, 10000.0))
    close(rope_scaling.from_config(8, {"rope_type": "default", "rope_theta": 50.0}, base=7.0).freqs, plain(8, 50.0))
    close(rope_scaling.from_config(8, {"type": "default"}, base=7.0).freqs, plain(8, 7.0))
    close(rope_scaling.from_config(8, {"factor": None, "finetuned": True}).freqs, plain(8, 10000.0))
    close(rope_scaling.from_config(16, {"partial_rotary_factor": 0.25}).freqs, plain(4, 10000.0))
    yarn = rope_scaling.yarn(8, factor=4.0, original_max_position_embeddings=64)
    for config, length in (
        ({"factor": 4.0}, 64),
        ({"original_max_position_embeddings": 64}, 256),
        ({"factor": 4.0, "original_max_position_embeddings": 64}, 999),
    ):
        given = rope_scaling.from_config(8, {"rope_type": "yarn", **config}, max_position_embeddings=length)
        close(given.freqs, yarn.freqs)
        assert given.attention_factor == yarn.attention_factor


# --- every library -----------------------------------------------------------------------------------


def test_frequencies_like_an_array(library, rng):
    name = library.name
    x, positions = rng.standard_normal((1, 2, 3, 8)).astype(np.float32), np.asarray([0, 5, 300])
    with support.holding(name, "float32"):
        there, at = support.there((x, positions), name)
        scaling = rope_scaling.yarn(8, factor=4.0, original_max_position_embeddings=64, like=there)
        assert type(scaling.freqs) is type(there)
        y = support.back(tp.rope(there, at, **scaling._asdict()))
    host = rope_scaling.yarn(8, factor=4.0, original_max_position_embeddings=64)
    close(support.back(scaling.freqs), host.freqs, rtol=1e-7)
    assert_matches(y, REFERENCES["rope"](x, positions, **host._asdict()), "float32", tolerance=512)


def test_frequencies_like_what_is_no_array():
    with pytest.raises(TypeError, match=r"^rope_scaling.linear: like is list, expected an array"):
        rope_scaling.linear(4, factor=2.0, like=[1.0])


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "args", "options", "error", "message"),
    [
        ("linear", (5,), {"factor": 2.0}, ValueError, "dims is 5, expected an even number"),
        ("linear", (-2,), {"factor": 2.0}, ValueError, "dims is -2, expected an even number"),
        ("linear", (4.0,), {"factor": 2.0}, TypeError, "dims is 4.0, expected an integer"),
        ("linear", (4,), {"factor": 0}, ValueError, "factor is 0.0, expected a positive number"),
        ("linear", (4,), {"factor": "2"}, TypeError, "factor is '2', expected a number"),
        ("linear", (4,), {"factor": 2.0, "base": -1.0}, ValueError, "base is -1.0, expected a positive number"),
        ("llama3", (4,), LLAMA3 | {"high_freq_factor": 1.0}, ValueError, "high_freq_factor is 1.0, expected more than"),
        ("llama3", (4,), LLAMA3 | {"low_freq_factor": 0.0}, ValueError, "low_freq_factor is 0.0, expected a positive"),
        (
            "llama3", (4,), LLAMA3 | {"original_max_position_embeddings": 0},
            ValueError, "original_max_position_embeddings is 0, expected at least 1",
        ),
        ("yarn", (4,), YARN | {"base": 1.0}, ValueError, "base is 1.0, expected more than 1"),
        ("yarn", (4,), YARN | {"beta_fast": 1.0}, ValueError, "beta_fast is 1.0, expected more than beta_slow"),
        ("yarn", (4,), YARN | {"attention_factor": 0.0}, ValueError, "attention_factor is 0.0, expected a positive"),
        ("yarn", (4,), YARN | {"mscale": -1.0, "mscale_all_dim": 1.0}, ValueError, "mscale is -1.0, expected a posi"),
        ("yarn", (4,), YARN | {"truncate": 1}, TypeError, "truncate is 1, expected True or False"),
        ("longrope", (4,), LONGROPE | {"length": 1}, ValueError, "short_factor has 8 elements, expected 2, one for"),
        ("longrope", (16,), LONGROPE | {"length": 0}, ValueError, "length is 0, expected at least 1"),
        (
            "longrope", (16,), LONGROPE | {"length": 1, "long_factor": [0.0] * 8},
            ValueError, "long_factor is 0.0, expected a positive number",
        ),
        (
            "longrope", (16,), LONGROPE | {"length": 1, "original_max_position_embeddings": 1},
            ValueError, "original_max_position_embeddings is 1, expected at least 2",
        ),
        ("from_config", (4, []), {}, TypeError, r"config is \[\], expected a mapping"),
        ("from_config", (4, {"type": "dynamic"}), {}, ValueError, "rope_type is 'dynamic', expected one of 'default'"),
        ("from_config", (4, {"type": 3}), {}, ValueError, "rope_type is 3, expected one of 'default', 'linear'"),
        ("from_config", (4, {"type": "linear", "facter": 2}), {}, ValueError, "config has the key 'facter', unknown"),
        ("from_config", (4, {"type": "linear"}), {}, ValueError, "config lacks the key 'factor' of 'linear'"),
        ("from_config", (4, {"type": "yarn", "factor": 2.0}), {}, ValueError, "config lacks the key 'original_max"),
        ("from_config", (16, {"type": "longrope", **LONGROPE}), {}, ValueError, "length is None, but 'longrope' needs"),
        ("from_config", (6, {"partial_rotary_factor": 0.5}), {}, ValueError, "3.0 of the 6 features of a head would"),
        ("from_config", (6, {"partial_rotary_factor": 2.0}), {}, ValueError, "12.0 of the 6 features of a head would"),
    ],
)  # fmt: skip
def test_wrong_arguments(function, args, options, error, message):
    with pytest.raises(error, match=rf"^rope_scaling\.{function}: {message}"):
        getattr(rope_scaling, function)(*args, **options)


def test_it_is_at_hand_without_an_import_of_its_own():
    result = support.python(
        "import sys, tensorops; f = tensorops.rope_scaling.linear; print('numpy' in sys.modules, f(2, factor=1.0))"
    )
    assert result.stdout.strip() == "False RopeScaling(freqs=array([1.]), attention_factor=1.0)", result.stderr
