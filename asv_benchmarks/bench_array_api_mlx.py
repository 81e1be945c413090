"""The Array API over MLX compared with MLX: the cost of a call in Python only, because MLX is lazy."""

from . import shims


class Call:
    params = (list(shims.MLX_CALLS), [shims.SHIM, "mlx.core"])
    param_names = ("call", "way")

    def setup(self, call, way):
        self.call = shims.mlx_call(call).ways[way]

    def time_call(self, call, way):
        self.call()
