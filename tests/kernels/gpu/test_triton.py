"""Triton's programs without a GPU: values in its interpreter, and what its compiler makes of them for GPUs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("triton", "torch"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)

from tensorops.kernels._gpu.plans import Device, Operand, contiguous_strides  # noqa: E402
from tensorops.kernels.triton import planners  # noqa: E402
from tensorops.kernels.triton.compiling import compiled  # noqa: E402
from tensorops.testing.linear import GATED_UNITS  # noqa: E402

OPERATORS = [operator.__name__ for operator in planners.PLANNERS]
LOCAL_BYTES = 227 << 10  # of a block on sm_90 and sm_100
DEVICE = Device(kind="gpu", units=132, lanes=32, local_bytes=LOCAL_BYTES, max_block=1024, float64=True)
INSTRUCTIONS = {80: "mma.sync", 90: "wgmma", 100: "tcgen05.mma"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", OPERATORS)
def test_every_case_in_the_interpreter(name, dtype):
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("interpret_triton.py"), name, dtype],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    outcomes = json.loads(done.stdout)
    failed = {case: text for case, text in outcomes.items() if text.startswith("failed")}
    assert not failed
    others = [text for text in outcomes.values() if "reads no blocks of format" not in text]
    assert 2 * others.count("passed") > len(others)


def of(dtype, *shape):
    return Operand(dtype, shape, contiguous_strides(shape))


def calls(dtype):
    """Yield calls as of a language model: a name, its plan and the metadata of its arrays."""
    x, y = of(dtype, 512, 4096), of(dtype, 512, 14336)
    arrays = {"x": x, "weight": of(dtype, 14336, 4096), "bias": of(dtype, 14336)}
    yield "linear", planners.linear(DEVICE, **arrays), arrays | {"y": y}
    arrays = {"x": x, "gate_weight": of(dtype, 14336, 4096), "up_weight": of(dtype, 14336, 4096)}
    for unit in GATED_UNITS:
        plan = planners.gated_linear_unit(DEVICE, **arrays, activation=unit)
        yield f"gated_linear_unit_{unit}", plan, arrays | {"y": y}
    for bits, group, width, biases in ((4, 32, 2048, of(dtype, 14336, 128)), (8, 64, 4096, None)):
        arrays = {"x": x, "weight": of("uint8", 14336, width), "scales": of(dtype, 14336, 4096 // group)}
        plan = planners.quantized_linear(DEVICE, **arrays, biases=biases, bits=bits, group_size=group)
        yield f"quantized_linear_{bits}", plan, arrays | {"y": y} | ({} if biases is None else {"biases": biases})
    nothing = {"is_causal": False, "scale": 0.1, "window": None, "softcap": None, "page_table": None, "kv_format": None}
    everything = {"is_causal": True, "window": (100, None), "softcap": 30.0}
    parameters = {"mask": of("float32", 2, 1, 2048, 2048), "sinks": of(dtype, 32), "lengths": of("int64", 2)}
    for features in (64, 128, 256):
        arrays = {
            "q": of(dtype, 2, 32, 2048, features), "k": of(dtype, 2, 8, 2048, features),
            "v": of(dtype, 2, 8, 2048, features),
        }  # fmt: skip
        for name, options, others in (
            ("plain", {}, {}),
            ("causal", {"is_causal": True}, {}),
            ("everything", everything, parameters),
        ):
            given = arrays | dict.fromkeys(parameters) | others
            plan = planners.attention(DEVICE, **given, **nothing | options)
            yield f"attention_{features}_{name}", plan, arrays | others | {"y": arrays["q"]}


CALLS = [pytest.param(plan, arrays, id=name) for name, plan, arrays in calls("bfloat16")]


@pytest.mark.parametrize("capability", INSTRUCTIONS)
@pytest.mark.parametrize(("plan", "arrays"), CALLS)
def test_programs_use_tensor_cores_and_no_memory_for_registers(plan, arrays, capability, tmp_path):
    (launch,) = plan.launches
    program = compiled(launch, arrays, capability, LOCAL_BYTES if capability > 80 else 163 << 10)
    assert not isinstance(program, str), program
    assert INSTRUCTIONS[capability] in program.asm["ptx"]
    assert spilled_bytes(program, tmp_path) == 0


def spilled_bytes(program, folder):
    """Return the size of each thread's stack, which registers that do not suffice are spilled to."""
    file = folder / "program.cubin"
    file.write_bytes(program.cubin)
    tool = importlib.util.find_spec("triton").submodule_search_locations[0] + "/backends/nvidia/bin/cuobjdump"
    text = subprocess.run([tool, "-res-usage", file], capture_output=True, text=True, check=True).stdout
    (size,) = re.findall(r"STACK:(\d+)", text)
    return int(size)


def test_programs_load_fewer_tiles_ahead_where_local_memory_is_small():
    plan, arrays = next((plan, arrays) for name, plan, arrays in calls("float16") if name == "attention_128_causal")
    program = compiled(plan.launches[0], arrays, 90, 100 << 10)
    assert program.local_bytes <= 100 << 10
    assert "of local memory" in compiled(plan.launches[0], arrays, 90, 1 << 10)
