"""Whether a layer computes what a module computes: both, and their gradients, on random numbers, in one mode.

The judge is the module itself in float64. A layer passes if its results are no farther from the judge's than the
module's own are, but for `TOLERANCE` units in the last place of the largest result. Parameters and buffers are random,
so what passes does not depend on them in another way. Neither may draw random numbers that the other does not draw.
"""

from __future__ import annotations

import contextlib
import copy
import math
import random
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

import tensorops as tp
from tensorops._display import shortened
from tensorops._providers import GENERIC
from tensorops.torch._candidates import Candidate
from tensorops.torch._coverage import FOUND, Coverage, Mode, State
from tensorops.torch._layers import own_forward

TOLERANCE = {torch.float64: 8, torch.float32: 8, torch.float16: 1, torch.bfloat16: 1}


class Proof(NamedTuple):
    """The outcome of a comparison."""

    reason: str  # why the layer does not pass; empty if it does
    error: float  # the largest difference from the module's results, relative to the largest result
    unequal: float = 0.0  # the share of elements that differ


def prove(candidate: Candidate, mode: Mode) -> Proof:
    """Compare a layer with the module that it is to stand for, both in a mode."""
    try:
        # Gradients are compared wherever the model is prepared.
        with torch.inference_mode(False), _same_random_numbers() as drawn:
            return _prove(candidate, mode, drawn)
    except Exception as raised:  # a module may have any requirements
        reason = shortened(str(raised).partition("\n")[0], 80)
        return Proof(f"it cannot be tried on random numbers: {type(raised).__name__}: {reason}", math.inf)


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[Callable[[], Any]]:
    """Give a function that returns what has been drawn since its last call, and begins anew; nothing is drawn after."""
    generator, own, python = torch.default_generator, torch.get_rng_state(), random.getstate()

    def drawn() -> Any:
        state = generator.get_state().numpy().tobytes(), random.getstate()
        generator.manual_seed(4)
        random.seed(4)
        return state

    try:
        yield drawn
    finally:
        generator.set_state(own)
        random.setstate(python)


def _prove(candidate: Candidate, mode: Mode, drawn: Callable[[], Any]) -> Proof:
    module = _with_random_parameters(candidate, mode.dtype).train(mode.training)
    wide = _in_float64(module)
    integers = [name for name, x in _constants(module) if not x.is_floating_point()]
    if candidate.called is not None and integers:
        return Proof(f"its forward may read the numbers in {integers[0]}, which may change", math.inf)
    replace(module, candidate, frozenset({mode}))
    ran = {"linear"}  # is called past the operator
    worst, unequal, count = 0.0, 0, 0

    for sample in candidate.samples:
        given = sample(torch.Generator().manual_seed(1), mode.dtype)
        drawn()
        judged = _evaluate(own_forward, wide, given, torch.float64)
        drawn()
        nothing, state, versions = drawn(), State(module), [x._version for x in module.buffers()]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode.autocast):
            theirs = _evaluate(own_forward, module, given, mode.dtype)
            drew = drawn()
            unchanged = state.holds(module) and versions == [x._version for x in module.buffers()]
            if candidate.called is not None and not unchanged:
                return Proof("its forward changes attributes or buffers", math.inf)
            with tp.trace() as log:
                found = _evaluate(candidate.layer, module, given, mode.dtype)
        if drawn() != drew:
            return Proof("it draws random numbers", math.inf)
        if drew != nothing:  # others in float64
            judged = theirs
        ran |= {record.operator for record in log if record.kernel != GENERIC}
        if [(y.shape, y.dtype) for y in found] != [(y.shape, y.dtype) for y in theirs]:
            return Proof("results have another shape or dtype", math.inf)
        # Some derivatives are zero but for rounding.
        least = 0.01 * max((float(judge.abs().max()) for judge in judged if judge.numel()), default=0.0)
        for y, own, judge in zip(found, theirs, judged, strict=True):
            difference, reason = _compare(y, own, judge, least)
            worst = max(worst, difference)
            if reason:
                return Proof(reason, worst)
            unequal, count = unequal + int((y != own).sum()), count + y.numel()
    if missing := [name for name in candidate.operator.split(", ") if name not in ran]:
        if drew != nothing:  # such as dropout in attention
            return Proof("it draws random numbers", math.inf)
        return Proof(f"no kernel of {missing[0]} takes its arguments", math.inf)
    return Proof("", worst, unequal / max(count, 1))


def replace(module: torch.nn.Module, candidate: Candidate, modes: frozenset[Mode]) -> None:
    """Let a module compute by a candidate's layer in the modes in which that has been proven."""
    state = None if candidate.called is None else State(module, candidate.called)
    vars(module)[FOUND] = Coverage(candidate.knows, modes, type(module).forward, state)
    module.forward = types.MethodType(candidate.layer, module)


def _compare(y: torch.Tensor, own: torch.Tensor, judge: torch.Tensor, least: float) -> tuple[float, str]:
    """Return the difference of results from the module's own, and why it is too large; empty if it is not.

    It is relative to the largest result, but at least to `least`.
    """
    if y.numel() == 0:
        return 0.0, ""
    judge = judge.double()
    y, own, eps = y.double(), own.double(), TOLERANCE[y.dtype] * torch.finfo(y.dtype).eps
    scale = max(float(judge.abs().max()), least) or 1.0
    bound = float((own - judge).abs().max()) / scale + eps
    error = float((y - judge).abs().max()) / scale
    reason = "" if error <= bound else f"its results differ by {error:.1e}, more than {bound:.1e}"
    return float((y - own).abs().max()) / scale, reason


def _with_random_parameters(candidate: Candidate, dtype: torch.dtype) -> torch.nn.Module:
    """Return a module with parameters in which zeros, ones and small numbers do not hide what is computed."""
    generator = torch.Generator().manual_seed(0)
    found = copy.deepcopy(candidate.stand_in)
    for p in found.parameters():
        spread = 0.5 if p.ndim == 1 else p.shape[-1] ** -0.5
        values = torch.randn(p.shape, generator=generator, dtype=torch.float64) * spread
        p.data = values.to(dtype)
        p.requires_grad_()
    for _, x in _constants(found):
        if x.is_floating_point():
            x.data = x.data.to(dtype)
        if x.is_floating_point() and candidate.called is not None:
            x.data = (torch.rand(x.shape, generator=generator, dtype=torch.float64) + 0.5).to(dtype)
    return found


def _constants(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the buffers and other attributes of a module that are tensors, with their names."""
    own = [named for part in module.modules() for named in (*vars(part).items(), *part._buffers.items())]
    return [(name, x) for name, x in own if isinstance(x, torch.Tensor)]


def _in_float64(module: torch.nn.Module) -> torch.nn.Module:
    found = copy.deepcopy(module)
    for x in (*found.parameters(), *(x for _, x in _constants(found) if x.is_floating_point())):
        x.data = x.data.double()
    return found


def _evaluate(
    function: Callable[..., Any],
    module: torch.nn.Module,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    """Return the results, without and with derivatives being recorded, and gradients of arguments and parameters."""
    args, named = _moved(arguments, dtype)
    with torch.no_grad():
        results = _tensors(function(module, *args, **named))
    moving = [x.requires_grad_() for x in _tensors(args)]
    moving += list(module.parameters())
    with torch.enable_grad():
        recorded = _tensors(function(module, *args, **named))
        differentiable = [y for y in recorded if y.requires_grad]
        generator = torch.Generator().manual_seed(2)
        cotangents = [
            torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in differentiable
        ]
        gradients = torch.autograd.grad(differentiable, moving, cotangents, allow_unused=True)
    zeros = (torch.zeros_like(x) if g is None else g for g, x in zip(gradients, moving, strict=True))
    return [y.detach() for y in (*results, *recorded, *zeros)]


def _moved(tree: Any, dtype: torch.dtype) -> Any:
    """Return arguments with new floating-point tensors of a dtype."""
    if isinstance(tree, dict):
        return {name: _moved(value, dtype) for name, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_moved(value, dtype) for value in tree)
    if isinstance(tree, torch.Tensor) and tree.is_floating_point():
        return tree.detach().to(dtype, copy=True)
    return tree


def _tensors(tree: Any) -> list[torch.Tensor]:
    """Return the floating-point tensors in results or arguments."""
    if isinstance(tree, tuple | list):
        return [x for part in tree for x in _tensors(part)]
    return [tree] if isinstance(tree, torch.Tensor) and tree.is_floating_point() else []


def measure(candidate: Candidate, dtype: torch.dtype) -> tuple[float, float]:
    """Return the least times of a call of the module's own forward and of the layer, in microseconds."""
    args, named = candidate.samples[0](torch.Generator().manual_seed(3), dtype)
    stand_in = _with_random_parameters(candidate, dtype).eval()
    mode = Mode(dtype, training=False, autocast=False)
    replace(stand_in, candidate, frozenset({mode}))
    least = [math.inf, math.inf]
    with torch.no_grad():
        for _ in range(30):
            for i, function in enumerate((own_forward, candidate.layer)):
                begin = time.perf_counter()
                function(stand_in, *args, **named)
                least[i] = min(least[i], time.perf_counter() - begin)
    return least[0] * 1e6, least[1] * 1e6
