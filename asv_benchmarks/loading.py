"""What it takes to load language models on the processor: time and memory, as multiples of reading their files.

usage: python -m asv_benchmarks.loading FILE… [--rounds 5]

Each file is loaded in a process of its own, which has imported the library and then writes one token. `cold` is the
time to load a file that is not in the memory of the system, divided by that of reading it so, `warm` the same for one
that is; `memory` is what the process needs at most, besides what it needed before, divided by the file's size. Linux
only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

_MIB = 1 << 20
_CHILD = """
import sys, time
from pathlib import Path
from tensorops.models import LanguageModel

def memory(kind):
    return 1024 * int(Path("/proc/self/status").read_text().partition(kind + ":")[2].split()[0])

before = memory("VmRSS")
start = time.perf_counter()
model = LanguageModel.load(sys.argv[1], backend="cpu")
seconds = time.perf_counter() - start
list(model.generate("One", max_new_tokens=1))
print(seconds, memory("VmHWM") - before)
"""


def read(path: Path) -> float:
    """Return the seconds of reading a file in pieces, into the same memory."""
    piece = bytearray(_MIB)
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(piece):
            pass
    return time.perf_counter() - start


def forget(path: Path) -> None:
    """Let the system take a file out of its memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load(path: Path) -> tuple[float, float]:
    """Return the seconds of loading a file, and the bytes that its process needs for that and for one token."""
    command = [sys.executable, "-c", _CHILD, str(path)]
    seconds, nbytes = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return float(seconds), float(nbytes)


def measure(path: Path, rounds: int) -> str:
    """Return a line of the table: medians over rounds in which all take their turn."""
    cold, warm, needed = [], [], []
    for _ in range(rounds):
        forget(path)
        reading = read(path)
        forget(path)
        cold.append(load(path)[0] / reading)
        reading = read(path)
        seconds, nbytes = load(path)
        warm.append(seconds / reading)
        needed.append(nbytes / path.stat().st_size)
    return f"{path.stem:<40}{path.stat().st_size / _MIB:>6.0f}" + "".join(
        f"{median(each):>8.2f}" for each in (cold, warm, needed)
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a GGUF file")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{'':<40}{'MiB':>6}{'cold':>8}{'warm':>8}{'memory':>8}")  # noqa: T201
    for path in options.files:
        print(measure(path, options.rounds), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
