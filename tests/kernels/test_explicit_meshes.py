"""Operators on arrays whose types say how they are split: `explicit_mesh_program` runs, as JAX counts devices early."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import explicit_mesh_program
import support
from tensorops._operator import OPERATORS

support.require("jax")

SHORT = ("embedding", "top_k", "linear_cross_entropy")
"""A lookup, and the bodies that JAX's rules for types refuse: a gather in a reshape, and a sort."""


def errors(*arguments):
    """Run the program; return how many calls it made, and the errors, by operator."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TENSOROPS_")}
    # XLA optimizes as for users: at level 0, with which other tests compile, gradients of attention with a softcap and
    # a mask of -inf are not finite, on one device as well.
    flags = f"--xla_force_host_platform_device_count={explicit_mesh_program.DEVICES}"
    done = subprocess.run(
        [sys.executable, "-W", "error", explicit_mesh_program.__file__, *arguments],
        env=inherited | support.only("jax") | {"TENSOROPS_CONFIG": "", "XLA_FLAGS": flags},
        cwd=pathlib.Path(explicit_mesh_program.__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    return {name: count for name, count, _ in lines}, {name: found for name, _, found in lines if found}


def test_types_that_say_how_arrays_are_split():
    counts, found = errors(*SHORT)
    assert found == {}
    assert set(counts) == set(SHORT)
    assert all(counts.values())


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_along_every_axis(name):
    counts, found = errors("--all", name)
    assert found == {}
    assert counts[name] > 0
