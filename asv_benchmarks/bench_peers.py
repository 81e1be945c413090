"""The operators in other libraries, and a copy of the bytes that they must read and write, which is the limit.

Each peer is a class. Without its library, all its figures are n/a. `python -m asv_benchmarks peers` times the same in
turns with the operators, which is the better comparison; these show how a peer changes with its versions.
"""

from asv_benchmarks import peers
from asv_benchmarks.harness import DTYPES, Benchmark
from tensorops._operator import OPERATORS
from tensorops.benchmarks.measuring import prepare_copy
from tensorops.testing import BENCHMARK_SHAPES


class Peer(Benchmark):
    """What all peers have in common; without benchmarks, asv takes no notice of it."""

    params = (list(peers.ROWS), BENCHMARK_SHAPES, DTYPES)
    param_names = ("operator", "shape", "dtype")
    peer = ""

    def setup(self, operator, shape, dtype):
        task = peers.ROWS[operator]
        try:
            args = task.work(*shape, dtype).args
            ours = OPERATORS[task.operator](*args, **task.options)
            self.call = peers.prepare(self.peer, operator, args, ours)
        except (ValueError, peers.PeerMissingError) as error:
            raise NotImplementedError(f"{self.peer}: {error or 'it has no such form'}") from None


class Copy(Peer):
    """Into memory that was written before."""

    def setup(self, operator, shape, dtype):
        task = peers.ROWS[operator]
        try:
            args = task.work(*shape, dtype).args
        except ValueError as error:
            raise NotImplementedError(str(error)) from None
        self.call = prepare_copy(int(task.copies * max(a.nbytes for a in args)))

    def time_copy(self, operator, shape, dtype):
        self.call()


class Torch(Peer):
    peer = "torch"

    def time_torch(self, operator, shape, dtype):
        self.call()


class TorchOut(Peer):
    """Into an existing array."""

    peer = "torch out="

    def time_torch_out(self, operator, shape, dtype):
        self.call()


class Numexpr(Peer):
    peer = "numexpr"

    def time_numexpr(self, operator, shape, dtype):
        self.call()


class Jax(Peer):
    """The formula in `jax.numpy`, compiled."""

    peer = "jax.jit"

    def time_jax(self, operator, shape, dtype):
        self.call()


class Attention(Benchmark):
    """Attention of torch on the shapes of `python -m asv_benchmarks peers --section attention`."""

    params = (list(peers.ATTENTION), ["float32", "bfloat16"])
    param_names = ("task", "dtype")

    def setup(self, task, dtype):
        made = peers.ATTENTION[task]
        args = made.work(0, 0, dtype).args
        try:
            self.call = peers.prepare("torch", task, args, OPERATORS[made.operator](*args, **made.options))
        except peers.PeerMissingError as error:
            raise NotImplementedError(f"torch: {error}") from None

    def time_torch(self, task, dtype):
        self.call()
