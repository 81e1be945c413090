"""The numbers that GGUF files have for types: those of the format, which the package gguf imports with much else."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["TensorType", "TokenType", "ValueType"]

TensorType = IntEnum(
    "TensorType",
    {
        "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q8_1": 9, "Q2_K": 10, "Q3_K": 11,
        "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "Q8_K": 15, "IQ2_XXS": 16, "IQ2_XS": 17, "IQ3_XXS": 18, "IQ1_S": 19,
        "IQ4_NL": 20, "IQ3_S": 21, "IQ2_S": 22, "IQ4_XS": 23, "I8": 24, "I16": 25, "I32": 26, "I64": 27, "F64": 28,
        "IQ1_M": 29, "BF16": 30, "TQ1_0": 34, "TQ2_0": 35, "MXFP4": 39, "NVFP4": 40, "Q1_0": 41,
    },
)  # fmt: skip
ValueType = IntEnum(
    "ValueType",
    {
        "UINT8": 0, "INT8": 1, "UINT16": 2, "INT16": 3, "UINT32": 4, "INT32": 5, "FLOAT32": 6, "BOOL": 7, "STRING": 8,
        "ARRAY": 9, "UINT64": 10, "INT64": 11, "FLOAT64": 12,
    },
)  # fmt: skip
TokenType = IntEnum("TokenType", {"NORMAL": 1, "UNKNOWN": 2, "CONTROL": 3, "USER_DEFINED": 4, "UNUSED": 5, "BYTE": 6})
