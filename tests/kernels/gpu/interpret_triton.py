"""Run the conformance cases of one operator in Triton's interpreter, on tensors in host memory, and print the outcomes.

Arguments: the operator, and the dtype. Triton decides on its import whether it interprets, so this is a program of its
own; TRITON_INTERPRET must be 1.
"""

import json
import sys
import warnings

import ml_dtypes
import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from tensorops._operator import OPERATORS
from tensorops.kernels._gpu.plans import Device, Operand
from tensorops.kernels.triton import planners, programs
from tensorops.testing import CASES, REFERENCES, assert_matches

DEVICE = Device(kind="gpu", units=132, lanes=32, local_bytes=227 << 10, max_block=1024, float64=True)
planners.FEWEST_ROWS = 1  # the cases are small

_dot = interpreter.InterpreterBuilder.create_dot


def dot(self, a, b, *others):
    """Multiply bfloat16 as float32: the interpreter would multiply its bits as integers."""
    wide = [
        interpreter.TensorHandle(
            interpreter._convert_float(x.data, x.dtype, tl.float32, None).view(np.float32), tl.float32
        )
        if x.dtype == tl.bfloat16
        else x
        for x in (a, b)
    ]
    return _dot(self, *wide, *others)


interpreter.InterpreterBuilder.create_dot = dot


def tensor(a):
    if a.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(a.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(a.copy())


def array(x):
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype is torch.bfloat16 else x.numpy()


def operand(x):
    return Operand(str(x.dtype).removeprefix("torch."), tuple(x.shape), tuple(x.stride()))


def outcome(operator, planner, case, dtype):
    """Return "passed", "refused: …" or "failed: …"."""
    args, kwargs = case.build(dtype_name=dtype)
    expected = REFERENCES[operator.__name__](*args, **kwargs)
    arguments = operator.canonical(
        *[tensor(a) if isinstance(a, np.ndarray) else a for a in args],
        **{name: tensor(a) if isinstance(a, np.ndarray) else a for name, a in kwargs.items()},
    )
    metadata = {name: operand(x) if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}
    plan = operator.apply(lambda *a, **k: planner(DEVICE, *a, **k), metadata)
    if isinstance(plan, str):
        return f"refused: {plan}"
    (launch,) = plan.launches
    y = torch.full(plan.results["y"].shape, float("nan"), dtype=getattr(torch, dtype))
    arrays = {**arguments, "y": y}
    call = [arrays[a] if isinstance(a, str) else a.item() for a in launch.arguments]
    getattr(programs, launch.kernel)[(launch.groups,)](*call, **launch.defines)
    try:
        assert_matches(array(y), expected, dtype, tolerance=case.tolerance_for(dtype), scale_axis=case.scale_axis)
    except AssertionError as error:
        return f"failed: {error}"
    return "passed"


def main(name, dtype):
    operator = OPERATORS[name]
    planner = planners.PLANNERS[operator]
    cases = [case for case in CASES[name] if dtype in case.dtypes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of infinities and NaN in the interpreter
        outcomes = {case.name: outcome(operator, planner, case, dtype) for case in cases}
    sys.stdout.write(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
