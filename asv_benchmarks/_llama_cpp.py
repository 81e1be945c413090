"""A process that runs a model in llama.cpp: it reads requests line by line and answers with times in seconds.

It is separate because a crash of the library must not end the comparison. A request is a JSON list: the tokens of a
prompt and the number of tokens to add. The answer lists the seconds for the prompt and for each added token.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def load(path: str, context: int, threads: int) -> Any:
    """Return the model as a user of llama.cpp loads it, which repacks weights where that is faster."""
    import llama_cpp

    both = {"n_threads": threads, "n_threads_batch": threads}
    return llama_cpp.Llama(path, n_ctx=context, n_batch=512, n_ubatch=512, verbose=False, **both)


def run(model: Any, prompt: list[int], count: int) -> list[float]:
    """Read a prompt and add the likeliest tokens; return the seconds of each step."""
    import numpy as np

    model.reset()
    seconds = []
    tokens = prompt
    for _ in range(count + 1):
        start = time.perf_counter()
        model.eval(tokens)
        logits = np.ctypeslib.as_array(model._ctx.get_logits(), shape=(model.n_vocab(),))
        tokens = [int(logits.argmax())]
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Answer requests until the input ends."""
    path, context, threads = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what llama.cpp writes to standard output is no answer
    model = load(path, int(context), int(threads))
    for line in sys.stdin:
        prompt, count = json.loads(line)
        answers.write(json.dumps(run(model, prompt, count)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
