"""A parameter of a torch module is a tensor with a role; what is computed from it is a tensor."""

from __future__ import annotations

from typing import assert_type

import torch

import tensorops as tp


def lookups(x: torch.Tensor, ids: torch.Tensor, parameter: torch.nn.Parameter) -> None:
    assert_type(tp.embedding(ids, parameter), torch.Tensor)
    assert_type(tp.linear(x, parameter, parameter), torch.Tensor)
    codes, scales, _ = tp.quantize(parameter, bits=8, group_size=32)
    assert_type(tp.dequantize(codes, scales), torch.Tensor)
