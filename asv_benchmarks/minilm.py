"""The sentence encoder of docs/integrations/minilm.py compared with ONNX Runtime, called alternately in one process.

    python tests/minilm_onnx.py model.onnx               # the same weights as an ONNX model; needs the package onnx
    python -m asv_benchmarks.minilm model.onnx [SECONDS]

What is timed is token ids to unit vectors, without the tokenizer. All use one thread for each processor. Each is
called for a while before the next, since one library's threads wait for work in a loop, which slows the next one.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

# What is compared is imported in functions, as asv imports every file of this folder.
SENTENCE = "The river, which had been dry since the summer before, carried so much water that the bridge was closed. "
TURNS = 10
BATCHES = ((1, 1), (1, 10), (32, 1), (32, 5))  # sentences, and how often each says the above


def encoders(model: str) -> tuple[Any, dict[str, Callable[[Any, Any], Any]]]:
    """Return the tokenizer's encoder, and functions of token ids and of which are valid."""
    import jax
    import onnxruntime

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs" / "integrations"))
    from minilm import Encoder, packaged_model

    import tensorops

    ours = Encoder(packaged_model())

    def by(provider: str) -> Callable[[Any, Any], Any]:
        active = tensorops.set_backend(provider)
        own = active(Encoder)(packaged_model())
        return active(lambda ids, valid: own.embed(own.weights, ids, valid))

    on_jax = Encoder(packaged_model(), "jax", transform=jax.jit)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count() or 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return ours, {
        "NumPy": lambda ids, valid: ours.embed(ours.weights, ids, valid),
        **{f"with {name}": by(name) for name in ("mkl", "onednn") if tensorops.is_backend_available(name)},
        "jax.jit": lambda ids, valid: on_jax.embed(on_jax.weights, ids, valid).block_until_ready(),
        "ONNX Runtime": lambda ids, valid: session.run(
            None, {"input_ids": ids.astype(np.int64), "attention_mask": valid.astype(np.int64)}
        )[0],
    }


def in_turns(functions: dict[str, Callable[[Any, Any], Any]], batch: Any, seconds: float) -> dict[str, float]:
    """Return the median time of each; their results must agree."""
    results = [np.asarray(function(*batch)) for function in functions.values()]
    for other in results[1:]:
        np.testing.assert_allclose(results[0], other, atol=1e-5)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(TURNS):
        for name, function in functions.items():
            function(*batch)
            end = time.perf_counter() + seconds / TURNS
            while time.perf_counter() < end:
                begun = time.perf_counter()
                function(*batch)
                times[name].append(time.perf_counter() - begun)
    return {name: median(each) for name, each in times.items()}


def report(model: str, seconds: float, say: Callable[[str], object]) -> None:
    """Measure batches of several sizes, each encoder for so long."""
    encoder, functions = encoders(model)
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "jax", "onnxruntime"))
    say(f"{platform.machine()}, {os.cpu_count()} processors; {versions}; the median time of a batch")
    say(f"{'sentences':>9}{'tokens':>8}" + "".join(f"{name:>15}" for name in functions))
    for sentences, repeats in BATCHES:
        batch = encoder.tokenize([SENTENCE * repeats] * sentences)
        times = in_turns(functions, batch, seconds)
        shown = "".join(f"{times[name] * 1e3:12.2f} ms" for name in functions)
        say(f"{sentences:9}{batch[1].sum():8}{shown}")


if __name__ == "__main__":
    report(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 8.0, print)
