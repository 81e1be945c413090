"""Special functions in pure Array API, accurate to a few units in the last place and differentiable everywhere.

`where` selects the *argument* of each branch, so the branch not taken stays finite:
otherwise its infinity would turn a gradient into NaN.
"""

from __future__ import annotations

from tensorops.typing import Array, Namespace

# Rational approximations of the error function on three intervals.
# W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969), 631-637.
_ERF_P = (
    1.85777706184603153e-1,
    3.16112374387056560e0,
    1.13864154151050156e2,
    3.77485237685302021e2,
    3.20937758913846947e3,
)
_ERF_Q = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_ERFC_P = (
    2.15311535474403846e-8,
    5.64188496988670089e-1,
    8.88314979438837594e0,
    6.61191906371416295e1,
    2.98635138197400131e2,
    8.81952221241769090e2,
    1.71204761263407058e3,
    2.05107837782607147e3,
    1.23033935479799725e3,
)
_ERFC_Q = (
    1.0,
    1.57449261107098347e1,
    1.17693950891312499e2,
    5.37181101862009858e2,
    1.62138957456669019e3,
    3.29079923573345963e3,
    4.36261909014324716e3,
    3.43936767414372164e3,
    1.23033935480374942e3,
)
_TAIL_P = (
    1.63153871373020978e-2,
    3.05326634961232344e-1,
    3.60344899949804439e-1,
    1.25781726111229246e-1,
    1.60837851487422766e-2,
    6.58749161529837803e-4,
)
_TAIL_Q = (
    1.0,
    2.56852019228982242e0,
    1.87295284992346725e0,
    5.27905102951428412e-1,
    6.05183413124413191e-2,
    2.33520497626869185e-3,
)
_INVERSE_SQRT_PI = 5.6418958354775628695e-1


def sigmoid(xp: Namespace, x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), using an exponential that cannot overflow."""
    positive = x >= 0
    e = xp.exp(xp.where(positive, -x, x))
    return xp.where(positive, xp.ones_like(e), e) / (1.0 + e)


def erfc(xp: Namespace, x: Array) -> Array:
    """Return 1 - erf(x), without cancellation where erf(x) is near 1."""
    y = xp.abs(x)
    zero = xp.zeros_like(x)
    near = y <= 0.46875
    far = y > 4.0

    t = xp.where(near, x, zero)
    centre = 1.0 - t * _polynomial(_ERF_P, t * t) / _polynomial(_ERF_Q, t * t)

    one = xp.ones_like(x)
    u = xp.where(near | far, one, y)
    ratio = _polynomial(_ERFC_P, u) / _polynomial(_ERFC_Q, u)

    v = xp.where(far, xp.where(y > 40.0, 40.0 * one, y), 4.0 * one)  # erfc(40) is zero in any dtype
    z = 1.0 / (v * v)
    series = (_INVERSE_SQRT_PI - z * _polynomial(_TAIL_P, z) / _polynomial(_TAIL_Q, z)) / v

    # exp(-y²) with y² split, because the exponential would magnify the rounding error of a large y².
    w = xp.where(far, v, u)
    head = xp.floor(w * 16.0) / 16.0
    gaussian = xp.exp(-head * head) * xp.exp((head - w) * (head + w))
    tail = gaussian * xp.where(far, series, ratio)

    result = xp.where(near, centre, xp.where(x < 0, 2.0 - tail, tail))
    return xp.where(xp.isnan(x), x, result)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """Evaluate a polynomial by Horner's scheme, highest power first."""
    value = coefficients[0] * x + coefficients[1]
    for c in coefficients[2:]:
        value = value * x + c
    return value
