"""The elementwise functions as OpenCL C: one expression for each kind of data type.

In an expression ``a``, ``b`` and ``c`` are the operands, already converted to their common type. `expression` replaces
``T`` by that type, ``R`` by its real type, ``U`` by its unsigned type and ``BITS`` by its width.
"""

from __future__ import annotations

import re

from array_api_pyopencl import _dtypes
from array_api_pyopencl._dtypes import C_TYPES, DType

# Signed integers wrap around as in NumPy; C guarantees this only for unsigned ones.
_WRAP = {"i": "(T)((U)a {0} (U)b)", "u": "(T)(a {0} b)"}


def _arithmetic(sign: str, complex_: str) -> dict[str, str]:
    return {kind: text.format(sign) for kind, text in _WRAP.items()} | {"f": f"a {sign} b", "c": complex_}


def _real(text: str, kinds: str = "iuf") -> dict[str, str]:
    return dict.fromkeys(kinds, text)


def _float_function(name: str) -> dict[str, str]:
    return {"f": f"{name}(a)", "c": f"c_{name}(a)"}


# A shift beyond the width is undefined in C; here it shifts out all bits.
_OUT_OF_WIDTH = "b < 0 || b >= BITS"

EXPRESSIONS: dict[str, dict[str, str]] = {
    # two operands
    "add": _arithmetic("+", "a + b"),
    "subtract": _arithmetic("-", "a - b"),
    "multiply": {
        "i": "(T)((P)a * (P)b)",
        "u": "(T)((P)a * (P)b)",
        "f": "a * b",
        "c": "c_mul(a, b)",
    },
    "divide": {"f": "a / b", "c": "c_div(a, b)"},
    "floor_divide": {"i": "i_floor_divide(a, b)", "u": "(b == 0 ? (T)0 : (T)(a / b))", "f": "f_floor_divide(a, b)"},
    "remainder": {"i": "i_remainder(a, b)", "u": "(b == 0 ? (T)0 : (T)(a % b))", "f": "f_remainder(a, b)"},
    "pow": {"i": "i_pow(a, b)", "u": "i_pow(a, b)", "f": "f_pow(a, b)", "c": "c_pow(a, b)"},
    "atan2": {"f": "atan2(a, b)"},
    "hypot": {"f": "hypot(a, b)"},
    "copysign": {"f": "copysign(a, b)"},
    "nextafter": {"f": "nextafter(a, b)"},
    "logaddexp": {"f": "f_logaddexp(a, b)"},
    "maximum": _real("(a > b ? a : b)", "iu") | {"f": "(isnan(a) || a >= b ? a : b)"},
    "minimum": _real("(a < b ? a : b)", "iu") | {"f": "(isnan(a) || a <= b ? a : b)"},
    "bitwise_and": _real("a & b", "biu"),
    "bitwise_or": _real("a | b", "biu"),
    "bitwise_xor": _real("a ^ b", "biu"),
    "bitwise_left_shift": _real(f"({_OUT_OF_WIDTH} ? (T)0 : (T)((U)a << b))", "iu"),
    "bitwise_right_shift": {
        "i": f"(T)(a >> ({_OUT_OF_WIDTH} ? (T)(BITS - 1) : b))",
        "u": f"({_OUT_OF_WIDTH} ? (T)0 : (T)(a >> b))",
    },
    "logical_and": {"b": "a & b"},
    "logical_or": {"b": "a | b"},
    "logical_xor": {"b": "a ^ b"},
    "equal": _real("a == b", "biuf") | {"c": "a.x == b.x && a.y == b.y"},
    "not_equal": _real("a != b", "biuf") | {"c": "a.x != b.x || a.y != b.y"},
    "less": _real("a < b"),
    "less_equal": _real("a <= b"),
    "greater": _real("a > b"),
    "greater_equal": _real("a >= b"),
    # one operand
    "abs": {"i": "(T)(a < 0 ? (U)0 - (U)a : (U)a)", "u": "a", "f": "fabs(a)", "c": "hypot(a.x, a.y)"},
    "negative": {"i": "(T)((U)0 - (U)a)", "u": "(T)(0 - a)", "f": "-a", "c": "-a"},
    "positive": _real("a", "iufc"),
    "square": {"i": "(T)((P)a * (P)a)", "u": "(T)((P)a * (P)a)", "f": "a * a", "c": "c_mul(a, a)"},
    "reciprocal": {"f": "(T)1 / a", "c": "c_div((T)(1, 0), a)"},
    "sign": {
        "i": "(T)((a > 0) - (a < 0))",
        "u": "(T)(a != 0)",
        "f": "(isnan(a) ? a : (T)((a > 0) - (a < 0)))",
        "c": "c_sign(a)",
    },
    "bitwise_invert": {"b": "!a", "i": "(T)~a", "u": "(T)~a"},
    "logical_not": {"b": "!a"},
    "floor": _real("a", "iu") | {"f": "floor(a)"},
    "ceil": _real("a", "iu") | {"f": "ceil(a)"},
    "trunc": _real("a", "iu") | {"f": "trunc(a)"},
    "round": _real("a", "iu") | {"f": "rint(a)", "c": "rint(a)"},
    "isnan": _real("0", "iu") | {"f": "isnan(a)", "c": "isnan(a.x) || isnan(a.y)"},
    "isinf": _real("0", "iu") | {"f": "isinf(a)", "c": "isinf(a.x) || isinf(a.y)"},
    "isfinite": _real("1", "iu") | {"f": "isfinite(a)", "c": "isfinite(a.x) && isfinite(a.y)"},
    "signbit": {"f": "signbit(a)"},
    "real": _real("a") | {"c": "a.x"},
    "imag": {"c": "a.y"},
    "conj": _real("a") | {"c": "(T)(a.x, -a.y)"},
    "expm1": _float_function("expm1"),
    "log1p": _float_function("log1p"),
    "log2": {"f": "log2(a)", "c": "c_log(a) * (R)1.4426950408889634"},
    "log10": {"f": "log10(a)", "c": "c_log(a) * (R)0.4342944819032518"},
    **{
        name: _float_function(name)
        for name in (
            *("exp", "log", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan"),
            *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        )
    },
    # three operands, and those that only other modules here use
    "clip": _real("(a < b ? b : a) > c ? c : (a < b ? b : a)", "iu")
    | {"f": "(isnan(a) ? a : isnan(b) ? b : isnan(c) ? c : fmin(fmax(a, b), c))"},
    "nonzero": _real("a != 0", "biuf") | {"c": "a.x != 0 || a.y != 0"},
    "copy": _real("a", "biufc"),
}


def expression(name: str, dtype: DType) -> str:
    """Return the expression that `name` computes for operands of `dtype`."""
    text = EXPRESSIONS[name].get(dtype.kind)
    if text is None:
        raise TypeError(f"{name} is not defined for {dtype.name}")
    return substitute(text, dtype)


def substitute(text: str, dtype: DType) -> str:
    """Replace ``T``, ``R``, ``U``, ``P`` and ``BITS`` by the C types and width of `dtype`."""
    t = C_TYPES[dtype]
    unsigned = f"u{t}" if dtype.kind == "i" else t
    words = {
        "T": t,
        "R": C_TYPES[_dtypes.real_of(dtype)],
        "U": unsigned,
        # Products of 16-bit numbers would overflow the int to which C promotes them.
        "P": "ulong" if dtype.itemsize == 8 else "uint",
        "BITS": str(8 * dtype.itemsize),
    }
    return re.sub(r"\b(T|R|U|P|BITS)\b", lambda match: words[match[0]], text)


def convert(value: str, source: DType, target: DType) -> str:
    """Return C that converts `value` from one type to another and is defined for every value.

    Floating-point numbers beyond an integer type's range become its nearest bound, and NaN becomes 0.
    """
    if source == target:
        return value
    t = C_TYPES[target]
    if source.kind == "c":
        return f"({t})({value}.x, {value}.y)"
    if target.kind == "c":
        part = C_TYPES[_dtypes.real_of(target)]
        return f"({t})(({part})({value}), 0)"
    if target.kind == "b":
        return f"({t})({value} != 0)"
    if source.kind == "f" and target.kind in "iu":
        return f"(isnan({value}) ? ({t})0 : convert_{t}_sat_rtz({value}))"  # drivers convert NaN differently
    return f"({t})({value})"


_INTEGERS = """
inline T i_floor_divide(T a, T b) {
  if (b == 0) return 0;
  if (b == (T)-1) return (T)((U)0 - (U)a);  // the quotient of the smallest number by -1 would trap
  T q = a / b;
  return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}
inline T i_remainder(T a, T b) {
  if (b == 0 || b == (T)-1) return 0;
  T r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
"""

_INTEGER_POW = """
inline T i_pow(T a, T b) {
  if (b < 0) return a == 1 ? 1 : a == (T)-1 ? (b & 1 ? (T)-1 : (T)1) : 0;
  P result = 1, base = (P)a;
  for (; b; b >>= 1) {
    if (b & 1) result *= base;
    base *= base;
  }
  return (T)result;
}
"""

_FLOATS = """
inline T f_floor_divide(T a, T b) {
  if (a == 0 || b == 0 || isinf(a) || isinf(b)) return a / b;
  T r = fmod(a, b);
  T q = (a - r) / b;
  if (r != 0 && (r < 0) != (b < 0)) q -= 1;
  return q == 0 ? copysign((T)0, a / b) : rint(q);
}
inline T f_remainder(T a, T b) {
  if (isinf(b) && isfinite(a)) return a == 0 ? copysign(a, b) : (a < 0) == (b < 0) ? a : b;
  T r = fmod(a, b);
  if (r == 0) return copysign(r, b);
  return (r < 0) != (b < 0) ? r + b : r;
}
inline T f_pow(T a, T b) {
  if (a == 1 || b == 0) return 1;
  return pow(a, b);
}
inline T f_logaddexp(T a, T b) {
  if (a == b) return a + (T)0.6931471805599453;  // infinities of one sign, too
  T high = fmax(a, b);
  return isnan(a) || isnan(b) ? a + b : high + log1p(exp(-fabs(a - b)));
}
"""

_COMPLEX = """
inline T c_mul(T a, T b) { return (T)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
inline T c_div(T a, T b) {
  if (fabs(b.x) >= fabs(b.y)) {
    if (b.x == 0 && b.y == 0) return (T)(a.x / fabs(b.x), a.y / fabs(b.x));
    R ratio = b.y / b.x, scale = b.x + b.y * ratio;
    return (T)((a.x + a.y * ratio) / scale, (a.y - a.x * ratio) / scale);
  }
  R ratio = b.x / b.y, scale = b.x * ratio + b.y;
  return (T)((a.x * ratio + a.y) / scale, (a.y * ratio - a.x) / scale);
}
inline T c_sign(T a) {
  if (a.x == 0 && a.y == 0) return (T)(0, 0);
  R size = hypot(a.x, a.y);
  return (T)(a.x / size, a.y / size);
}
inline T c_times_i(T a) { return (T)(-a.y, a.x); }
inline T c_over_i(T a) { return (T)(a.y, -a.x); }
"""

_COMPLEX_EXP = """
// exp(x) (cos y + i sin y) * factor, also for large x; the callers handle other special values.
inline T c_cis(R x, R y, R factor) {
  R c = cos(y), s = y == 0 ? y : sin(y);
  R h = exp(x * (R)0.5);
  return (T)((h * c) * (h * factor), (h * s) * (h * factor));
}
inline T c_exp(T a) {
  R x = a.x, y = a.y;
  if (y == 0) return (T)(exp(x), y);
  if (x == -INFINITY && !isfinite(y)) return (T)(0, 0);
  if (x == INFINITY && !isfinite(y)) return (T)(INFINITY, NAN);
  if (!isfinite(y) || isnan(x)) return (T)(NAN, NAN);
  if (x == -INFINITY) return (T)(copysign((R)0, cos(y)), copysign((R)0, sin(y)));
  if (x == INFINITY) return (T)(copysign((R)INFINITY, cos(y)), copysign((R)INFINITY, sin(y)));
  return c_cis(x, y, 1);
}
inline T c_expm1(T a) {
  R x = a.x, y = a.y;
  if (y == 0) return (T)(x == 0 ? 0 : expm1(x), y);
  if (!isfinite(x) || !isfinite(y)) {
    T e = c_exp(a);
    return (T)(e.x - 1, e.y);
  }
  R s = sin(y * (R)0.5);
  R low = fabs(x) < 1 ? expm1(x) * cos(y) - 2 * s * s : c_cis(x, y, 1).x - 1;
  return (T)(low, c_cis(x, y, 1).y);
}
inline T c_sinh(T a) {
  R x = a.x, y = a.y;
  if (y == 0) return (T)(sinh(x), y);
  if (!isfinite(y)) return x == 0 || isinf(x) ? (T)(x, NAN) : (T)(NAN, NAN);
  if (isnan(x)) return (T)(NAN, NAN);
  if (isinf(x)) return (T)(copysign((R)INFINITY, x * cos(y)), copysign((R)INFINITY, sin(y)));
  if (fabs(x) > 20) {
    T e = c_cis(fabs(x), y, (R)0.5);
    return (T)(copysign((R)1, x) * e.x, e.y);
  }
  return (T)(sinh(x) * cos(y), cosh(x) * sin(y));
}
inline T c_cosh(T a) {
  R x = a.x, y = a.y;
  if (y == 0) return (T)(cosh(x), isnan(x) ? y : copysign((R)1, x) * y);
  if (!isfinite(y)) return x == 0 ? (T)(NAN, x) : isinf(x) ? (T)(INFINITY, NAN) : (T)(NAN, NAN);
  if (isnan(x)) return (T)(NAN, NAN);
  if (isinf(x)) return (T)(copysign((R)INFINITY, cos(y)), copysign((R)INFINITY, x * sin(y)));
  if (fabs(x) > 20) {
    T e = c_cis(fabs(x), y, (R)0.5);
    return (T)(e.x, copysign((R)1, x) * e.y);
  }
  return (T)(cosh(x) * cos(y), sinh(x) * sin(y));
}
inline T c_tanh(T a) {
  R x = a.x, y = a.y;
  if (isinf(x)) return (T)(copysign((R)1, x), copysign((R)0, y));
  if (isnan(x)) return (T)(x, y == 0 ? y : (R)NAN);
  if (!isfinite(y)) return (T)(x == 0 ? x : (R)NAN, NAN);
  if (fabs(x) > 20) {
    return (T)(copysign((R)1, x), 4 * sin(y) * cos(y) * exp(-2 * fabs(x)));
  }
  R t = y == 0 ? y : tan(y), s = sinh(x), beta = 1 + t * t, rho = sqrt(1 + s * s), denominator = 1 + beta * s * s;
  return (T)(beta * rho * s / denominator, t / denominator);
}
inline T c_sin(T a) { return c_over_i(c_sinh(c_times_i(a))); }
inline T c_cos(T a) { return c_cosh(c_times_i(a)); }
inline T c_tan(T a) { return c_over_i(c_tanh(c_times_i(a))); }
"""

_COMPLEX_LOG = """
inline R c_log_abs(R x, R y) {
  R high = fmax(fabs(x), fabs(y)), low = fmin(fabs(x), fabs(y));
  if (isnan(x) || isnan(y) || isinf(high)) return isinf(x) || isinf(y) ? (R)INFINITY : (R)NAN;
  if (high == 0) return -INFINITY;
  if (high > (R)0.5 && high < 2) return (R)0.5 * log1p((high - 1) * (high + 1) + low * low);
  R ratio = low / high;
  return log(high) + (R)0.5 * log1p(ratio * ratio);
}
inline T c_log(T a) { return (T)(c_log_abs(a.x, a.y), atan2(a.y, a.x)); }
inline T c_log1p(T a) {
  if (!isfinite(a.x) || !isfinite(a.y) || hypot(a.x, a.y) > (R)0.5) return c_log((T)(a.x + 1, a.y));
  return (T)((R)0.5 * log1p(a.x * (2 + a.x) + a.y * a.y), atan2(a.y, 1 + a.x));
}
inline T c_sqrt(T a) {
  R x = a.x, y = a.y;
  if (x == 0 && y == 0) return (T)(0, y);
  if (isinf(y)) return (T)(INFINITY, y);
  if (isnan(x)) return (T)(NAN, NAN);
  if (x == INFINITY) return (T)(x, isnan(y) ? y : copysign((R)0, y));
  if (x == -INFINITY) return isnan(y) ? (T)(y, INFINITY) : (T)(0, copysign((R)INFINITY, y));
  if (isnan(y)) return (T)(NAN, NAN);
  // Scaled by a power of four, so that nothing overflows and small parts keep their digits.
  int e = ilogb(fmax(fabs(x), fabs(y))) & ~1;
  x = ldexp(x, -e);
  y = ldexp(y, -e);
  R t = ldexp(sqrt((fabs(x) + hypot(x, y)) * (R)0.5), e / 2), other = ldexp(fabs(y), e) / (2 * t);
  return a.x >= 0 ? (T)(t, copysign(other, a.y)) : (T)(other, copysign(t, a.y));
}
inline T c_conj_mul(T a, T b) { return (T)(a.x * b.x + a.y * b.y, a.x * b.y - a.y * b.x); }
inline T c_acos(T a) {
  R x = a.x, y = a.y;
  const R half_pi = (R)1.5707963267948966;
  if (isinf(x) && isinf(y)) return (T)(x > 0 ? half_pi / 2 : (R)1.5 * half_pi, -y);
  if (isinf(x)) return isnan(y) ? (T)(NAN, INFINITY) : (T)(x > 0 ? (R)0 : 2 * half_pi, -copysign((R)INFINITY, y));
  if (isinf(y)) return (T)(isnan(x) ? x : half_pi, -y);
  if (isnan(x)) return (T)(NAN, NAN);
  if (isnan(y)) return (T)(x == 0 ? half_pi : (R)NAN, NAN);
  if (fmax(fabs(x), fabs(y)) > (R)1e6) {
    return (T)(atan2(fabs(y), x), -copysign(c_log_abs(x, y) + (R)0.6931471805599453, y));
  }
  T m = c_sqrt((T)(1 - x, -y)), p = c_sqrt((T)(1 + x, y));
  return (T)(2 * atan2(m.x, p.x), asinh(c_conj_mul(p, m).y));
}
inline T c_acosh(T a) {
  R x = a.x, y = a.y;
  if (isnan(x) || isnan(y) || isinf(x) || isinf(y)) {
    if (isnan(x)) return isinf(y) ? (T)(INFINITY, NAN) : (T)(NAN, NAN);
    if (isnan(y)) return isinf(x) ? (T)(INFINITY, NAN) : x == 0 ? (T)(NAN, (R)1.5707963267948966) : (T)(NAN, NAN);
  }
  T w = c_acos(a);
  // i acos or -i acos, whichever has a nonnegative real part.
  return signbit(y) ? (T)(w.y, -w.x) : (T)(-w.y, w.x);
}
inline T c_asin(T a) {
  R x = a.x, y = a.y;
  const R half_pi = (R)1.5707963267948966;
  if (isinf(y)) return (T)(isnan(x) ? x : isinf(x) ? copysign(half_pi / 2, x) : copysign((R)0, x), y);
  if (isinf(x)) return isnan(y) ? (T)(NAN, x) : (T)(copysign(half_pi, x), copysign((R)INFINITY, y));
  if (isnan(x)) return (T)(NAN, NAN);
  if (isnan(y)) return x == 0 ? (T)(x, NAN) : (T)(NAN, NAN);
  if (fmax(fabs(x), fabs(y)) > (R)1e6) {
    return (T)(copysign(atan2(fabs(x), fabs(y)), x), copysign(c_log_abs(x, y) + (R)0.6931471805599453, y));
  }
  T m = c_sqrt((T)(1 - x, -y)), p = c_sqrt((T)(1 + x, y));
  R re = atan2(x, m.x * p.x - m.y * p.y), im = asinh(c_conj_mul(m, p).y);
  if (hypot(x, y) < (R)1e-3) {  // the products above lose the digits of small numbers
    T square = c_mul(a, a);
    T cube = c_mul(square, a);
    T sum = a + cube * (R)0.16666666666666666 + c_mul(cube, square) * (R)0.075;
    return (T)(copysign(sum.x, x), copysign(sum.y, y));
  }
  return (T)(copysign(re, x), copysign(im, y));
}
inline T c_asinh(T a) { return c_over_i(c_asin(c_times_i(a))); }
inline T c_atanh(T a) {
  R x = a.x, y = a.y;
  const R half_pi = (R)1.5707963267948966;
  if (isinf(y)) return (T)(copysign((R)0, x), copysign(half_pi, y));
  if (isinf(x)) return (T)(copysign((R)0, x), isnan(y) ? y : copysign(half_pi, y));
  if (isnan(x)) return (T)(NAN, NAN);
  if (isnan(y)) return (T)(x == 0 ? x : (R)NAN, NAN);
  if (y == 0 && fabs(x) <= 1) return (T)(atanh(x), y);
  R u = fabs(x);
  if (fmax(u, fabs(y)) > (R)1e6) {
    R size = hypot(u, fabs(y));
    return (T)(copysign(u / size / size, x), copysign(half_pi, y));
  }
  R re = (R)0.25 * log1p(4 * u / ((1 - u) * (1 - u) + y * y));
  R im = (R)0.5 * atan2(2 * fabs(y), (1 - u) * (1 + u) - y * y);
  return (T)(copysign(re, x), copysign(im, y));
}
inline T c_atan(T a) { return c_over_i(c_atanh(c_times_i(a))); }
"""

_COMPLEX_POW = """
inline T c_pow(T a, T b) {
  if (b.x == 0 && b.y == 0) return (T)(1, 0);
  if (a.x == 0 && a.y == 0) return b.x > 0 && b.y == 0 ? (T)(0, 0) : (T)(NAN, NAN);
  if (b.y == 0 && b.x == rint(b.x) && fabs(b.x) <= 64) {
    T result = (T)(1, 0), base = a;
    for (int n = abs((int)b.x); n; n >>= 1) {
      if (n & 1) result = c_mul(result, base);
      base = c_mul(base, base);
    }
    return b.x < 0 ? c_div((T)(1, 0), result) : result;
  }
  return c_exp(c_mul(b, c_log(a)));
}
"""

# The functions that generated code may need, found by their names in it; later ones call earlier ones.
_LIBRARY = (
    (r"\bi_(floor_divide|remainder)\b", _INTEGERS),
    (r"\bi_pow\b", _INTEGER_POW),
    (r"\bf_\w+", _FLOATS),
    (r"\bc_(mul|div|sign)\b", _COMPLEX),
    (r"\bc_(exp|expm1|sinh|cosh|tanh|sin|cos|tan)\b", _COMPLEX + _COMPLEX_EXP),
    (r"\bc_(log|log1p|sqrt|acos|acosh|asin|asinh|atan|atanh)\b", _COMPLEX + _COMPLEX_LOG),
    (r"\bc_pow\b", _COMPLEX + _COMPLEX_EXP + _COMPLEX_LOG + _COMPLEX_POW),
)


def library(code: str, dtype: DType) -> str:
    """Return the definitions of the functions that `code`, whose operands are of `dtype`, calls."""
    parts: dict[str, None] = {}
    for pattern, text in _LIBRARY:
        if re.search(pattern, code):
            parts[text] = None
    longest = [t for t in parts if not any(t is not other and other.startswith(t) for other in parts)]
    if sum(t.startswith(_COMPLEX) for t in longest) > 1:
        longest = [_COMPLEX + _COMPLEX_EXP + _COMPLEX_LOG + _COMPLEX_POW]
    return substitute("".join(longest), dtype)
