"""The Array API over PyOpenCL compared with handwritten kernels; the time includes waiting for the result."""

from . import shims


class Work:
    """Large arrays, where the kernels dominate."""

    params = (list(shims.OPENCL_SHAPES), [shims.SHIM, "by hand"])
    param_names = ("task", "way")

    def setup(self, task, way):
        made = shims.opencl_task(task)
        self.call, self.finish = made.ways[way], made.finish

    def time_work(self, task, way):
        self.call()
        self.finish()


class Call:
    """An addition of 64 numbers, where the call dominates."""

    params = ([shims.SHIM, "operator", "kernel(queue, …)", "set_args", "buffer, no array"],)
    param_names = ("way",)

    def setup(self, way):
        made = shims.opencl_call()
        self.call, self.finish = made.ways[way], made.finish

    def time_call(self, way):
        self.call()
        self.finish()
