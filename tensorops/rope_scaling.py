"""Frequencies of rotary embeddings for longer contexts than a network was first trained for, for `tensorops.rope`.

Every function returns the frequencies and a factor under the names of the parameters of `rope`: a result `scaling` can
be passed on as ``rope(x, positions, **scaling._asdict())``. The functions' own parameters have the names in Hugging
Face's ``rope_scaling`` or ``rope_parameters``, and `from_config` takes such a dictionary.

The frequencies depend only on numbers, so compute them once. They are a NumPy array of float64, or in the library and
on the device of an array `like`, there in float32 if float64 is not available.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tensorops._messages import describe_type, nearest
from tensorops._validation import as_bool, as_integer, as_positive_number, shown
from tensorops.libraries import creation_device, library_of, move
from tensorops.typing import Array

__all__ = ["RopeScaling", "from_config", "linear", "llama3", "longrope", "yarn"]


class RopeScaling(NamedTuple):
    """Arguments of `tensorops.rope`.

    Attributes
    ----------
    freqs : array of floating point, shape (dims / 2,)
        Frequencies in radians per position.
    attention_factor : float
        The factor of the rotated features; 1 where the method has none.
    """

    freqs: Array
    attention_factor: float


def linear(dims: int, *, factor: float, base: float = 10000.0, like: Array | None = None) -> RopeScaling:
    r"""Position interpolation: all frequencies are divided by a factor, which divides the positions.

    .. math:: \theta'_i = \theta_i / s, \qquad \theta_i = \mathit{base}^{-2i / \mathit{dims}}

    Parameters
    ----------
    dims : int
        The number of features that rotate, an even number.
    factor : float
        :math:`s`, how many times as long the context becomes.
    base : float, optional
        Base of the geometric sequence of frequencies.
    like : array, optional
        An array of the library and on the device for the frequencies.

    Returns
    -------
    RopeScaling
        The frequencies and the factor 1.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If `dims` is odd or negative, or a number is not positive.

    References
    ----------
    Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation", 2023,
    https://arxiv.org/abs/2306.15595

    Examples
    --------
    >>> import tensorops
    >>> tensorops.rope_scaling.linear(4, factor=4.0)
    RopeScaling(freqs=array([0.25  , 0.0025]), attention_factor=1.0)
    """
    name = "rope_scaling.linear"
    factor = as_positive_number(name, "factor", factor)
    return _result(name, [theta / factor for theta in _frequencies(name, dims, base)], 1.0, like)


def llama3(
    dims: int,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
    base: float = 10000.0,
    like: Array | None = None,
) -> RopeScaling:
    r"""Scaling of Llama 3.1: low frequencies are divided by a factor, high ones stay, those between are interpolated.

    .. math:: \theta'_i = \left(\frac{1 - \gamma_i}{s} + \gamma_i\right) \theta_i, \qquad
              \gamma_i = \min\left(1, \max\left(0, \frac{L \theta_i / 2\pi - l}{h - l}\right)\right)

    Parameters
    ----------
    dims : int
        The number of features that rotate, an even number.
    factor : float
        :math:`s`, how many times as long the context becomes.
    low_freq_factor, high_freq_factor : float
        :math:`l` and :math:`h`: frequencies with fewer than :math:`l` turns in the original context are low, those with
        more than :math:`h` are high.
    original_max_position_embeddings : int
        :math:`L`, the length of the original context.
    base : float, optional
        Base of the geometric sequence of frequencies; Llama 3 uses 500000.
    like : array, optional
        An array of the library and on the device for the frequencies.

    Returns
    -------
    RopeScaling
        The frequencies and the factor 1.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If `dims` is odd or negative, a number is not positive, or `high_freq_factor` is not larger than
        `low_freq_factor`.

    References
    ----------
    Grattafiori et al., "The Llama 3 Herd of Models", 2024, https://arxiv.org/abs/2407.21783; the formula is in
    https://github.com/meta-llama/llama-models, ``apply_scaling``.

    Examples
    --------
    >>> import tensorops
    >>> tensorops.rope_scaling.llama3(
    ...     4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8
    ... ).freqs.round(6)
    array([0.204695, 0.00125 ])
    """
    name = "rope_scaling.llama3"
    factor = as_positive_number(name, "factor", factor)
    low = as_positive_number(name, "low_freq_factor", low_freq_factor)
    high = as_positive_number(name, "high_freq_factor", high_freq_factor)
    length = _as_length(name, original_max_position_embeddings)
    if high <= low:
        raise ValueError(f"{name}: high_freq_factor is {high}, expected more than low_freq_factor, which is {low}")

    def scaled(theta: float) -> float:
        kept = _clipped((length * theta / math.tau - low) / (high - low))
        return ((1.0 - kept) / factor + kept) * theta

    return _result(name, [scaled(theta) for theta in _frequencies(name, dims, base)], 1.0, like)


def yarn(
    dims: int,
    *,
    factor: float,
    original_max_position_embeddings: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    truncate: bool = True,
    base: float = 10000.0,
    like: Array | None = None,
) -> RopeScaling:
    r"""YaRN: low frequencies are divided by a factor, high ones stay, and queries and keys grow with the context.

    .. math:: \theta'_i = \left(\frac{1 - \gamma_i}{s} + \gamma_i\right) \theta_i, \qquad
              \gamma_i = 1 - \min\left(1, \max\left(0, \frac{i - d(\beta_\mathrm{fast})}
              {d(\beta_\mathrm{slow}) - d(\beta_\mathrm{fast})}\right)\right), \qquad
              d(\beta) = \frac{\mathit{dims} \ln(L / 2\pi\beta)}{2 \ln \mathit{base}}

    Parameters
    ----------
    dims : int
        The number of features that rotate, an even number.
    factor : float
        :math:`s`, how many times as long the context becomes.
    original_max_position_embeddings : int
        :math:`L`, the length of the original context.
    beta_fast, beta_slow : float, optional
        :math:`\beta_\mathrm{fast}` and :math:`\beta_\mathrm{slow}`: frequencies with more turns than the former in the
        original context stay, those with fewer than the latter are divided.
    attention_factor : float, optional
        The factor of the rotated features; by default :math:`m(1)` with :math:`m(t) = 1 + 0.1 t \ln s`, and 1 if
        :math:`s` is at most 1.
    mscale, mscale_all_dim : float, optional
        If both are given and not 0, the default of `attention_factor` is :math:`m(\mathit{mscale}) /
        m(\mathit{mscale\_all\_dim})`, as in DeepSeek's models.
    truncate : bool, optional
        Whether :math:`d(\beta_\mathrm{fast})` is rounded down and :math:`d(\beta_\mathrm{slow})` up, as in the authors'
        program.
    base : float, optional
        Base of the geometric sequence of frequencies, more than 1.
    like : array, optional
        An array of the library and on the device for the frequencies.

    Returns
    -------
    RopeScaling
        The frequencies and the factor.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If `dims` is odd or negative, a number is not positive, `base` is at most 1, or `beta_fast` is not larger than
        `beta_slow`.

    References
    ----------
    Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023,
    https://arxiv.org/abs/2309.00071

    Examples
    --------
    >>> import tensorops
    >>> freqs, attention_factor = tensorops.rope_scaling.yarn(
    ...     8, factor=4.0, original_max_position_embeddings=4096, base=100.0
    ... )
    >>> freqs.round(6), round(attention_factor, 6)
    (array([1.      , 0.316228, 0.1     , 0.025694]), 1.138629)
    """
    name = "rope_scaling.yarn"
    factor = as_positive_number(name, "factor", factor)
    length = _as_length(name, original_max_position_embeddings)
    plain = _frequencies(name, dims, base)
    if base <= 1.0:
        raise ValueError(f"{name}: base is {shown(base)}, expected more than 1")
    fast = as_positive_number(name, "beta_fast", beta_fast)
    slow = as_positive_number(name, "beta_slow", beta_slow)
    if fast <= slow:
        raise ValueError(f"{name}: beta_fast is {fast}, expected more than beta_slow, which is {slow}")
    first, last = (dims * math.log(length / (math.tau * turns)) / (2.0 * math.log(base)) for turns in (fast, slow))
    if as_bool(name, "truncate", truncate):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    width = last - first or 0.001

    def scaled(i: int) -> float:
        kept = 1.0 - _clipped((i - first) / width)
        return ((1.0 - kept) / factor + kept) * plain[i]

    if attention_factor is None:
        attention_factor = _yarn_factor(name, factor, mscale, mscale_all_dim)
    freqs = [scaled(i) for i in range(len(plain))]
    return _result(name, freqs, as_positive_number(name, "attention_factor", attention_factor), like)


def longrope(
    dims: int,
    *,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
    original_max_position_embeddings: int,
    factor: float,
    length: int,
    attention_factor: float | None = None,
    base: float = 10000.0,
    like: Array | None = None,
) -> RopeScaling:
    r"""LongRoPE: every frequency is divided by a factor of its own, which a search has found.

    .. math:: \theta'_i = \theta_i / \lambda_i

    Parameters
    ----------
    dims : int
        The number of features that rotate, an even number.
    short_factor, long_factor : sequence of float
        The factors :math:`\lambda_i` of the frequencies for sequences up to the original context, and for longer ones.
    original_max_position_embeddings : int
        :math:`L`, the length of the original context.
    factor : float
        :math:`s`, how many times as long the context becomes, for the default of `attention_factor`.
    length : int
        The number of positions in the sequence, which decides between `short_factor` and `long_factor`. Keys in a cache
        must have been rotated with the same factors.
    attention_factor : float, optional
        The factor of the rotated features; by default :math:`\sqrt{1 + \ln s / \ln L}`, and 1 if :math:`s` is at most
        1.
    base : float, optional
        Base of the geometric sequence of frequencies.
    like : array, optional
        An array of the library and on the device for the frequencies.

    Returns
    -------
    RopeScaling
        The frequencies and the factor.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If `dims` is odd or negative, a number is not positive, or there is not one factor for each frequency.

    References
    ----------
    Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", 2024,
    https://arxiv.org/abs/2402.13753

    Examples
    --------
    >>> import tensorops
    >>> options = {"short_factor": [1.0, 2.0], "long_factor": [1.0, 8.0]}
    >>> tensorops.rope_scaling.longrope(
    ...     4, **options, original_max_position_embeddings=16, factor=4.0, length=17
    ... ).freqs
    array([1.     , 0.00125])
    """
    name = "rope_scaling.longrope"
    plain = _frequencies(name, dims, base)
    factors = {
        "short_factor": _as_factors(name, "short_factor", short_factor, len(plain)),
        "long_factor": _as_factors(name, "long_factor", long_factor, len(plain)),
    }
    original = _as_length(name, original_max_position_embeddings)
    factor = as_positive_number(name, "factor", factor)
    if attention_factor is None:
        if original == 1:
            raise ValueError(f"{name}: original_max_position_embeddings is 1, expected at least 2")
        attention_factor = math.sqrt(1.0 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0
    chosen = factors["long_factor" if _as_length(name, length, "length") > original else "short_factor"]
    freqs = [theta / own for theta, own in zip(plain, chosen, strict=True)]
    return _result(name, freqs, as_positive_number(name, "attention_factor", attention_factor), like)


def from_config(
    head_dim: int,
    config: Mapping[str, Any] | None,
    *,
    base: float | None = None,
    max_position_embeddings: int | None = None,
    length: int | None = None,
    like: Array | None = None,
) -> RopeScaling:
    """Return what a ``rope_scaling`` or ``rope_parameters`` of a Hugging Face configuration asks for.

    Parameters
    ----------
    head_dim : int
        Features per head. If `config` has a ``partial_rotary_factor``, only that part of them rotates: then pass
        ``dims=2 * len(freqs)`` to `rope`.
    config : mapping or None
        Its ``rope_type`` (or ``type``) is ``default``, ``linear``, ``llama3``, ``yarn`` or ``longrope``, and the other
        keys are parameters of the function of that name; ``None`` is ``default``. ``rope_theta`` is the base.
    base : float, optional
        ``rope_theta`` of a configuration that has it outside of `config`; 10000 if it is nowhere.
    max_position_embeddings : int, optional
        That of the configuration: the original context where `config` does not tell it and, for ``yarn`` and
        ``longrope``, divided by the original context the factor if `config` has none.
    length : int, optional
        The number of positions in the sequence, which ``longrope`` needs.
    like : array, optional
        An array of the library and on the device for the frequencies.

    Returns
    -------
    RopeScaling
        The frequencies and the factor.

    Raises
    ------
    TypeError
        If an argument or a value has the wrong type.
    ValueError
        If the type or a key is unknown, a key is missing, or a value is out of range.

    Examples
    --------
    >>> import tensorops
    >>> tensorops.rope_scaling.from_config(4, {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0})
    RopeScaling(freqs=array([0.25 , 0.025]), attention_factor=1.0)
    """
    name = "rope_scaling.from_config"
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f"{name}: config is {shown(config)}, expected a mapping")
    values = {key: value for key, value in (config or {}).items() if value is not None and key not in _WITHOUT_EFFECT}
    kinds = [values.pop(key, None) for key in ("rope_type", "type")]
    kind = next((kind for kind in kinds if kind is not None), "default")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"{name}: rope_type is {shown(kind)}, expected one of {', '.join(map(repr, _KINDS))}")
    dims = _rotating(name, head_dim, values.pop("partial_rotary_factor", 1.0))
    theta = values.pop("rope_theta", base)
    options: dict[str, Any] = {"like": like} | ({} if theta is None else {"base": theta})
    takes, function = _KINDS[kind]
    for key in values:
        if key not in takes:
            raise ValueError(f"{name}: config has the key {key!r}, unknown to {kind!r}{nearest(key, takes)}")
    original = "original_max_position_embeddings"
    if original in takes and max_position_embeddings is not None:
        values.setdefault(original, max_position_embeddings)
        if kind in ("yarn", "longrope"):
            before = _as_length(name, values[original])
            values.setdefault("factor", _as_length(name, max_position_embeddings, "max_position_embeddings") / before)
    if kind == "longrope":
        if length is None:
            raise ValueError(f"{name}: length is None, but 'longrope' needs the number of positions")
        options["length"] = length
    for key, is_required in takes.items():
        if is_required and key not in values:
            raise ValueError(f"{name}: config lacks the key {key!r} of {kind!r}")
    return function(dims, **values, **options)


def _default(dims: int, *, base: float = 10000.0, like: Array | None = None) -> RopeScaling:
    name = "rope_scaling.from_config"
    return _result(name, _frequencies(name, dims, base), 1.0, like)


_WITHOUT_EFFECT = {"finetuned"}
_KINDS: dict[str, tuple[dict[str, bool], Callable[..., RopeScaling]]] = {
    "default": ({}, _default),
    "linear": ({"factor": True}, linear),
    "llama3": (
        dict.fromkeys(
            ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
            True,
        ),
        llama3,
    ),
    "yarn": (
        {"factor": True, "original_max_position_embeddings": True}
        | dict.fromkeys(("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"), False),
        yarn,
    ),
    "longrope": (
        dict.fromkeys(("short_factor", "long_factor", "original_max_position_embeddings", "factor"), True)
        | {"attention_factor": False},
        longrope,
    ),
}
"""The kinds of a configuration, with their keys, and whether a key is required."""


# --- parts -------------------------------------------------------------------------------------------


def _frequencies(name: str, dims: int, base: float) -> list[float]:
    """Return the frequencies without any scaling."""
    dims = as_integer(name, "dims", dims)
    if dims < 0 or dims % 2:
        raise ValueError(f"{name}: dims is {shown(dims)}, expected an even number")
    base = as_positive_number(name, "base", base)
    return [math.pow(base, i * (-2.0 / dims)) for i in range(dims // 2)]


def _result(name: str, freqs: list[float], attention_factor: float, like: Array | None) -> RopeScaling:
    import numpy as np

    made = np.asarray(freqs, dtype=np.float64)
    if like is None:
        return RopeScaling(made, attention_factor)
    row = library_of(like)
    if row is None:
        raise TypeError(f"{name}: like is {describe_type(like)}, expected an array")
    assert row.xp is not None
    device = creation_device(like)
    available = row.xp.__array_namespace_info__().dtypes(device=device, kind="real floating")
    there = move(made if "float64" in available else made.astype(np.float32), row, device)
    return RopeScaling(row.wrap(there) if row.is_wrapper(like) else there, attention_factor)


def _yarn_factor(name: str, factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    def grown(scale: float) -> float:
        return 1.0 + 0.1 * scale * math.log(factor) if factor > 1.0 else 1.0

    if not mscale or not mscale_all_dim:
        return grown(1.0)
    over = as_positive_number(name, "mscale", mscale)
    return grown(over) / grown(as_positive_number(name, "mscale_all_dim", mscale_all_dim))


def _clipped(x: float) -> float:
    return min(1.0, max(0.0, x))


def _as_length(name: str, value: Any, label: str = "original_max_position_embeddings") -> int:
    length = as_integer(name, label, value)
    if length < 1:
        raise ValueError(f"{name}: {label} is {shown(length)}, expected at least 1")
    return length


def _as_factors(name: str, label: str, values: Sequence[float], count: int) -> list[float]:
    factors = [as_positive_number(name, label, value) for value in values]
    if len(factors) != count:
        raise ValueError(f"{name}: {label} has {len(factors)} elements, expected {count}, one for each frequency")
    return factors


def _rotating(name: str, head_dim: Any, share: Any) -> int:
    dims = as_integer(name, "head_dim", head_dim) * as_positive_number(name, "partial_rotary_factor", share)
    if share > 1.0 or dims < 0 or int(dims) % 2:
        raise ValueError(
            f"{name}: {shown(dims)} of the {shown(head_dim)} features of a head would rotate, expected an even number"
        )
    return int(dims)
