"""The Array API over PyOpenCL beside kernels written by hand; the time includes waiting for the result."""

from . import shims


class Work:
    """Large arrays: what counts is the kernels."""

    params = (list(shims.OPENCL_SHAPES), [shims.SHIM, "by hand"])
    param_names = ("task", "way")

    def setup(self, task, way):
        made = shims.opencl_task(task)
        self.call, self.finish = made.ways[way], made.finish

    def time_work(self, task, way):
        self.call()
        self.finish()


class Call:
    """An addition of 64 numbers: what counts is the call."""

    params = ([shims.SHIM, "operator", "kernel(queue, …)", "set_args", "buffer, no array"],)
    param_names = ("way",)

    def setup(self, way):
        made = shims.opencl_call()
        self.call, self.finish = made.ways[way], made.finish

    def time_call(self, way):
        self.call()
        self.finish()
