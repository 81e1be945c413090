"""Programs for a GPU's architecture, compiled by Triton, which needs no GPU for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorops.kernels._gpu.plans import Launch, Operand

_SHORT = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64", "bool": "i1", "uint8": "u8",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled program: cubin, name of the function, dynamic local memory, and what Triton made on the way."""

    cubin: bytes
    function: str
    local_bytes: int
    asm: dict[str, Any]


_STAGES = (3, 2, 1)


def compiled(launch: Launch, arrays: dict[str, Operand], capability: int, local_bytes: int) -> Program | str:
    """Compile a launch for arrays with this metadata and a compute capability such as 90.

    It loads as many tiles ahead as fit the memory that a block may have. Returns the reason if none does.
    """
    for stages in _STAGES:
        program = _compiled(launch, arrays, capability, stages)
        if program.local_bytes <= local_bytes:
            return program
    return f"the program needs {program.local_bytes} bytes of local memory, a block has {local_bytes}"


def _compiled(launch: Launch, arrays: dict[str, Operand], capability: int, stages: int) -> Program:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tensorops.kernels.triton import programs

    function = getattr(programs, launch.kernel)
    names = function.arg_names[: len(launch.arguments)]
    signature, attributes = {}, {}
    for i, (name, argument) in enumerate(zip(names, launch.arguments, strict=True)):
        if isinstance(argument, str):
            signature[name] = f"*{_SHORT[arrays[argument].dtype]}"
            divisible = arrays[argument].aligned >= 16
        else:
            signature[name] = _SHORT[argument.dtype.name]
            divisible = isinstance(argument, np.integer) and int(argument) % 16 == 0
        if divisible:
            attributes[(i,)] = [["tt.divisibility", 16]]
    constants = {name: launch.defines[name] for name in function.arg_names[len(launch.arguments) :]}
    source = ASTSource(
        fn=function,
        signature=signature | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs=attributes,
    )
    options = {"num_warps": launch.block // 32, "num_stages": stages, "enable_fp_fusion": True}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return Program(made.asm["cubin"], made.metadata.name, made.metadata.shared, made.asm)
