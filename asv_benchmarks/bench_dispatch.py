"""The overhead of a call: arrays so small that the computation itself takes almost no time."""

import numpy as np

import tensorops
from tensorops._operator import OPERATORS
from tensorops.testing import cases


class RmsNorm64:
    """The compiled function alone, the operator that selects it, and the operator's own body."""

    params = (["native", "operator", "generic"],)
    param_names = ("call",)

    def setup(self, call):
        self.x = np.ones(64, dtype=np.float32)
        self.weight = np.ones(64, dtype=np.float32)
        try:
            from tensorops.kernels.cpu import _native
        except ImportError as error:
            raise NotImplementedError(str(error)) from None
        functions = {
            "native": _native.rms_norm,
            "operator": tensorops.rms_norm,
            "generic": tensorops.rms_norm.generic,
        }
        self.function = functions[call]
        self.function(self.x, self.weight)  # the first call imports and selects the kernel

    def time_call(self, call):
        self.function(self.x, self.weight)


class TypicalCase:
    """Every operator on the small arrays of its first test case, with NumPy."""

    params = (sorted(OPERATORS),)
    param_names = ("operator",)

    def setup(self, operator):
        self.function = OPERATORS[operator]
        self.args, self.options = cases(operator)[0].build(dtype_name="float32")
        self.function(*self.args, **self.options)

    def time_call(self, operator):
        self.function(*self.args, **self.options)
