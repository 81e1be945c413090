"""Contraction: small and large products of two arrays, and chains whose order counts."""

from tensorops.benchmarks.asv import Benchmark, implementations, normal

CONTRACTIONS = {
    "ij,jk->ik": [(8, 8)] * 2,
    "bqhd,bkhd->bhqk": [(2, 64, 8, 64)] * 2,
    "ab,bc,cd,de->ae": [(64, 64)] * 4,
    "ijk,ilm,njm,nlk,abc->": [(8, 8, 8)] * 5,
    "iij->j": [(64, 64, 64)],
}


class Contraction(Benchmark):
    params = (list(CONTRACTIONS), implementations(["einsum"]))
    param_names = ("subscripts", "implementation")

    def setup(self, subscripts, implementation):
        self.prepare("einsum", implementation, [subscripts, *(normal(*shape) for shape in CONTRACTIONS[subscripts])])

    def time_contraction(self, subscripts, implementation):
        self.call()
