"""Conversion of arrays between libraries, which share memory where they can; NumPy's copy of it next to that."""

import itertools

import tensorops
from asv_benchmarks.harness import Prepared, computing_backends, normal
from tensorops.benchmarks.measuring import wait_for

SHAPES = [(1, 64), (512, 4096)]
DTYPES = ["float32", "bfloat16"]
PAIRS = [f"{source} to {target}" for source, target in itertools.permutations(computing_backends(), 2)]


class Transfer(Prepared):
    params = (PAIRS, SHAPES, DTYPES)
    param_names = ("way", "shape", "dtype")

    def setup(self, way, shape, dtype):
        names = [computing_backends()[library] for library in way.split(" to ")]
        if not all(map(tensorops.is_backend_available, names)):
            raise NotImplementedError("one of the libraries does not compute here")
        try:
            host = normal(*shape, dtype=dtype)
            self.x = tensorops.to_backend(host, names[0])
            moved = tensorops.to_backend(self.x, names[1])
        except TypeError as error:  # a library may lack a dtype
            raise NotImplementedError(str(error)) from None
        assert tensorops.to_backend(moved, "numpy").tobytes() == host.tobytes()
        self.target = names[1]

    def time_transfer(self, way, shape, dtype):
        wait_for(tensorops.to_backend(self.x, self.target))


class Copy(Prepared):
    """NumPy's copy into new memory."""

    params = (SHAPES, DTYPES)
    param_names = ("shape", "dtype")

    def setup(self, shape, dtype):
        self.x = normal(*shape, dtype=dtype)

    def time_copy(self, shape, dtype):
        self.x.copy()
