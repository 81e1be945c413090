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
    return subprocess.Popen(
        [sys.executable, "-W", "error", sharding_program.__file__, *arguments],
        env=inherited | {"TENSOROPS_CONFIG": "", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"},
        cwd=pathlib.Path(sharding_program.__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def errors(process):
    """Return the errors of a program by label, when it has ended."""
    out, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return dict(json.loads(line) for line in out.splitlines() if line.startswith('["'))


@pytest.fixture(scope="module")
def on_devices():
    with started(DEVICES) as process:
        return errors(process)


@pytest.mark.parametrize("label", [*ROWS, *CHECKS])
def test_devices(label, on_devices):
    assert not on_devices[label], on_devices[label]


def test_every_kernel_is_divided():
    divided = {row.operator for row in ROWS.values() if row.kernel and ("ab" in row.result or "a" in row.result)}
    assert divided == {name for name, operator in OPERATORS.items() if "jax_ffi" in operator.kernels}


@pytest.fixture(scope="module")
def in_processes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    one, other = (("--process", str(i), "of", "2", "at", port, *BETWEEN_PROCESSES) for i in range(2))
    with started(DEVICES // 2, *one) as first, started(DEVICES // 2, *other) as second:
        try:
            return [errors(first), errors(second)]
        finally:
            first.kill()
            second.kill()


@pytest.mark.exhaustive
@pytest.mark.parametrize("label", BETWEEN_PROCESSES)
def test_processes(label, in_processes):
    for found in in_processes:
        assert not found[label], found[label]
