"""Arrays that are spread over devices and processes: `sharding_program` runs, as JAX counts devices when it starts."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

import sharding_program
import support
from sharding_program import CHECKS, ROWS
from tensorops._operator import OPERATORS

support.require("jax")
support.require_provider("jax_ffi")

DEVICES = 8
BETWEEN_PROCESSES = (
    "rms_norm, rows",
    "rms_norm, rows and a weight in parts",
    "softmax, columns",
    "cross_entropy, mean",
    "scaled_dot_product_attention, heads",
    "scaled_dot_product_attention, keys",
    "rope, batch",
    "quantized_linear, outputs",
    "linear, inputs",
    "sample, rows",
    "shard_map",
    "gradients",
    "generators",
)


def started(devices, *arguments):
    """Start the program with so many devices; warnings are also errors there."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TENSOROPS_")}
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-W", "error", sharding_program.__file__, *arguments],
        env=inherited | support.only("jax") | {"TENSOROPS_CONFIG": "", "XLA_FLAGS": flags},
        cwd=pathlib.Path(sharding_program.__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def errors(process):
    """Return the errors of a program by label, when it has ended."""
    out, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    return dict(json.loads(line) for line in out.splitlines() if line.startswith('["'))


# Of each operator, the first row.
FIRST = [*{row.operator: label for label, row in reversed(ROWS.items())}.values(), *CHECKS]
OTHERS = [label for label in ROWS if label not in FIRST]


@pytest.mark.parametrize("labels", [FIRST, pytest.param(OTHERS, marks=pytest.mark.exhaustive)], ids=["first", "others"])
def test_devices(labels):
    with started(DEVICES, *labels) as process:
        assert errors(process) == dict.fromkeys(labels, "")


def test_every_kernel_is_divided():
    divided = {row.operator for row in ROWS.values() if row.kernel and ("ab" in row.result or "a" in row.result)}
    assert divided == {name for name, operator in OPERATORS.items() if "jax_ffi" in operator.kernels}


@pytest.mark.exhaustive
def test_processes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    one, other = (("--process", str(i), "of", "2", "at", port, *BETWEEN_PROCESSES) for i in range(2))
    with started(DEVICES // 2, *one) as first, started(DEVICES // 2, *other) as second:
        try:
            for process in (first, second):
                assert errors(process) == dict.fromkeys(BETWEEN_PROCESSES, "")
        finally:
            first.kill()
            second.kill()
