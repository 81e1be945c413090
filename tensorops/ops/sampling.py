"""Sampling."""

from __future__ import annotations

import math
from numbers import Integral
from typing import TYPE_CHECKING, Any

from tensorops._dtypes import is_floating, largest_exponent, widen
from tensorops._operator import operator
from tensorops._validation import (
    as_integer,
    as_nonnegative_number,
    as_share,
    require_floating,
    require_ndim,
    shown,
)
from tensorops.backends import get_namespace
from tensorops.libraries import creation_device, has_host_values, library_of
from tensorops.typing import Array, ArrayInput, Namespace

__all__ = ["sample"]

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


def _check_sample(
    name: str,
    logits: Array,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    rng: Any,
) -> dict[str, Any]:
    require_floating(name, logits=logits)
    require_ndim(name, "logits", logits, 1)
    temperature = as_nonnegative_number(name, "temperature", temperature)
    if top_k is not None:
        top_k = as_integer(name, "top_k", top_k)
        if top_k < 1:
            raise ValueError(f"{name}: top_k is {shown(top_k)}, expected an integer of at least 1")
    if top_p is not None:
        top_p = as_share(name, "top_p", top_p)
        if top_p == 0.0:
            raise ValueError(f"{name}: top_p is 0.0, expected more than 0 and at most 1")
    if min_p is not None:
        min_p = as_share(name, "min_p", min_p)
    if logits.shape[-1] == 0:
        raise ValueError(f"{name}: logits has no candidates along its last axis")
    rng = _source(name, logits, rng, needed=temperature > 0)
    return {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "rng": rng}


def _source(name: str, logits: Array, rng: Any, *, needed: bool) -> Any:
    """Return a generator or an array of uniform numbers; if numbers are needed, an array must hold one per row."""
    import numpy as np

    if rng is None:
        if needed:
            raise ValueError(f"{name}: rng is missing; pass a seed, numpy.random.default_rng(seed), or temperature=0")
        return None
    if isinstance(rng, np.random.Generator):
        return rng
    if _is_seed(rng):
        try:
            return np.random.default_rng(rng)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: rng is {shown(rng)}, which is not a seed: {error}") from None
    if library_of(rng) is None:
        raise TypeError(f"{name}: rng is {shown(rng)}, expected a seed, a numpy.random.Generator or an array")
    if needed:
        require_floating(name, rng=rng)
        if tuple(rng.shape) != tuple(logits.shape[:-1]):
            raise ValueError(
                f"{name}: rng has shape {tuple(rng.shape)}, but logits has {tuple(logits.shape[:-1])} rows"
            )
    return rng


def _is_seed(rng: Any) -> bool:
    import numpy as np

    kinds = (Integral, list, tuple, np.random.BitGenerator, np.random.SeedSequence)
    return isinstance(rng, kinds) and not isinstance(rng, bool)


@operator(check=_check_sample)
def sample(
    logits: ArrayInput,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    rng: np.random.Generator
    | np.random.BitGenerator
    | np.random.SeedSequence
    | int
    | Sequence[int]
    | ArrayInput
    | None = None,
) -> Array:
    r"""Draw one index per row from the categorical distribution of the logits.

    `top_k`, then `top_p`, then `min_p` restrict the candidates. The index drawn is the first whose cumulative
    probability, in the order of the vocabulary, exceeds a uniform number. Nothing is sorted unless `top_k` or
    `top_p` requires it.

    A logit of +inf is drawn with certainty, whatever the options; several of them are equally likely.

    Parameters
    ----------
    logits : array, floating point, shape (..., vocabulary)
        Unnormalized log-probabilities.
    temperature : float, optional
        Divides the logits. 0 selects the largest (the first if tied) and needs no `rng`.
    top_k : int, optional
        Keep the `top_k` largest logits, and ties with the smallest one kept.
    top_p : float in (0, 1], optional
        Keep the smallest set of most probable candidates whose probability reaches `top_p`, and ties with the smallest
        one kept.
    min_p : float in [0, 1], optional
        Keep candidates with at least `min_p` times the largest probability.
    rng : numpy.random.Generator, seed or array of shape (...)
        Source of the uniform numbers: a generator, or anything else that `numpy.random.default_rng` makes one of, such
        as an integer, which gives the same numbers at each call. For libraries that trace, the numbers in [0, 1)
        themselves, as an array of the same library as `logits`.

    Returns
    -------
    array of integers, shape (...)
        Library and device of `logits`, in the library's default index dtype.

    Raises
    ------
    TypeError
        If `logits` is not floating point, or `rng` is neither a generator, a seed nor an array.
    ValueError
        If an option is invalid, `rng` is missing, or shapes do not match. Where the values of `logits` are in the
        host's memory and known (NumPy, torch on CPUs, eager): if a row has NaN, or nothing but -inf. Elsewhere, as on
        GPUs and under ``jax.jit``, the index of such a row has no meaning, but is one of the row's.

    References
    ----------
    Holtzman et al., "The Curious Case of Neural Text Degeneration" (top-p), 2019, https://arxiv.org/abs/1904.09751

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> logits = np.asarray([[0.0, 5.0, 1.0]])
    >>> tensorops.sample(logits, temperature=0.0)
    array([1])
    >>> tensorops.sample(logits, top_k=2, rng=0)
    array([1])
    """
    xp = get_namespace(logits)
    (wide,) = widen(xp, logits)
    uniform = None if temperature == 0 else _uniform(xp, wide, rng)
    if 0 in logits.shape:  # no rows: not every library reduces empty arrays
        device = creation_device(logits)
        dtype = xp.__array_namespace_info__().default_dtypes(device=device)["indexing"]
        return xp.zeros(logits.shape[:-1], dtype=dtype, device=device)
    largest = xp.max(wide, axis=-1, keepdims=True)
    if has_host_values(logits) and not bool(xp.all(largest > -math.inf)):  # NaN if there is one
        problem = "NaN" if bool(xp.any(xp.isnan(largest))) else "nothing but -inf"
        raise ValueError(f"sample: a row of logits has {problem}, so no candidate")
    if uniform is None:
        return xp.argmax(logits, axis=-1)
    # The difference of infinities is not a number.
    below = xp.where(wide == math.inf, xp.zeros_like(wide), wide - largest)
    scaled = _quotient(below, temperature)
    weights = xp.exp(scaled)  # the largest is 1
    if top_k is not None and top_k < wide.shape[-1]:
        kth_largest = xp.sort(scaled, axis=-1, descending=True)[..., top_k - 1 : top_k]
        weights = xp.where(scaled >= kth_largest, weights, xp.zeros_like(weights))
    if top_p is not None and top_p < 1.0:
        weights = _keep_top_p(xp, weights, top_p)
    if min_p is not None:
        weights = xp.where(weights >= min_p, weights, xp.zeros_like(weights))
    weights = _summable(xp, weights)
    cumulative = _cumulative_sum(xp, weights)
    total = cumulative[..., -1:]
    chosen = cumulative > _part(xp, total, xp.expand_dims(uniform, axis=-1))
    # Rounding may leave no element above; `weights > 0` then selects the last candidate.
    last = (cumulative == total) & (weights > 0)
    return xp.argmax(xp.astype(chosen | last, xp.int32), axis=-1)


def _quotient(x: Array, divisor: float) -> Array:
    """Return ``x / divisor``, even if the dtype of `x` would round the divisor to 0 or infinity."""
    largest = 2.0 ** (largest_exponent(x) - 1)
    if 1.0 / largest <= divisor <= largest:
        return x / divisor
    factor = 2.0**120 if divisor < 1.0 else 2.0**-120
    return x * factor / min(max(divisor * factor, 1.0 / largest), largest)


def _uniform(xp: Namespace, logits: Array, rng: Any) -> Array:
    """Return one number in [0, 1) for each row of `logits`, in its dtype."""
    import numpy as np

    if isinstance(rng, np.random.Generator):
        drawn = np.asarray(rng.random(tuple(logits.shape[:-1]), dtype=np.float32))
        return xp.astype(xp.asarray(drawn, device=creation_device(logits)), logits.dtype, copy=False)
    return xp.astype(rng, logits.dtype, copy=False)


def _keep_top_p(xp: Namespace, weights: Array, top_p: float) -> Array:
    descending = xp.sort(weights, axis=-1, descending=True)
    numbers = _summable(xp, descending)
    cumulative = _cumulative_sum(xp, numbers)
    before = cumulative - numbers
    # The first is kept even if the dtype rounds its share to 0.
    kept = (before < _part(xp, cumulative[..., -1:], top_p, up=True)) | (before == 0)
    smallest = xp.min(xp.where(kept, descending, xp.full_like(descending, 2.0)), axis=-1, keepdims=True)
    return xp.where(weights >= smallest, weights, xp.zeros_like(weights))


def _summable(xp: Namespace, weights: Array) -> Array:
    """Return weights from 0 to 1 as numbers whose sums keep small ones: float64 or, where there is none, integers.

    In float32, a sum of 1 no longer grows by weights below 6e-8, however many there are. As integers they are parts of
    2**30 to 2**31, or nearly so, of their sum, and sums are exact.
    """
    real = xp.__array_namespace_info__().dtypes(device=creation_device(weights), kind="real floating")
    if "float64" in real:
        return xp.astype(weights, real["float64"], copy=False)
    total = xp.sum(weights, axis=-1, keepdims=True)
    unit = xp.pow(xp.full_like(total, 2.0), xp.floor(31.0 - xp.log2(total)))
    return xp.astype(xp.round(weights * unit), xp.uint32)


def _cumulative_sum(xp: Namespace, numbers: Array) -> Array:
    return xp.cumulative_sum(numbers, axis=-1, dtype=numbers.dtype)


def _part(xp: Namespace, total: Array, share: Array | float, *, up: bool = False) -> Array:
    """Return ``share * total`` in the dtype of the sum, which may be an integer: rounded down, or up."""
    if is_floating(total):
        return total * (share if isinstance(share, float) else xp.astype(share, total.dtype, copy=False))
    product = xp.astype(total, xp.float32) * share
    return xp.astype(xp.ceil(product) if up else xp.floor(product), total.dtype)
