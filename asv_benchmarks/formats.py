"""Random models in the types of llama.cpp's files, on the processor, compared with llama.cpp.

usage: python -m asv_benchmarks.formats FOLDER --tokenizer FILE [--types Q4_0,Q4_K_M,…] [--rounds 3]

FOLDER keeps the models, of which each is made if it is missing. FILE is a GGUF file that lends its tokenizer. Prints
tokens per second of llama.cpp, and our speed divided by it for each precision. TENSOROPS_NUM_THREADS sets the threads
of both, TENSOROPS_CPU_TARGET our instructions.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np

from asv_benchmarks import random_model
from asv_benchmarks.model import PREFILL, Process, Runner, run
from tensorops.benchmarks.measuring import threads
from tensorops.kernels.cpu import _native
from tensorops.models import Llama

PROMPT, NEW_TOKENS = 8, 32
PRECISIONS = ("highest", "low")
TYPES = "Q4_0,Q4_1,Q8_0,Q4_K_M,Q5_K_M,Q6_K,IQ4_XS"


def made(folder: Path, tokenizer: Path, type_name: str) -> Path:
    """Return the file of a type, made if it is missing."""
    path, plain = folder / f"{type_name}.gguf", folder / "F16.gguf"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        if not plain.exists():
            random_model.write(tokenizer, plain)
        random_model.quantize(plain, path, type_name)
    return path


def speeds(runners: dict[str, Runner], ids: list[int], rounds: int) -> dict[str, tuple[float, float]]:
    """Return tokens per second of decoding and of prefill, medians over rounds in which all take their turn."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runners}
    for runner in runners.values():
        runner(ids[:PROMPT], 2)  # touches memory and starts threads
    for _ in range(rounds):
        for name, runner in runners.items():
            _, *steps = runner(ids[:PROMPT], NEW_TOKENS)
            found[name].append((1 / median(steps), len(ids) / runner(ids, 0)[0]))
    return {name: (median(d for d, _ in each), median(p for _, p in each)) for name, each in found.items()}


def compare(path: Path, rounds: int, threads: int) -> str:
    """Return a line of the table."""
    runners: dict[str, Runner] = {}
    with Process(path, PREFILL + NEW_TOKENS, threads) as process:
        if process.problem:
            raise SystemExit(f"llama.cpp: {process.problem}")
        runners["llama.cpp"] = process.run
        for precision in PRECISIONS:
            llama = Llama.from_gguf(path, "cpu", precision=precision)
            runners[precision] = lambda ids, count, llama=llama: run(llama, ids, count)  # type: ignore[misc]
        ids = np.random.default_rng(0).integers(100, 40000, PREFILL).tolist()
        found = speeds(runners, ids, rounds)
    decode, prefill = found.pop("llama.cpp")
    ours = "".join(f"{d / decode:9.2f}{p / prefill:9.2f}" for d, p in found.values())
    return f"{path.stem:8s}{path.stat().st_size / 2**20:7.0f}{decode:9.1f}{prefill:9.0f}{ours}"


def print_table(paths: Iterable[Path], what: str, rounds: int) -> None:
    """Print a line for each of some files."""
    say = functools.partial(print, flush=True)
    say(f"target {_native.target()}, {threads()} threads, llama-cpp-python {version('llama_cpp_python')}")
    say(f"{'':8s}{'':7s}{'llama.cpp, tokens/s':>18s}{'x: highest':>18s}{'x: low':>18s}")
    say(f"{what:8.8s}{'MiB':>7s}" + f"{'decode':>9s}{'prefill':>9s}" * 3)
    for path in paths:
        say(compare(path, rounds, threads()))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    paths = (made(options.folder, options.tokenizer, type_name) for type_name in options.types.split(","))
    print_table(paths, "type", options.rounds)


if __name__ == "__main__":
    main()
