"""Models of transformers before and after `tensorops.torch.prepare_model`: reading a text, writing a token, training.

    python -m asv_benchmarks.bench_prepared [--threads N] [--seconds S] [--compiled] [MODELS …]

prints ratios of alternating calls in one process: above 1, the prepared model is faster. With --compiled, both models
are compiled by torch. The weights are random. A text has 128 tokens, and four of them are a batch for training. Times
are those of the processor, so that other processes disturb them less; with several threads, of the clock.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import click

from asv_benchmarks.bench_gradients import usual
from tensorops.kernels.cpu import _native

DTYPES = ("float32", "bfloat16")
TOKENS = 128
SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "max_position_embeddings": 1024,
}
# The class of a model, that of its configuration, and what differs
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "Llama, 1 layer": ("LlamaForCausalLM", "LlamaConfig", {"num_hidden_layers": 1, "vocab_size": 512}),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 64}),
    "Gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {"head_dim": 64}),
    "Mixtral": ("MixtralForCausalLM", "MixtralConfig", {"intermediate_size": 688, "num_local_experts": 8}),
    "BERT": ("BertForMaskedLM", "BertConfig", {"num_key_value_heads": None}),
}
STEPS = ("prefill", "decode", "training")


def build(name: str, dtype: str) -> Any:
    """Return a model with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    kind, config, other = MODELS[name]
    options = {key: value for key, value in (SIZES | other).items() if value is not None}
    model = getattr(transformers, kind)(getattr(transformers, config)(**options))
    return model.to(getattr(torch, dtype)).eval()


def step_of(model: Any, step: str) -> Callable[[], Any]:
    """Return one of the steps above as a function that can be called again and again."""
    import torch
    from transformers import StaticCache

    ids = torch.randint(0, 500, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    if step == "training":
        both = ids.repeat(4, 1)

        def train() -> Any:
            model.zero_grad(set_to_none=False)
            loss = model(both, labels=both).loss
            loss.backward()
            return loss.detach()

        return train
    if step == "prefill":
        return torch.no_grad()(lambda: model(ids).logits)
    cache = StaticCache(model.config, max_cache_len=2 * TOKENS)
    at = torch.tensor([TOKENS])

    @torch.no_grad()
    def decode() -> Any:  # always the same place in the cache
        for layer in cache.layers:
            if layer.is_initialized and hasattr(layer, "cumulative_length"):
                layer.cumulative_length = TOKENS if isinstance(layer.cumulative_length, int) else at[0].clone()
        return model(ids[:, -1:], cache=cache, position_ids=at[None], use_cache=True).logits

    with torch.no_grad():
        model(ids, cache=cache, use_cache=True)
    return decode


def pair(name: str, dtype: str, step: str, compiled: bool) -> list[Callable[[], Any]]:
    """Return a step of a model, and of the same model prepared."""
    import torch

    from tensorops.torch import prepare_model

    found = []
    for prepares in (False, True):
        model = build(name, dtype)
        if prepares:
            prepare_model(model)
        if compiled:
            torch._dynamo.reset()
        found.append(step_of(torch.compile(model) if compiled else model, step))
    return found


class Step:
    """A step, for asv."""

    params = (list(MODELS), list(DTYPES), list(STEPS), ["own", "prepared"])
    param_names = ("model", "dtype", "step", "forward")
    timeout = 300

    def setup(self, model: str, dtype: str, step: str, forward: str) -> None:
        if not has(model, step):
            raise NotImplementedError(f"{model} has no {step}")
        try:
            calls = pair(model, dtype, step, compiled=False)
        except ImportError as error:
            raise NotImplementedError(str(error)) from None
        self.call = calls[forward == "prepared"]
        self.call()

    def time_step(self, model: str, dtype: str, step: str, forward: str) -> None:
        self.call()


def has(model: str, step: str) -> bool:
    return model != "BERT" or step != "decode"


@click.command()
@click.option("--threads", default=1, show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="For each cell.")
@click.option("--compiled", is_flag=True, help="Compile both models by torch.")
@click.argument("models", nargs=-1, type=click.Choice(list(MODELS)))
def main(threads: int, seconds: float, compiled: bool, models: tuple[str, ...]) -> None:
    """Print the model's own time divided by that of the prepared model."""
    import torch
    import transformers
    from rich.console import Console
    from rich.table import Table

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(threads)
    _native.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    columns = [f"{step}, {dtype}" for dtype in DTYPES for step in STEPS]
    how = "both compiled by torch" if compiled else "eager"
    table = Table("model", *columns, title=f"a model's own time divided by that of the prepared model, {how}")
    ratios = []
    for name in models or MODELS:
        cells = []
        for dtype in DTYPES:
            for step in STEPS:
                if not has(name, step):
                    cells.append("-")
                    continue
                own, prepared = usual(pair(name, dtype, step, compiled), seconds, clock)
                ratios.append(own / prepared)
                cells.append(f"{own * 1e3:.2f} ms: {own / prepared:.2f}")
        table.add_row(name, *cells)
    console = Console(width=160)
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "transformers"))
    console.print(f"{platform.machine()}, {threads} of {os.cpu_count()} processors; {versions}")
    console.print(table)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    console.print(f"geometric mean {mean:.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
