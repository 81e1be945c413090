"""`linear_cross_entropy` with its gradients, which are computed together with the loss.

Work: three products of the matrices, as without blocks; the body, whose blocks are computed again, needs four.
Precision: logits in float32 or better, sums over blocks too.
Bytes: the logits of a block, and the gradients, which are kept until they are asked for. Those of float16 are kept in
float32: they are in its range once the cotangent, such as the scale of the loss, has multiplied them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorops.kernels.cpu import _native
from tensorops.kernels.torch_cpu import _derivatives
from tensorops.libraries.torch import without_autocast
from tensorops.ops.loss import linear_cross_entropy, rows_per_block

_NAMES = ("x", "weight", "targets", "bias", "ce_weight")


def differentiable(on_tensors: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function that autograd follows; it returns ``NotImplemented`` for what is left to the body."""
    import torch

    cross_entropy, vjp = on_tensors(_native.cross_entropy), on_tensors(_native.cross_entropy_vjp)

    class LinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, options: dict[str, Any], *arrays: Any) -> Any:
            x, weight, targets, bias, ce_weight = arrays
            asked = {name for name, is_needed in zip(_NAMES, ctx.needs_input_grad[1:], strict=True) if is_needed}
            with without_autocast():
                found = _computed(cross_entropy, vjp, asked, x, weight, targets, bias, ce_weight, options)
            if found is NotImplemented:
                return found
            loss, gradients = found
            ctx.options, ctx.names = options, tuple(gradients)
            ctx.save_for_backward(*arrays, *gradients.values())
            return loss

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            saved = ctx.saved_tensors  # torch hands them out once under checkpoints
            arguments = dict(zip(_NAMES, saved, strict=False))
            of = dict(zip(ctx.names, saved[len(_NAMES) :], strict=True))
            if torch.is_grad_enabled():  # derivatives of derivatives are the body's
                call = _derivatives.Differentiated(linear_cross_entropy, arguments, ctx.options, (), (dy,), set(of))
                of = call.gradients()
            else:
                of = {name: _times(gradient, dy).to(arguments[name].dtype) for name, gradient in of.items()}
            return None, *(of.get(name) for name in _NAMES)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            arguments = linear_cross_entropy.canonical(*args, **kwargs)
        except (TypeError, ValueError):  # raised again by the operator
            return NotImplemented
        if refuse(**arguments):
            return NotImplemented
        arrays = [arguments.pop(name) for name in _NAMES]
        return LinearCrossEntropy.apply(arguments, *arrays)

    return call


def refuse(
    x: Any, weight: Any, targets: Any, bias: Any, ce_weight: Any, *, reduction: str, z_loss: float, **_: Any
) -> str | None:
    """Return why gradients of these arguments are left to the body."""
    if any(a is not None and a.requires_grad for a in (targets, ce_weight)):
        return "targets or ce_weight require grad"
    if reduction == "none":
        return "gradients of losses that are not reduced depend on theirs"
    if z_loss and ce_weight is not None and reduction == "mean":
        return "with z_loss and ce_weight, a row's gradient depends on all targets"
    return "x or weight is empty" if 0 in (*x.shape, *weight.shape) else None


def _computed(
    cross_entropy: Callable[..., Any],
    vjp: Callable[..., Any],
    asked: set[str],
    x: Any,
    weight: Any,
    targets: Any,
    bias: Any,
    ce_weight: Any,
    options: dict[str, Any],
) -> Any:
    """Return the loss, and its gradients by the name of the argument; ``NotImplemented`` if a target is no class."""
    import torch

    given = [a for a in (x, weight, bias, ce_weight) if a is not None]
    dtype = torch.float64 if any(a.dtype is torch.float64 for a in given) else torch.float32
    w = weight.to(dtype)
    b, of_classes = (None if a is None else a.to(dtype) for a in (bias, ce_weight))
    classes, features = weight.shape
    rows = x.reshape(-1, features)
    count = torch.tensor(len(rows))
    if targets.is_floating_point():
        wanted = targets.reshape(-1, classes).to(dtype)
    else:
        wanted = targets.reshape(-1).long()
        numbers = wanted[wanted != options["ignore_index"]]
        if numbers.numel() and not 0 <= numbers.min() <= numbers.max() < classes:
            return NotImplemented
        count = torch.tensor(numbers.numel()) if of_classes is None else of_classes[numbers].sum()
    scale = 1 / count.to(dtype) if options["reduction"] == "mean" else torch.ones((), dtype=dtype)
    size = rows_per_block(len(rows), features, classes, w.element_size())
    # Products for gradients multiply bfloat16 as it is: torch sums them in float32 and rounds once, as gradients are.
    # Those that are summed over blocks are not rounded, nor those in float16, whose range is too narrow.
    are_narrow = x.dtype is weight.dtype is torch.bfloat16
    right = weight if are_narrow else w
    loss = torch.zeros((), dtype=dtype)
    dx, dw, db = torch.empty_like(rows, dtype=_kept_dtype(x, dtype)), None, None
    for begin in range(0, len(rows), size):
        block, names = rows[begin : begin + size], wanted[begin : begin + size]
        wide = block.to(dtype)
        logits = torch.nn.functional.linear(wide, w, b)
        loss += cross_entropy(logits, names, of_classes, **options | {"reduction": "sum"})
        dlogits = vjp(logits, names, of_classes, scale, **options | {"reduction": "sum"})
        narrow = dlogits.to(right.dtype)
        if "x" in asked:
            dx[begin : begin + size] = narrow @ right
        if "weight" in asked:
            alone = are_narrow and size >= len(rows)
            dw = _added(dw, narrow.T, block) if alone else _added(dw, dlogits.T, wide)
        if "bias" in asked:
            db = dlogits.sum(0) if db is None else db + dlogits.sum(0)
    every = {"x": (dx.reshape(x.shape), x), "weight": (dw, weight), "bias": (db, bias)}
    gradients = {name: y.to(_kept_dtype(a, dtype)) for name, (y, a) in every.items() if name in asked}
    return (loss * scale).to(x.dtype), gradients


def _kept_dtype(argument: Any, computed: Any) -> Any:
    """Return the dtype in which a gradient waits for its cotangent."""
    import torch

    return computed if argument.dtype is torch.float16 else argument.dtype


def _times(gradient: Any, dy: Any) -> Any:
    """Return a new tensor, the product with a cotangent, in float32 or better."""
    import torch

    wide = dy.to(torch.promote_types(gradient.dtype, torch.float32))
    return gradient * wide.reshape((1,) * gradient.ndim)  # torch computes in the dtype of a factor that has axes


def _added(total: Any, a: Any, b: Any) -> Any:
    return a @ b if total is None else total.addmm_(a, b)
