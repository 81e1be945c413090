"""Contraction: small and large products of two arrays, and chains whose order counts."""

from asv_benchmarks.harness import DTYPES, Benchmark, implementations, normal

CONTRACTIONS = {
    "ij,jk->ik": [(8, 8)] * 2,
    "bqhd,bkhd->bhqk": [(2, 64, 8, 64)] * 2,
    "ab,bc,cd,de->ae": [(64, 64)] * 4,
    "ijk,ilm,njm,nlk,abc->": [(8, 8, 8)] * 5,
    "iij->j": [(64, 64, 64)],
}


class Contraction(Benchmark):
    params = (list(CONTRACTIONS), implementations(["einsum"]), DTYPES)
    param_names = ("subscripts", "implementation", "dtype")

    def setup(self, subscripts, implementation, dtype):
        operands = (normal(*shape, dtype=dtype) for shape in CONTRACTIONS[subscripts])
        self.prepare("einsum", implementation, [subscripts, *operands])

    def time_contraction(self, subscripts, implementation, dtype):
        self.call()
