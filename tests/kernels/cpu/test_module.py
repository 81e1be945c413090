"""The compiled module: targets, CPU features, threads, and the environment variables for them."""

import os
import pathlib
import platform
import re

import pytest

import support
from support import TARGETS, normal
from tensorops._operator import OPERATORS
from tensorops.libraries import LIBRARIES
from tensorops.testing import CASES, REFERENCES
from tensorops.testing._running import check_result

_native = support.require_native()


KIB, MIB = 1024, 1024 * 1024


def test_there_are_targets_and_the_best_is_in_use():
    assert TARGETS
    assert len(set(TARGETS)) == len(TARGETS)
    in_use = os.environ.get("TENSOROPS_CPU_TARGET", TARGETS[0])  # the whole suite may be run on another one
    assert _native.target() == in_use
    with pytest.raises(ValueError, match="cannot run target bogus"):
        _native.use_target("bogus")
    assert _native.target() == in_use


@pytest.mark.parametrize("operator", sorted(name for name, made in OPERATORS.items() if "cpu" in made.kernels))
def test_all_cases_on_every_target(target, operator):
    """Called as they are: `test_conformance` has the best target only."""
    assert _native.target() == target
    ran, declined = 0, 0
    for case in CASES[operator]:
        for dtype in case.dtypes:
            args, kwargs = call = case.build(dtype_name=dtype)
            y = getattr(_native, operator)(*args, **kwargs)
            if y is NotImplemented:
                declined += 1
                continue
            ran += 1
            check_result(y, REFERENCES[operator](*args, **kwargs), case, LIBRARIES["numpy"], dtype, call)
    assert ran > declined


X86_FLAGS = {
    "sse4_2": ("sse4_2",),
    "avx": ("avx",),
    "avx2": ("avx2",),
    "fma": ("fma",),
    "f16c": ("f16c",),
    "avx512": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "avx512_bf16": ("avx512_bf16",),
    "avx512_fp16": ("avx512_fp16",),
    "avx512_vnni": ("avx512_vnni",),
    "avx_vnni": ("avx_vnni",),
    "amx_tile": ("amx_tile",),
    "amx_int8": ("amx_int8",),
    "amx_bf16": ("amx_bf16",),
}


ARM_FLAGS = {
    "neon": ("asimd",),
    "fp16": ("fphp", "asimdhp"),
    "dotprod": ("asimddp",),
    "bf16": ("bf16",),
    "i8mm": ("i8mm",),
    "sve": ("sve",),
    "sve2": ("sve2",),
}


def test_features_are_those_that_linux_lists():
    """The kernel of Linux asks the processor as well, and leaves out what it does not save the registers of."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    known = {"x86_64": X86_FLAGS, "aarch64": ARM_FLAGS}.get(platform.machine())
    if not cpuinfo.exists() or known is None:
        pytest.skip("this system lists no features")
    listed = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)[1].split()
    expected = [name for name, flags in known.items() if set(flags) <= set(listed)]
    assert _native.cpu_features() == expected


def test_features_agree_with_the_targets():
    features = _native.cpu_features()
    assert len(set(features)) == len(features)
    runnable = {*TARGETS, *_native.better_targets()}  # those that are compiled, and better ones
    if "v3" in runnable:
        assert {"sse4_2", "avx", "avx2", "fma"} <= set(features)
    if platform.machine() in ("x86_64", "AMD64"):
        assert any(name.startswith("v4") for name in runnable) == ("avx512" in features)
    if platform.machine() in ("aarch64", "arm64"):
        assert ("neon_dotprod" in runnable) == ("dotprod" in features)
        assert ("neon_i8mm" in runnable) == ({"dotprod", "i8mm", "bf16"} <= set(features))


def test_the_bound_of_threads_is_kept():
    bound = _native.num_threads()
    try:
        _native.set_num_threads(3)
        assert _native.num_threads() == 3
        with pytest.raises(ValueError, match=r"^the number of threads must be at least 0$"):
            _native.set_num_threads(-1)
        assert _native.num_threads() == 3
    finally:
        _native.set_num_threads(bound)


def test_results_do_not_depend_on_the_bound(rng):
    x = normal(rng, 257, 2049, dtype="float32")
    bound = _native.num_threads()
    try:
        _native.set_num_threads(1)
        alone = _native.rms_norm(x)
        _native.set_num_threads(2)
        support.assert_identical(_native.rms_norm(x), alone)
    finally:
        _native.set_num_threads(bound)


TARGET = """
import numpy as np
import tensorops as tp

print(tp.rms_norm(np.ones((2, 4), np.float32), eps=0.0)[0, 0])
from tensorops.kernels.cpu import _native
print(_native.target())
"""


@pytest.mark.parametrize("name", TARGETS)
def test_the_environment_names_a_target(name):
    result = support.python(TARGET, TENSOROPS_CPU_TARGET=name)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["1.0", name]


def test_an_unknown_target_in_the_environment_is_an_error():
    result = support.python(TARGET, TENSOROPS_CPU_TARGET="v9")
    assert result.returncode != 0
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == (
        "ValueError: environment variable TENSOROPS_CPU_TARGET is v9; this machine can run: " + " ".join(TARGETS)
    )
    probe = "import tensorops as tp; print(tp.is_backend_available('cpu')); tp.set_backend('cpu')"
    result = support.python(probe, TENSOROPS_CPU_TARGET="v9")
    assert result.stdout.split() == ["False"]
    assert "BackendUnavailableError" in result.stderr
    assert "TENSOROPS_CPU_TARGET is v9" in result.stderr
