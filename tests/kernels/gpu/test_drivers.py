"""Each OpenCL driver is tested in processes that load no other, and one that ends its process is not tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import emulation
import opencl_drivers
import support

TESTS = Path(__file__).parents[2]
# In the short run, other files are tested on the first driver alone: each compiles every program anew.
ABOUT_DRIVERS = "kernels/gpu/test_opencl.py"
OTHERS = ["persistent/test_launches.py", "libraries/test_pyopencl.py", "shims/test_array_api_pyopencl.py"] + [
    f"kernels/gpu/test_{name}.py"
    for name in ("activation", "attention", "linear", "model", "norms", "quantization", "tokens")
]


def runs():
    """Each further driver that can compute, with each file and the options of pytest for it."""
    for driver in opencl_drivers.DRIVERS[1:]:
        if not driver.reason:
            yield pytest.param(driver, ABOUT_DRIVERS, ["-k", "not some_cases"], id=f"{driver}-{ABOUT_DRIVERS}")
            for file in (ABOUT_DRIVERS, *OTHERS):
                name = f"{driver}-{file}-exhaustive"
                yield pytest.param(driver, file, ["--exhaustive"], marks=pytest.mark.exhaustive, id=name)


@pytest.mark.parametrize(("driver", "file", "options"), list(runs()))
def test_a_further_driver(driver, file, options):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options, TESTS / file]
    done = subprocess.run(
        command,
        env=os.environ | driver.environment,
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout.splitlines()[-1]


def test_a_driver_that_ends_its_process_is_not_taken(platform, tmp_path):
    """It comes first among the drivers, and must not be loaded together with one that works."""
    if not emulation.compiler():
        pytest.skip("there is no C++ compiler")
    broken = tmp_path / "libbroken.so"
    source = "#include <cstdlib>\n__attribute__((constructor)) void load() { abort(); }"
    command = [emulation.compiler(), "-shared", "-fPIC", "-x", "c++", "-", "-o", broken]
    subprocess.run(command, input=source, text=True, check=True)
    (tmp_path / "1.icd").write_text(f"{broken}\n")
    (tmp_path / "2.icd").write_text(f"{platform.library}\n")
    code = """
import json, os, opencl_drivers
import pyopencl as cl
print(json.dumps([[d.library, d.reason] for d in opencl_drivers.DRIVERS]))
print(json.dumps([p.name for p in cl.get_platforms()]))
"""
    environment = {opencl_drivers.VENDORS: str(tmp_path), opencl_drivers.KNOWN: ""}
    done = support.python(code, PYTHONPATH=support.before_python_path(TESTS), **environment)
    assert done.returncode == 0, done.stderr
    drivers, loaded = map(json.loads, done.stdout.splitlines())
    reasons = dict(drivers)
    assert drivers[0] == [platform.library, ""]
    assert "was ended by signal 6" in reasons[str(broken)]
    assert loaded == [platform.name]
