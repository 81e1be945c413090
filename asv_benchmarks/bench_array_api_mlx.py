"""The Array API over MLX beside MLX: what a call costs in Python, as MLX computes nothing before it must."""

from . import shims


class Call:
    params = (list(shims.MLX_CALLS), [shims.SHIM, "mlx.core"])
    param_names = ("call", "way")

    def setup(self, call, way):
        self.call = shims.mlx_call(call).ways[way]

    def time_call(self, call, way):
        self.call()
