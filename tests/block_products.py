"""What the tests of products with blocks share: the kernel that ran, and errors against float64."""

import numpy as np

import tensorops as tp

# The most that one product may be off by, in units of the sum of |x w|
BOUNDS = {"highest": 4e-7, "high": 2e-4, "low": 2e-2}


def computed(*args, **options):
    with tp.trace() as log:
        y = tp.quantized_linear(*args, **options)
    assert [call.kernel for call in log] == ["cpu"]
    return y


def errors(y, x, w):
    """The errors of products in units of what rounding every term would make of them."""
    x, w = np.asarray(x, dtype=np.float64), np.asarray(w, dtype=np.float64)
    return np.abs(np.asarray(y, dtype=np.float64) - x @ w.T) / np.maximum(np.abs(x) @ np.abs(w).T, 1e-300)
