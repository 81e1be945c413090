"""Contraction.

A call is planned once for its subscripts and shapes. The plan is a program of plain tuples: what to do with each
operand by itself, then pairs of arrays to contract, then what to do with the last one. Tuples are what `torch.compile`
accepts as constants. A program is first made in labels, for which only lengths of 1 and the order of pairs matter: in a
trace, a length may stand for any.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, TypeAlias

from tensorops import _dtypes
from tensorops._messages import describe_type
from tensorops._operator import operator
from tensorops._validation import as_choice, plural, shown
from tensorops.backends import get_namespace
from tensorops.libraries import is_fixed
from tensorops.typing import Array, ArrayOfKind, KindT, Namespace

__all__ = ["einsum"]

Label: TypeAlias = str
"""A letter of the subscripts; for an axis of the ellipsis, its number from the right, as in ``"...0"``."""
Operation: TypeAlias = tuple[Any, ...]
"""What to do with one array: its name and arguments, in the words of `_apply`.

In labels, a shape is a tuple of tuples of labels, whose lengths are multiplied.
"""

OPTIMIZE = ("auto", "auto-hq", "optimal", "dp", "branch-all", "branch-2", "branch-1", "greedy")

_NUMBERS = (*_dtypes.FLOATING, *_dtypes.INTEGER, "complex64", "complex128")


def _check_einsum(name: str, subscripts: str, *operands: Array, optimize: str) -> dict[str, Any]:
    if not isinstance(subscripts, str):
        raise TypeError(f"{name}: subscripts is {describe_type(subscripts)}, expected a string such as 'ij,jk->ik'")
    optimize = as_choice(name, "optimize", optimize, OPTIMIZE)
    first = _dtypes.dtype_name(operands[0])
    for i, x in enumerate(operands):
        dtype = _dtypes.dtype_name(x)
        if dtype not in _NUMBERS:
            raise TypeError(f"{name}: operands[{i}] has dtype {dtype}, expected numbers")
        if dtype != first and _dtypes.is_integer(x) != _dtypes.is_integer(operands[0]):
            raise TypeError(
                f"{name}: operands[{i}] has dtype {dtype}, but operands[0] has {first}; convert one of them"
            )
    _plan(str(subscripts), operands, optimize)
    return {"subscripts": str(subscripts), "optimize": optimize}


@operator(check=_check_einsum)
def einsum(subscripts: str, *operands: ArrayOfKind[KindT], optimize: str = "auto") -> KindT:
    r"""Sum products of arrays over the axes that subscripts name: a contraction in Einstein's notation.

    .. math:: y_{ik} = \sum_j a_{ij} \, b_{jk} \qquad \text{is} \qquad \texttt{einsum("ij,jk->ik", a, b)}

    The semantics are NumPy's. A letter stands for the axes of one length; those that are missing from the output are
    summed over. A letter that occurs twice in one operand takes its diagonal. Without an arrow, the output has the
    letters that occur once, in alphabetical order. An ellipsis stands for axes that are broadcast; an axis of length 1
    is broadcast wherever its letter is longer in another operand. NumPy's other form, with lists of integers in place
    of subscripts, is not supported.

    Operands are contracted in pairs, in the order that the package opt_einsum finds, each pair by the library's matrix
    products. The order is found once for the same subscripts and shapes.

    Parameters
    ----------
    subscripts : str
        The letters of the axes of each operand, separated by commas; then, optionally, an arrow and the output's.
    *operands : array
        The arrays: all real or complex floating point, or all integers.
    optimize : {"auto", "auto-hq", "optimal", "dp", "branch-all", "branch-2", "branch-1", "greedy"}, optional
        How opt_einsum looks for the order, if there are more than two operands. ``"auto"`` chooses by their number.

    Returns
    -------
    array
        The contraction; dtype of the operands, or the dtype to which the library promotes them if they differ. Half
        types are computed in float32 and rounded once, at the end; integers wrap around as the library's do.

    Raises
    ------
    TypeError
        If `subscripts` is not a string, or the operands are not numbers of one kind.
    ValueError
        If the subscripts are malformed or do not fit the operands, or `optimize` is unknown.

    References
    ----------
    NumPy, ``numpy.einsum``, https://numpy.org/doc/stable/reference/generated/numpy.einsum.html; Smith and Gray,
    "opt_einsum", Journal of Open Source Software 3(26), 2018, https://doi.org/10.21105/joss.00753

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> a, b = np.asarray([[1.0, 2.0], [3.0, 4.0]]), np.asarray([[5.0, 6.0], [7.0, 8.0]])
    >>> tensorops.einsum("ij,jk->ik", a, b)
    array([[19., 22.],
           [43., 50.]])
    >>> tensorops.einsum("ii", a)
    array(5.)
    """
    xp = get_namespace(*operands)
    alone, pairs, last, is_view = _plan(subscripts, operands, optimize)
    dtype, wide = _dtypes_of(xp, operands)
    if wide is not None:
        operands = tuple(xp.astype(x, wide, copy=False) for x in operands)
    arrays = [_apply(xp, x, steps) if steps else x for x, steps in zip(operands, alone, strict=True)]
    for i, j, of_first, of_second, product in pairs:
        second, first = arrays.pop(j), arrays.pop(i)
        arrays.append(_product(xp, _apply(xp, first, of_first), _apply(xp, second, of_second), *product))
    result = _apply(xp, arrays[0], last)
    if is_view:
        result = result * 1
    return xp.astype(result, dtype, copy=False)  # Dask sums integers in a wider dtype


def _dtypes_of(xp: Namespace, operands: Sequence[Array]) -> tuple[Any, Any]:
    """Return the dtype of the result, and the one in which to compute if operands must be converted to it."""
    first = operands[0].dtype
    names = {_dtypes.dtype_name(x) for x in operands}
    if len(names) == 1 and not names & {"float16", "bfloat16"}:
        return first, None
    if names <= set(_dtypes.FLOATING):
        wide = _dtypes.compute_dtype(xp, *operands)
        return first if len(names) == 1 else wide, wide
    wide = xp.result_type(*(x.dtype for x in operands))
    return wide, wide


def _apply(xp: Namespace, x: Array, steps: Iterable[Operation]) -> Array:
    for name, argument in steps:
        if name == "permute":
            x = xp.permute_dims(x, argument)
        elif name == "reshape":
            x = xp.reshape(x, argument)
        elif name == "squeeze":
            x = xp.squeeze(x, axis=argument)
        elif name == "sum":
            x = xp.sum(x, axis=argument, dtype=x.dtype)
        else:  # every n-th element: of a matrix in one row, the diagonal
            x = x[..., ::argument]
    return x


def _product(xp: Namespace, a: Array, b: Array, name: str, axes: Any, shape: tuple[int, ...] | None) -> Array:
    if name == "multiply":
        return a * b
    if name == "tensordot":
        return xp.tensordot(a, b, axes=axes)
    y = xp.matmul(a, b)
    return y if shape is None else xp.reshape(y, shape)


# --- the plan ----------------------------------------------------------------------------------------


_ANY_LENGTH = 1024
"""The length for which the order of pairs is found where a trace holds for any."""


def _plan(subscripts: str, operands: tuple[Array, ...], optimize: str) -> Any:
    """Return the program: steps of each operand, pairs, last steps, and whether all that is only a view."""
    shapes = tuple(tuple(x.shape) for x in operands)
    first = operands[0]
    if all(is_fixed(n, first) for shape in shapes for n in shape):
        return _in_numbers(subscripts, shapes, optimize)
    lengths = tuple(
        tuple([n if is_fixed(n, first) else 1 if n == 1 else _ANY_LENGTH for n in shape]) for shape in shapes
    )
    terms, *program = _in_labels(subscripts, lengths, optimize)
    return _with_lengths(program, _sizes(terms, shapes))


def _in_numbers(subscripts: str, shapes: tuple[tuple[int, ...], ...], optimize: str) -> Any:
    return _planned(subscripts, shapes, optimize)


@functools.lru_cache(maxsize=1024)
def _planned(subscripts: str, shapes: tuple[tuple[int, ...], ...], optimize: str) -> Any:
    terms, _ = _parse(subscripts, [len(shape) for shape in shapes])
    sizes = _sizes(terms, shapes)
    _, *program = _in_labels(subscripts, shapes, optimize)
    return _with_lengths(program, sizes)


def _with_lengths(program: Any, sizes: dict[Label, int]) -> Any:
    """Return a program in numbers."""
    alone, pairs, last, is_view = program

    def shape_of(groups: Any) -> tuple[int, ...]:
        return tuple([prod([sizes[label] for label in labels]) for labels in groups])

    def number(name: str, argument: Any) -> Any:
        return shape_of(argument) if name == "reshape" else sizes[argument] + 1 if name == "every" else argument

    def numbers(steps: Any) -> tuple[Operation, ...]:
        return tuple([(name, number(name, argument)) for name, argument in steps])

    return (
        tuple([numbers(steps) for steps in alone]),
        tuple(
            [
                (i, j, numbers(of_first), numbers(of_second), (name, axes, None if shape is None else shape_of(shape)))
                for i, j, of_first, of_second, (name, axes, shape) in pairs
            ]
        ),
        numbers(last),
        is_view,
    )


def _in_labels(subscripts: str, shapes: tuple[tuple[int, ...], ...], optimize: str) -> Any:
    """Return the labels of all operands, and the program in labels; lengths matter where they are 1, and to the order.

    Lengths of one label may differ.
    """
    terms, output = _parse(subscripts, [len(shape) for shape in shapes])
    sizes: dict[Label, int] = {}
    for label, n in ((label, n) for each in zip(terms, shapes, strict=True) for label, n in zip(*each, strict=True)):
        sizes[label] = n if sizes.get(label, 1) == 1 else sizes[label]
    given = list(zip(terms, shapes, strict=True))
    long = [{label for label, n in zip(*each, strict=True) if n != 1 or sizes[label] == 1} for each in given]
    uses = Counter(label for labels in (*long, output) for label in labels)
    alone, inputs = [], []
    for labels, shape in given:
        steps, left = _by_itself(labels, shape, sizes, {label for label in labels if uses[label] > 1})
        alone.append(steps)
        inputs.append(left)
    pairs = []
    for i, j in _path(inputs, output, sizes, optimize):
        second, first = inputs.pop(j), inputs.pop(i)
        kept = {label for labels in (*inputs, output) for label in labels}
        steps, labels = _pair(first, second, kept)
        inputs.append(labels)
        pairs.append((i, j, *steps))
    last = _permuted(inputs[0], output)
    is_view = not pairs and all(name != "sum" for name, _ in alone[0])
    return tuple(map(tuple, terms)), tuple(alone), tuple(pairs), last, is_view


# TorchDynamo calls them instead of tracing them.
_in_numbers._dynamo_marked_constant = True  # type: ignore[attr-defined]
_in_labels._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _path(
    inputs: list[list[Label]], output: list[Label], sizes: dict[Label, int], optimize: str
) -> list[tuple[int, int]]:
    """Return which two of the remaining arrays are contracted, step by step; the result becomes the last of them."""
    if len(inputs) < 3:
        return [(0, 1)] * (len(inputs) - 1)
    from opt_einsum.paths import get_path_fn

    found = get_path_fn(optimize)([frozenset(labels) for labels in inputs], frozenset(output), sizes)
    assert all(len(pair) == 2 for pair in found)
    return [(min(pair), max(pair)) for pair in found]


def _permuted(labels: list[Label], wanted: list[Label]) -> tuple[Operation, ...]:
    """Return the steps that bring an array's axes into another order."""
    return () if labels == wanted else (("permute", tuple(labels.index(label) for label in wanted)),)


def _by_itself(
    labels: list[Label], shape: tuple[int, ...], sizes: dict[Label, int], wanted: set[Label]
) -> tuple[tuple[Operation, ...], list[Label]]:
    """Return the steps that leave an operand only wanted axes, each once and in full length, and which these are."""
    steps: list[Operation] = []
    labels, lengths = list(labels), list(shape)
    while (twice := next((label for label in labels if labels.count(label) > 1), None)) is not None:
        i = labels.index(twice)
        j = labels.index(twice, i + 1)
        order = [k for k in range(len(labels)) if k not in (i, j)]
        n = lengths[i]
        labels, lengths = [labels[k] for k in order], [lengths[k] for k in order]
        rest = tuple((label,) if m != 1 else () for label, m in zip(labels, lengths, strict=True))
        steps += [("permute", (*order, i, j)), ("reshape", (*rest, (twice, twice))), ("every", twice)]
        labels.append(twice)
        lengths.append(n)
    single = [k for k, label in enumerate(labels) if lengths[k] == 1 != sizes[label]]  # and broadcast
    if single:
        steps.append(("squeeze", tuple(single)))
        labels = [label for k, label in enumerate(labels) if k not in single]
    summed = tuple(k for k, label in enumerate(labels) if label not in wanted)
    if summed:
        steps.append(("sum", summed))
    return tuple(steps), [label for label in labels if label in wanted]


def _pair(a: list[Label], b: list[Label], kept: set[Label]) -> tuple[tuple[Any, Any, Operation], list[Label]]:
    """Return the steps of two arrays and their product, and its labels."""
    batch = [label for label in a if label in b and label in kept]
    summed = [label for label in a if label in b and label not in kept]
    left, right = [label for label in a if label not in b], [label for label in b if label not in a]
    result = batch + left + right
    if not summed:
        one: tuple[Label, ...] = ()
        first = _spread(_permuted(a, batch + left), [(label,) for label in batch + left] + [one] * len(right))
        ones = [one] * len(left) if batch else []
        second = _spread(_permuted(b, batch + right), [(v,) for v in batch] + ones + [(v,) for v in right])
        return (first, second, ("multiply", None, None)), result
    if not batch and len(summed) == 1 and len(left) <= 1 and len(right) <= 1:  # matrices or vectors as they are
        return (_permuted(a, left + summed), _permuted(b, summed + right), ("matmul", None, None)), result
    if not batch:
        axes = tuple(tuple(labels.index(label) for label in summed) for labels in (a, b))
        return ((), (), ("tensordot", axes, None)), result
    shape = None if len(left) == len(right) == 1 else tuple((label,) for label in result)
    first = _matrices(a, batch, left, summed, summed_last=True)
    second = _matrices(b, batch, right, summed, summed_last=False)
    return (first, second, ("matmul", None, shape)), result


def _spread(steps: tuple[Operation, ...], shape: list[tuple[Label, ...]]) -> tuple[Operation, ...]:
    """Return steps that also insert axes of length 1, if there are any to insert."""
    return (*steps, ("reshape", tuple(shape))) if () in shape else steps


def _matrices(
    labels: list[Label],
    batch: list[Label],
    free: list[Label],
    summed: list[Label],
    *,
    summed_last: bool,
) -> tuple[Operation, ...]:
    """Return the steps that make an array a stack of matrices, with as little copying as its order of axes allows."""
    last = labels[-1] in summed
    groups = [free, summed] if last else [summed, free]
    steps = _permuted(labels, batch + groups[0] + groups[1])
    if not len(free) == len(summed) == 1:
        steps += (("reshape", (*((label,) for label in batch), *map(tuple, groups))),)
    if last != summed_last:
        outer = len(batch)
        steps += (("permute", (*range(outer), outer + 1, outer)),)
    return steps


# --- the subscripts ----------------------------------------------------------------------------------


def _parse(subscripts: str, ndims: list[int]) -> tuple[list[list[Label]], list[Label]]:
    """Return the labels of the axes of each operand, and of the output."""
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(ndims):
        raise ValueError(
            f"einsum: subscripts {shown(subscripts)} are of {plural(len(terms), 'operand')}, but {len(ndims)} are given"
        )
    labels = [_labels(subscripts, term, ndim, i) for i, (term, ndim) in enumerate(zip(terms, ndims, strict=True))]
    every = {label for term in labels for label in term}
    broadcast = [f"...{i}" for i in reversed(range(sum(len(label) > 1 for label in every)))]
    if not arrow:
        once = Counter(letter for term in terms for letter in term.replace("...", ""))
        return labels, broadcast + sorted(letter for letter, times in once.items() if times == 1)
    return labels, _output(subscripts, output, every, broadcast)


def _labels(subscripts: str, term: str, ndim: int, operand: int) -> list[Label]:
    before, ellipsis, after = _letters(subscripts, term)
    room = ndim - len(before) - len(after)
    if room < 0 or (room and not ellipsis):
        raise ValueError(
            f"einsum: operands[{operand}] has {plural(ndim, 'dimension')}, but its subscripts {shown(term)} name "
            f"{'at least ' if ellipsis else ''}{len(before) + len(after)}"
        )
    return [*before, *(f"...{i}" for i in reversed(range(room))), *after]


def _letters(subscripts: str, term: str) -> tuple[str, str, str]:
    """Split the subscripts of one array at the ellipsis, if there is one."""
    before, ellipsis, after = term.partition("...")
    for letter in before + after:
        if not (letter.isascii() and letter.isalpha()):
            raise ValueError(
                f"einsum: subscripts {shown(subscripts)} contain {letter!r}, expected letters and for each array "
                "at most one '...'"
            )
    return before, ellipsis, after


def _output(subscripts: str, term: str, every: set[Label], broadcast: list[Label]) -> list[Label]:
    before, ellipsis, after = _letters(subscripts, term)
    if broadcast and not ellipsis:
        raise ValueError(f"einsum: subscripts {shown(subscripts)} have axes of '...', but none in the output")
    for letter in before + after:
        if letter not in every:
            raise ValueError(f"einsum: subscripts {shown(subscripts)} name {letter!r} in the output only")
        if (before + after).count(letter) > 1:
            raise ValueError(f"einsum: subscripts {shown(subscripts)} name {letter!r} twice in the output")
    return [*before, *broadcast, *after]


def _sizes(terms: list[list[Label]], shapes: tuple[tuple[int, ...], ...]) -> dict[Label, int]:
    """Return the length of the axes of each label."""
    sizes: dict[Label, int] = {}
    first: dict[Label, int] = {}  # the operand that has this length
    for i, (labels, shape) in enumerate(zip(terms, shapes, strict=True)):
        own: dict[Label, int] = {}
        for label, n in zip(labels, shape, strict=True):
            if n != n:
                raise ValueError(f"einsum: operands[{i}] has an axis of unknown length, {label[:3]!r}")
            if own.setdefault(label, n) != n:
                raise ValueError(f"einsum: operands[{i}] has the lengths {own[label]} and {n} along {label!r}")
            if sizes.get(label, 1) == 1:
                sizes[label], first[label] = n, i
            elif n not in (1, sizes[label]):
                raise ValueError(
                    f"einsum: operands[{i}] has length {n} along {label[:3]!r}, but operands[{first[label]}] has "
                    f"{sizes[label]}"
                )
    return sizes
