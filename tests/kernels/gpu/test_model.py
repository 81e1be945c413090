"""A language model on OpenCL devices: steps run in kernels, and only the token that was chosen leaves the device."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

import support
import tensorops as tp
from make_gguf import write_llama
from tensorops._operator import OPERATORS
from tensorops.models import Llama

support.require("pyopencl")

import pyopencl as cl  # noqa: E402

PROMPT = [100, 7, 7, 250, 0]


@pytest.mark.costly(2)
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F32"])
def test_a_step_runs_in_kernels_and_only_the_token_leaves_the_device(platform, tmp_path, monkeypatch, kind):
    path = write_llama(tmp_path / "model.gguf", kind)
    expected = list(Llama.from_gguf(path, "numpy").generate_ids(PROMPT, max_new_tokens=6))
    model = Llama.from_gguf(path, "opencl")
    tokens = model.generate_ids(PROMPT, max_new_tokens=6)
    found = [next(tokens), next(tokens)]
    read = []
    copy = cl.enqueue_copy

    def enqueue_copy(queue, target, source, **options):
        if isinstance(target, np.ndarray):
            read.append(target.size)
        return copy(queue, target, source, **options)

    with monkeypatch.context() as patched, tp.trace() as log:
        patched.setattr(cl, "enqueue_copy", enqueue_copy)
        found += [next(tokens), next(tokens)]
    assert found + list(tokens) == expected
    assert read == [1, 1]
    ran = {(record.operator, record.kernel) for record in log if record.operator in OPERATORS}
    assert len(ran) >= 7
    assert ran == {(name, "opencl") for name, _ in ran}
    moved = [(t.source, t.target, record.shapes) for record in log for t in record.transfers]
    assert [shapes for source, _, shapes in moved if source == "pyopencl"] == [((1,),)] * 2
