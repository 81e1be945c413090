"""Replaces what the modules of a model of torch compute by operators."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from tensorops._validation import as_choice, shown
from tensorops.backends import to_backend
from tensorops.backends.registry import resolve
from tensorops.ops.quantization import PRECISIONS
from tensorops.torch._report import PreparedModule, PreparedReport

if TYPE_CHECKING:
    import torch

    from tensorops.torch._candidates import Candidate
    from tensorops.torch._coverage import Mode
    from tensorops.torch._proof import Proof


def prepare_model(
    model: Any,
    backend: str | None = None,
    *,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    check: bool = True,
    quantize: int | str | dict[str, Any] | None = None,
    precision: str | None = None,
    measure: bool = False,
) -> Any:
    """Let the modules of a torch model compute by operators, in place.

    The `forward` of an instance is replaced if its class computes what an operator computes: norms, activations, gated
    units, attention, experts and losses, of torch, of transformers and of models written like theirs. Modules are
    recognised by names and structure, and then the module and its replacement compute the same random numbers, with
    gradients. One that differs is left alone, as is one that would be slower. Classes, parameters, `state_dict`, hooks
    and the training mode stay as they are. A copy of a prepared model is prepared as well; one that was pickled is not.

    A replacement computes what has been compared: calls in the same mode, in training or not and under autocasting or
    not, with parameters and inputs of the same dtype, while everything else that the `forward` reads is unchanged. In
    all other calls the module's own `forward` computes.

    Parameters
    ----------
    model : torch.nn.Module, or arrays in nested containers
        The model. Arrays are moved to the backend, as by `tensorops.to_backend`.
    backend : str, optional
        Needed for arrays only: where they are moved.
    only, skip : str or sequence of str, optional
        Which modules are considered: names of operators such as ``"rms_norm"``, of classes, or of modules, with ``*``
        and ``?``. What `only` names is replaced even if it is not faster.
    check : bool, optional
        Compare each replacement with the module. Without, the first one that fits the structure is taken.
    quantize : {4, 8}, str or dict, optional
        Make the weights of linear layers blocks of integers: a number of bits, in groups of 32; a format that
        `tensorops.quantize` writes, such as ``"q8_0"``, or its interleaved blocks, ``"q8_0_x32"``, which processors
        multiply faster; or options of `tensorops.quantize`. The layers say so, and their `state_dict` has the blocks.
        What is written into their `weight` later is quantized as well. A weight that two modules have stays theirs.
        Until the report is dropped, it keeps the weights for `restore`.
    precision : {"highest", "high", "low"}, optional
        With `quantize`: how accurate products of few rows have to be, as in `tensorops.quantized_linear`.
    measure : bool, optional
        Measure calls before and after, on the random numbers.

    Returns
    -------
    PreparedReport, or arrays
        What became of each module; prints as a table. Its `restore` undoes everything. Moved arrays are returned
        themselves.

    Raises
    ------
    TypeError
        If the model is neither a module nor arrays with a backend.
    ValueError
        If a name in `only` or `skip` fits no module, `quantize` or `precision` is invalid, or there is a `precision`
        without `quantize`.

    Notes
    -----
    A replacement passes if its results and gradients are no farther from those of the module in float64 than the
    module's own are, but for 8 units in the last place of the largest, or 1 in half types.

    Under `torch.compile`, modules compute what their class says, as its compiler fuses that with what is around it, but
    for large attention and ``gelu(approximate="tanh")``, whose kernels are faster.

    Examples
    --------
    >>> import torch
    >>> from tensorops.torch import prepare_model
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.RMSNorm(16), torch.nn.Mish())
    >>> with prepare_model(model) as report:
    ...     y = model(torch.ones(2, 8))
    >>> [module.operator for module in report.replaced]
    ['rms_norm', 'mish']
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        if backend is None:
            kind = type(model).__name__
            raise TypeError(f"prepare_model: model is a {kind}, expected a torch.nn.Module, or arrays and a backend")
        models = sys.modules.get("tensorops.models")
        if models is not None and isinstance(model, models.LanguageModel) and resolve(backend).name != model.backend:
            raise TypeError(
                f"prepare_model: the weights of the Llama are arranged for the backend {model.backend!r}: "
                f"load it again with backend={shown(backend)}"
            )
        return to_backend(model, backend)
    if backend is not None:
        raise TypeError(f"prepare_model: backend is {shown(backend)}, but a torch.nn.Module stays on torch")
    chosen, skipped = _Names("only", only), _Names("skip", skip)
    preparation = _Preparation(model, chosen, check, measure)
    how, kept = _options_of(quantize, precision), _trained(model) | _tied(model)
    report = PreparedReport()
    with contextlib.ExitStack() as on_error:
        on_error.callback(report.restore)
        for name, module in model.named_modules():
            quantizes = how is not None and type(module) is torch.nn.Linear
            found = [] if quantizes else preparation.candidates(module)
            reason = "" if quantizes or found else preparation.reason_without_candidates(module)
            operators = ["quantized_linear"] if quantizes else [o for c in found for o in c.operator.split(", ")]
            names = {name, type(module).__name__, *operators}
            if not (operators or reason) or skipped.fit(names) or (only is not None and not chosen.fit(names)):
                continue
            if how is not None and quantizes:
                report.modules.append(_quantize(name, module, how, kept.get(name, ""), report))
            elif found:
                report.modules.append(preparation.prepare(name, module, found, report))
            else:
                report.modules.append(PreparedModule(name, type(module).__name__, reason=reason))
        chosen.raise_unless_used()
        skipped.raise_unless_used()
        on_error.pop_all()
    return report


def _options_of(quantize: int | str | dict[str, Any] | None, precision: str | None) -> dict[str, Any] | None:
    """Return the arguments of `_quantized.quantize`, if weights are to be quantized."""
    if quantize is None:
        if precision is not None:
            raise ValueError(f"prepare_model: precision is {shown(precision)}, but goes with quantize only")
        return None
    from tensorops.torch._quantized import options_of

    precise = as_choice("prepare_model", "precision", "highest" if precision is None else precision, PRECISIONS)
    return {"options": options_of(quantize), "precision": precise}


def _quantize(name: str, module: Any, how: dict[str, Any], kept: str, report: PreparedReport) -> PreparedModule:
    from tensorops.torch._candidates import unusable
    from tensorops.torch._quantized import quantize, refuse

    options = how["options"]
    if reason := _taken(module) or unusable(module) or kept or refuse(module, options):
        return PreparedModule(name, "Linear", reason=reason)
    error, undo = quantize(module, **how)
    report._undo.append(undo)
    note = options.get("format") or f"{options['bits']} bits, {options['mode']}, groups of {options['group_size']}"
    note += "" if how["precision"] == "highest" else f", precision {how['precision']}"
    return PreparedModule(name, "Linear", "quantized_linear", note, error)


def _trained(model: torch.nn.Module) -> dict[str, str]:
    """Return why a module's weight stays a parameter, by its name: others are frozen, and it is an adapter, perhaps."""
    if len({p.requires_grad for p in model.parameters()}) < 2:
        return {}
    reason = "its weight is trained, and others are frozen"
    weights = {name: module._parameters.get("weight") for name, module in model.named_modules()}
    return {name: reason for name, weight in weights.items() if weight is not None and weight.requires_grad}


def _tied(model: torch.nn.Module) -> dict[str, str]:
    """Return why a module's weight cannot be replaced, by its name, if another module has the same."""
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        if (weight := dict(module.named_parameters(recurse=False)).get("weight")) is not None:
            owners.setdefault(id(weight), []).append(name)
    return {
        name: f"its weight is that of {next(other for other in names if other != name)}, too"
        for names in owners.values()
        if len(names) > 1
        for name in names
    }


def _taken(module: torch.nn.Module) -> str:
    """Return whose the module's forward is, if not its own."""
    from tensorops.torch._layers import LAYERS

    present = vars(module).get("forward")
    present = getattr(present, "__func__", present)
    if present in (None, type(module).forward):  # a model that was pickled has its own
        return ""
    return "already prepared" if present in LAYERS else "its forward has been replaced by something else"


class _Names:
    """Names that the caller gave, each of which must fit a module."""

    def __init__(self, parameter: str, names: str | Sequence[str] | None) -> None:
        self.parameter = parameter
        self.unused = dict.fromkeys([names] if isinstance(names, str) else names or ())
        self.names = tuple(self.unused)

    def fit(self, found: set[str]) -> bool:
        fitting = [name for name in self.names if any(fnmatchcase(one, name) for one in found)]
        for name in fitting:
            self.unused.pop(name, None)
        return bool(fitting)

    def raise_unless_used(self) -> None:
        if self.unused:
            names = ", ".join(map(repr, self.unused))
            raise ValueError(f"prepare_model: {self.parameter} names {names}, which no module fits")


class _Preparation:
    """One call of `prepare_model`: modules that are alike are proven once."""

    def __init__(self, model: torch.nn.Module, chosen: _Names, check: bool, measure: bool) -> None:
        import torch

        from tensorops.torch._attention import tables_of

        self.chosen, self.check, self.measure = chosen, check, measure
        floating = (p.dtype for p in model.parameters() if p.is_floating_point())
        self.dtype = next(floating, torch.get_default_dtype())
        self.tables = tables_of(model)
        self.proofs: dict[Any, Proof] = {}
        self.times: dict[Any, tuple[float, float]] = {}

    def candidates(self, module: torch.nn.Module) -> list[Candidate]:
        from tensorops.torch._candidates import candidates_of

        return candidates_of(module, self.tables)

    def reason_without_candidates(self, module: torch.nn.Module) -> str:
        from tensorops.torch._candidates import reason_without_candidates

        return reason_without_candidates(module)

    def prepare(
        self, name: str, module: torch.nn.Module, found: list[Candidate], report: PreparedReport
    ) -> PreparedModule:
        """Replace the module's forward, if that is possible, right and worthwhile; return what became of it."""
        from tensorops.torch._candidates import unusable
        from tensorops.torch._coverage import MODES
        from tensorops.torch._proof import replace

        kind = type(module).__name__
        slower = "" if self.chosen.names else found[0].slower
        if reason := _taken(module) or unusable(module) or found[0].unfit or slower:
            return PreparedModule(name, kind, reason=reason)
        best, error, modes, notes = found[0], None, frozenset(MODES), [found[0].note]
        if self.check:
            best, proof = self._best(module, found)
            if proof.reason:
                return PreparedModule(name, kind, reason=proof.reason)
            error, reasons = proof.error, self._reasons(module, best)
            modes = frozenset(mode for mode, reason in reasons.items() if not reason)
            notes = [best.note, *_left_to_torch(reasons, self._dtype(module))]
        replace(module, best, modes)
        report._undo.append(functools.partial(_restore, module, best.layer))
        times = self._times(module, best) if self.measure else (None, None)
        return PreparedModule(name, kind, best.operator, "; ".join(filter(None, notes)), error, *times)

    def _best(self, module: torch.nn.Module, found: list[Candidate]) -> tuple[Candidate, Proof]:
        """Return the first candidate that passes, or of several for its operator the one that rounds as the module."""
        import torch

        mode = _usual(self._dtype(module))
        proofs = [(c, self._proof(module, c, mode)) for c in found]
        passed = [(c, proof) for c, proof in proofs if not proof.reason]
        if not passed:
            return min(proofs, key=lambda pair: pair[1].error)
        rivals = [pair for pair in passed if pair[0].operator == passed[0][0].operator]
        if len(rivals) > 1:  # they differ in half types
            return min(rivals, key=lambda pair: self._proof(module, pair[0], _usual(torch.bfloat16)).unequal)
        return rivals[0]

    def _reasons(self, module: torch.nn.Module, candidate: Candidate) -> dict[Mode, str]:
        """Return why a candidate does not pass in each mode; empty if it does."""
        from tensorops.torch._coverage import MODES

        own_code = candidate.called is None  # in which autocasting leaves nothing to the operators
        dtypes = {*candidate.dtypes, self._dtype(module)}  # a module may have no parameters
        modes = [mode for mode in MODES if mode.dtype in dtypes and not (own_code and mode.autocast)]
        return {mode: self._proof(module, candidate, mode).reason for mode in modes}

    def _dtype(self, module: torch.nn.Module) -> torch.dtype:
        return next((p.dtype for p in module.parameters()), self.dtype)

    def _proof(self, module: torch.nn.Module, candidate: Candidate, mode: Mode) -> Proof:
        from tensorops.torch._proof import prove

        key = (*_alike(module, candidate), mode)
        if key not in self.proofs:
            self.proofs[key] = prove(candidate, mode)
        return self.proofs[key]

    def _times(self, module: torch.nn.Module, candidate: Candidate) -> tuple[float, float]:
        from tensorops.torch._proof import measure

        key = _alike(module, candidate)
        if key not in self.times:
            self.times[key] = measure(candidate, self._dtype(module))
        return self.times[key]


def _usual(dtype: torch.dtype) -> Mode:
    from tensorops.torch._coverage import Mode

    return Mode(dtype, training=False, autocast=False)


def _left_to_torch(reasons: dict[Mode, str], dtype: torch.dtype) -> Iterator[str]:
    """Yield notes of the modes in which a module's own forward computes."""
    from tensorops.torch._coverage import DTYPES, MODES

    usual = _usual(dtype)
    if reason := reasons[usual._replace(training=True)]:
        yield f"not in training: {reason}"
    if (mode := usual._replace(autocast=True)) in MODES and reasons.get(mode, "not tried"):
        yield "not under autocast"
    named = {str(other).removeprefix("torch."): reasons.get(_usual(other), "not tried") for other in DTYPES}
    others = [name for name, reason in named.items() if reason]
    if len(others) == len(DTYPES) - 1:
        yield f"in {next(name for name, reason in named.items() if not reason)} only"
    elif others:
        yield f"not in {', '.join(others)}"


def _alike(module: torch.nn.Module, candidate: Candidate) -> tuple[Any, ...]:
    """Return what modules have in common that compute the same function of their parameters and buffers."""
    skipped = ("layer_idx",) if candidate.called is None else ()  # which the module's own code reads
    return type(module), candidate.layer, candidate.knows, candidate.operator, tuple(_facts(module, skipped))


def _facts(module: torch.nn.Module, skipped: tuple[str, ...]) -> Iterator[Any]:
    from tensorops.torch._coverage import attributes

    for name, value in sorted(attributes(module).items()):
        if name not in skipped:
            yield name, _fact(value)
    for key in ("_parameters", "_buffers"):
        for name, x in vars(module)[key].items():
            yield name, None if x is None else (tuple(x.shape), x.dtype)
    for name, child in module._modules.items():
        yield (name, None) if child is None else (name, type(child), *_facts(child, skipped))


def _fact(value: Any) -> Any:
    """Return what equal values have in common; of values that are no numbers, words or collections, only the same."""
    kind = type(value)
    if kind in (bool, int, float, str, type(None)):
        return kind, value
    if kind in (list, tuple):
        return kind, tuple(map(_fact, value))
    if kind is dict:
        return kind, tuple((_fact(name), _fact(x)) for name, x in value.items())
    if kind is set:
        return kind, frozenset(map(_fact, value))
    return kind, id(value)


def _restore(module: torch.nn.Module, layer: Callable[..., Any]) -> None:
    from tensorops.torch._coverage import FOUND

    vars(module).pop(FOUND, None)
    if getattr(vars(module).get("forward"), "__func__", None) is layer:
        del module.forward
