"""Oclgrind finds defects of kernels: .ci/oclgrind relies on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import support

support.require("pyopencl")
if not shutil.which("oclgrind"):
    pytest.skip("the program oclgrind is not installed", allow_module_level=True)

TRY = """
import sys, pathlib, tempfile
import numpy as np
import emulation, oclgrind
from tensorops.kernels._gpu import sources
from tensorops.kernels._gpu.plans import Launch, Plan, Result

folder = pathlib.Path(tempfile.mkdtemp())
for path in sources.FOLDER.glob("*.h"):
    (folder / path.name).symlink_to(path)
sources.FOLDER = folder
defines = {"DOUBLE": 0, "VEC": 4, "THREADS": 64, "ROWS": 1, "KEPT": 0, "WARP": 0, "ALIGNED": 1}
x = np.arange(64, dtype=np.float32)
for number, body in enumerate(sys.argv[1:]):
    scratch = "LOCAL_ARRAY(real, scratch, 64); const int i = thread_id();"
    name = f"tried{number}"
    (folder / f"{name}.cl").write_text(f"KERNEL({name})(const GLOBAL float *x, GLOBAL float *y) {{ {scratch} {body} }}")
    plan = Plan({"y": Result("float32", (64,))}, (Launch(name, name, defines, 1, 64, ("x", "y")),))
    try:
        oclgrind.run(plan, {"x": x})
    except emulation.EmulationError as error:
        print(" ".join(str(error).split()))
    else:
        print("nothing")
"""

BODIES = {
    "scratch[i] = x[i]; BARRIER(); y[i] = scratch[63 - i];": "nothing",
    "scratch[i] = 0; BARRIER(); scratch[i] = x[i]; y[i] = scratch[63 - i];": "data race",
    "if (i < 16) BARRIER(); y[i] = x[i];": "divergence",
    "y[i] = x[i + 1];": "Invalid read",
    "y[i + 1] = x[i];": "Invalid write",
    "y[i] = scratch[63 - i] > 0 ? 1 : 2;": "Uninitialized",
}


def test_defects_are_reported(tmp_path):
    checks = ["oclgrind", "--data-races", "--uninitialized", "--log", str(tmp_path / "log")]
    environment = {**os.environ, "PYTHONPATH": support.before_python_path(Path(support.__file__).parent)}
    command = [*checks, sys.executable, "-c", TRY, *BODIES]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [found in line for line, found in zip(said, BODIES.values(), strict=True)] == [True] * len(BODIES), said
