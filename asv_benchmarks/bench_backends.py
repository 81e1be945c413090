"""Switching between backends: a scope by itself, and operators that compute elsewhere than where their arrays live."""

import numpy as np

import tensorops
from asv_benchmarks.harness import Prepared, computing_backends, normal
from tensorops import set_backend
from tensorops.benchmarks.measuring import wait_for


def enter(name, **options):
    """Return a function that enters and leaves a scope, created anew."""

    def call():
        with set_backend(name, **options):
            pass

    return call


def nested():
    with set_backend("numpy"), set_backend("auto"):
        pass


@set_backend("numpy")
def decorated():
    pass


class Scope:
    """A context without anything in it."""

    ways = {
        "with set_backend": enter("numpy"),
        "with providers": enter("numpy", providers=["generic"]),
        "with a fallback": enter("cuda", fallback=["numpy"]),
        "nested": nested,
        "decorator": decorated,
        "get_backend": tensorops.get_backend,
    }
    params = (list(ways),)
    param_names = ("way",)

    def setup(self, way):
        self.way = self.ways[way]
        self.way()  # the first call finds out what computes here

    def time_scope(self, way):
        self.way()


class Switch(Prepared):
    """An operator on NumPy arrays in the scope of a backend: the arrays move there, the result moves back."""

    params = (list(computing_backends()), [(1, 64), (128, 4096)], ["outside", "with set_backend", "one after another"])
    param_names = ("library", "shape", "scope")

    def setup(self, library, shape, scope):
        name = computing_backends()[library]
        if not tensorops.is_backend_available(name):
            raise NotImplementedError(f"{name} does not compute here")
        x, weight = normal(*shape), normal(shape[1])

        def rms_norm():
            return tensorops.rms_norm(x, weight)

        def in_scope():
            with set_backend(name):
                return rms_norm()

        def in_turns():  # what was chosen for one scope must not be sought again after another
            in_scope()
            return rms_norm()

        self.call = {"outside": rms_norm, "with set_backend": in_scope, "one after another": in_turns}[scope]
        np.testing.assert_allclose(self.call(), tensorops.rms_norm.generic(x, weight), rtol=1e-4)

    def time_switch(self, library, shape, scope):
        wait_for(self.call())
