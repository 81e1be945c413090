"""Language models written with tensorops operators: one program for every architecture and array library."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import WeakValueDictionary

import numpy as np

import tensorops as tp
from tensorops.persistent import Unpicklable
from tensorops.persistent.ranks import Ranks, connect

from .cache import FIRST_CAPACITY, PREFILL_TOKENS, KVCache, concat, layout, storage
from .config import ModelConfig
from .logprobs import LogProbs, likeliest
from .matrices import PRECISIONS, Matrix
from .mesh import MeshRanks
from .model_file import read_model
from .network import choose, forward, logits_of
from .pages import PagedKVCache
from .penalties import NONE, WINDOW, Penalties
from .persistent import StepOptions, on_host, persistent
from .prompt_cache import PromptCache
from .ranks import HEADS, WHOLE, divide
from .recommended import recommended_sampling
from .stopping import stop_texts, tokens_until
from .weights import arrange, frequencies, rope_tensors

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from .files.blocks import QuantizedWeight, Tensor
    from .tokenizers.tokenizer import Tokenizer

__all__ = ["LanguageModel", "Llama", "default_backend"]

Array = Any
Compiler: TypeAlias = "Callable[..., Callable[..., Any]]"
LOAD = "load its part of the network"  # which is what ranks do together
CACHE = (3, 4)  # the places of keys and values among the arguments of a compiled network
_LIKELY_TOKENS = 2048  # added to a prompt where no number is given: pages of a batch have room for them
POOLINGS = ("mean", "last", "cls")


def default_backend(mesh: Any = None) -> str:
    """Return the name of the backend in force; if none was chosen, ``cpu``, or ``numpy`` without compiled kernels.

    For a mesh, it is JAX's if none was chosen.
    """
    if (chosen := tp.get_backend()) != "auto":
        return chosen
    if mesh is not None:
        return MeshRanks.BACKEND
    return "cpu" if tp.is_backend_available("cpu") else "numpy"


def _sampling(temperature: float | None, top_k: int | None, top_p: float | None, min_p: float | None) -> dict[str, Any]:
    """Return options of `tensorops.sample`: the likeliest token, unless something says from which to sample."""
    if temperature is None:
        temperature = 0.0 if top_k is top_p is min_p is None else 1.0
    return {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}


def _choose(
    options: tuple[tuple[str, Any], ...],
    penalties: Penalties,
    logits: Callable[[Array, Matrix], Array],
    ranks: Ranks,
    hidden: Array,
    output: Matrix,
    rng: Any,
    *others: Array,
) -> Array:
    """Return the token that follows the only row of `hidden`, in an array."""
    return choose(penalties.apply(logits(hidden, output), *others), dict(options), ranks, rng)


def _connect(mesh: Any, world_size: int, mpi_rank: int | None, backend: str) -> Ranks:
    """Return the ranks that the arguments of `LanguageModel` describe."""
    if mesh is not None and (world_size != 1 or mpi_rank is not None):
        raise ValueError("mesh is for JAX, world_size and mpi_rank are for MPI: give only one of them")
    if mesh is not None:
        return MeshRanks(mesh, backend)
    return connect(world_size, mpi_rank, backend)


def _compiled_in_place(compile_: Compiler, network: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled network that writes into the cache, if the compiler has such an option."""
    try:
        options = signature(compile_).parameters
    except ValueError:  # a builtin function
        return compile_(network)
    return compile_(network, donate_argnums=CACHE) if "donate_argnums" in options else compile_(network)


class LanguageModel(Unpicklable):
    """A language model.

    Parameters
    ----------
    config : ModelConfig
        Its sizes.
    weights : mapping of str to array, QuantizedWeight or Tensor
        Float32 or quantised weights by their names in a GGUF file, or the tensors of such a file, which are read.
        Matrices are (out, in); which features of query and key heads rotate together, `config` says. Without
        ``output.weight`` the embedding is also the output matrix.
    tokenizer : Tokenizer, optional
        Needed for text only.
    backend : str, optional
        The backend that computes, as in `tensorops.set_backend`; the weights are moved there. By default the one in
        force; if none was chosen, ``cpu``, or ``numpy`` without compiled kernels.
    compile : callable, optional
        A compiler for functions of arrays, such as ``jax.jit``, applied to the network and to the choice of tokens.
        One with a parameter `donate_argnums`, as that has, is asked to write new keys and values into the cache's
        arrays.
    mesh : jax.sharding.Mesh, optional
        The devices, along its only axis, that share the network: each computes as many heads and hidden features as
        the others, and keeps the weights, keys and values of these. They may belong to several processes, which then
        call the same methods with the same arguments. The backend is then ``jax`` by default, and the compiler
        ``jax.jit``.
    world_size : int, optional
        The number of processes, started by ``mpiexec``, that share the network in the same way, with NumPy arrays. They
        call the same methods with the same arguments, and get the same results. Needs the extra ``mpi``.
    mpi_rank : int, optional
        The number that this process must have among them; by default MPI's.
    precision : {"highest", "high", "low"}, optional
        How accurate products with quantised weights have to be; see `tensorops.quantized_linear`. It matters where a
        kernel reads the blocks of a file.
    kv_dtype : {"float32", "float16", "bfloat16", "q8_0"}, optional
        How the keys and values of a text are kept. Attention computes with queries in float16 or bfloat16, too, then.
        With "q8_0", 32 neighbours are integers of 8 bits with a common scale, about a quarter of float32's bytes, which
        attention reads; see `kv_format` of `tensorops.scaled_dot_product_attention`. The states of gated delta nets
        stay float32.

    Attributes
    ----------
    context_length : int
        The most tokens of a text. By default the model's, and may be lowered: caches made after that grow no further.
    recommended : dict
        Options of `generate_ids` that the files of `load` recommend: a folder's ``generation_config.json``, or the keys
        ``general.sampling`` of a GGUF file. Empty if they say nothing about it.
    world_size, mpi_rank : int
        The number of devices or processes that share the network, and that of this one: of a mesh, of the first
        device of this process.

    Raises
    ------
    ValueError
        A weight is missing, unknown, or has the wrong shape; or the ranks cannot have equal parts of the heads, the
        hidden features, or the groups of quantised numbers, or differ from MPI's.
    ImportError
        `world_size` is more than 1, and mpi4py is not installed.

    Notes
    -----
    A block needs two sums over the ranks (Megatron-LM, https://arxiv.org/abs/1909.08053), and in OLMo two of one number
    a token for norms over all heads. The number of ranks divides the heads and the hidden features. It divides the
    heads of keys and values as well, or is a multiple of them: then several ranks have the same one. The embedding is
    whole on every rank. The rows of the output matrix are divided if the number of ranks divides the vocabulary; each
    token then needs all ranks' logits. A rank reads only its part of a file.
    """

    _refusal = (
        "a LanguageModel cannot be pickled: it holds compiled code and all weights; "
        "call LanguageModel.load in each process"
    )

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Array | QuantizedWeight | Tensor],
        tokenizer: Tokenizer | None = None,
        *,
        backend: str | None = None,
        compile: Compiler | None = None,  # noqa: A002
        mesh: Any = None,
        world_size: int = 1,
        mpi_rank: int | None = None,
        precision: str = "highest",
        kv_dtype: str = "float32",
    ) -> None:
        storage(config.head_dim, kv_dtype)  # raises unless there is such a dtype
        self.kv_dtype = kv_dtype
        if precision not in PRECISIONS:
            raise ValueError(f"precision is {precision!r}, expected one of {', '.join(PRECISIONS)}")
        backend = backend or default_backend(mesh)
        self.config = config
        self._context_length = config.context_length
        self.recommended: dict[str, Any] = {}
        self.tokenizer = tokenizer
        self._active = tp.set_backend(backend)
        with self._active:
            self.backend = tp.get_backend()  # an alias's proper name
        self._ranks = ranks = _connect(mesh, world_size, mpi_rank, backend)
        self.world_size, self.mpi_rank = ranks.size, ranks.rank
        self._part = divide(config, ranks.size)
        with ranks.together(LOAD), self._scope():
            self._weights, self._output = arrange(config, weights, backend, ranks, precision)
            self._rope_tensors = rope_tensors(weights)
        self._compile = compile = compile or ranks.compile
        network: Callable[..., Any] = partial(forward, self._part, ranks=ranks)
        network = ranks.spread(network, (self._weights, WHOLE, WHOLE, HEADS, HEADS), (WHOLE, HEADS, HEADS))
        self._network = _compiled_in_place(compile, network) if compile else network
        self._logits_of_rank = partial(logits_of, config, ranks)
        logits = ranks.spread(self._logits_of_rank, (WHOLE, self._output), WHOLE)
        self._logits = ranks.compile(logits) if ranks.compile else logits
        self._choosers: dict[tuple[Any, ...], Callable[..., Array]] = {}
        self._batch_steps: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._panels: WeakValueDictionary[Any, Any] = WeakValueDictionary()  # in use by steps

    def __repr__(self) -> str:
        return f"<LanguageModel: {', '.join(f'{name} {value}' for name, value in self._facts())}>"

    def _repr_html_(self) -> str:
        from html import escape

        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._facts())
        return f"<table><caption>LanguageModel</caption>{''.join(rows)}</table>"

    def _facts(self) -> tuple[tuple[str, str], ...]:
        c = self.config
        heads = f"{c.heads} ({c.kv_heads} of keys and values)"
        facts = {"architecture": c.architecture, "blocks": c.blocks, "features": c.dim, "heads": heads}
        facts |= {"vocabulary": c.vocab_size, "context": c.context_length, "backend": self.backend}
        facts |= {"ranks": self.world_size} if self.world_size > 1 else {}
        return tuple((name, str(value)) for name, value in facts.items())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        backend: str | None = None,
        *,
        compile: Compiler | None = None,  # noqa: A002
        mesh: Any = None,
        world_size: int = 1,
        mpi_rank: int | None = None,
        precision: str = "highest",
        kv_dtype: str = "float32",
    ) -> LanguageModel:
        """Load a model and its tokenizer.

        Quantised weights stay quantised if the backend has a kernel for them; otherwise they become float32.

        Parameters
        ----------
        path : str or path-like
            A GGUF file, or a folder of Hugging Face with ``config.json`` and safetensors files.
            `tensorops.models.architectures.names` lists the architectures.
        backend, compile, mesh, world_size, mpi_rank, precision, kv_dtype
            As for `LanguageModel`.

        Returns
        -------
        LanguageModel
            The model; without a tokenizer, if a folder has none.

        Raises
        ------
        GGUFError
            A file is damaged or needs an unsupported feature.
        ValueError, ImportError
            See `LanguageModel`.
        """
        with _connect(mesh, world_size, mpi_rank, backend or default_backend(mesh)).together(LOAD):
            file, config, tensors, tokenizer = read_model(path)
            recommended = recommended_sampling(file)
        options: dict[str, Any] = {"backend": backend, "compile": compile, "mesh": mesh, "world_size": world_size}
        model = cls(config, tensors, tokenizer, **options, mpi_rank=mpi_rank, precision=precision, kv_dtype=kv_dtype)
        model.recommended = recommended
        return model

    from_gguf = load

    @property
    def context_length(self) -> int:
        """The most tokens of a text; with LongRoPE it decides which factors caches and steps made later have."""
        return self._context_length

    @context_length.setter
    def context_length(self, tokens: int) -> None:
        if not 0 < tokens <= self.config.context_length:
            raise ValueError(
                f"context_length is {tokens}, expected 1 to the model's context length of {self.config.context_length}"
            )
        self._context_length = tokens
        if self._rope_tensors:
            with self._ranks.together(LOAD), self._scope():
                of_length = frequencies(self.config, self._rope_tensors, self.backend, self._ranks, tokens)
                self._weights["frequencies"] = of_length

    def new_cache(self, capacity: int = FIRST_CAPACITY, *, kv_dtype: str | None = None) -> KVCache:
        """Return an empty cache, to be passed to successive calls.

        Parameters
        ----------
        capacity : int
            For how many tokens it has room. It grows when it is full; blocks with a window, only until they have room
            for what a token sees and 512 more.
        kv_dtype : {"float32", "float16", "bfloat16", "q8_0"}, optional
            How keys and values are kept; by default as the model says.

        Returns
        -------
        KVCache
            The cache.
        """
        c = self._part
        empty = [[np.zeros(*each) for each in part] for part in layout(c, capacity, kv_dtype or self.kv_dtype)]
        keys, values = self._move(empty, HEADS)
        return KVCache(keys, values, self.context_length, c, PREFILL_TOKENS)

    def new_prompt_cache(self) -> PromptCache:
        """Return an empty cache for `generate_ids`, which then reads only what a text has not in common with the last.

        Returns
        -------
        PromptCache
            The cache.
        """
        return PromptCache(self.new_cache())

    def _move(self, tree: Any, axis: int = WHOLE) -> Any:
        """Return a rank's arrays of NumPy in the backend's library."""
        return self._ranks.place(lambda rank: tp.to_backend(tree, self.backend), axis)

    def __call__(self, ids: Sequence[int], cache: KVCache | None = None) -> Array:
        """Return the logits of the token that follows each of `ids`.

        A long text is processed in pieces, so little memory is needed besides that of the logits.

        Parameters
        ----------
        ids : sequence of int
            Token ids; they continue those in the cache.
        cache : KVCache, optional
            From `new_cache`; `ids` are added to it.

        Returns
        -------
        array of float32, shape (tokens, vocab_size)
            Logits, an array of the backend's library.

        Raises
        ------
        ValueError
            There is no token, an id is not in the vocabulary, or the text exceeds the context length.
        """
        pieces = list(self._read(ids, self.new_cache() if cache is None else cache))
        with self._scope():
            return self._logits(concat(pieces, axis=0), self._output)

    def logprobs(self, ids: Sequence[int], *, top: int = 0, cache: KVCache | None = None) -> LogProbs:
        """Return how likely the model finds each token of a text, given those before.

        Parameters
        ----------
        ids : sequence of int
            At least one token; the first one, before which there is none, has no probability.
        top : int, optional
            How many of the likeliest tokens at each place are returned as well.
        cache : KVCache, optional
            From `new_cache`, with the tokens before `ids`; all but the last of `ids` are added to it.

        Returns
        -------
        LogProbs
            Natural logarithms of probabilities in arrays of NumPy: ``chosen``, of the tokens after the first,
            ``top_ids`` and ``top``, of the likeliest ones, (tokens - 1, top). Temperature, penalties and the like have
            no part in them.

        Raises
        ------
        ValueError
            As for a call; or `top` is negative or more than the vocabulary.
        """
        checked = self._check_ids(ids)
        if not 0 <= top <= self.config.vocab_size:
            raise ValueError(f"top is {top}, expected 0 to the vocabulary's {self.config.vocab_size}")
        nothing = np.empty((0, self.config.vocab_size), dtype=np.float32)
        pieces = [likeliest(nothing, checked[:0], top)]
        following = checked[1:]
        before = [int(token) for token in checked[:-1]]
        hidden = self._read(before, self.new_cache() if cache is None else cache) if before else iter(())
        for piece in hidden:
            with self._scope():
                found = tp.to_backend(tp.log_softmax(self._logits(piece, self._output)), "numpy")
            pieces.append(likeliest(np.asarray(found), following[: found.shape[0]], top))
            following = following[found.shape[0] :]
        return LogProbs(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))

    def embed(self, text: str | Sequence[int] | Sequence[str | Sequence[int]], pooling: str = "mean") -> Array:
        """Return a text as a vector: the features after the last norm, pooled.

        Parameters
        ----------
        text : str, sequence of int, or sequence of these
            A text, its tokens, or several of either.
        pooling : {"mean", "last", "cls"}
            The mean over the tokens, the features of the last one, or of the first one. Each token has seen those
            before it only, so "cls" suits no causal model that was not trained with it.

        Returns
        -------
        array of float32, shape (features,) or (texts, features)
            An array of the backend's library.

        Raises
        ------
        ValueError
            As for a call; or there is no such pooling, no text, or a text and no tokenizer.
        """
        if pooling not in POOLINGS:
            raise ValueError(f"pooling is {pooling!r}, expected one of {', '.join(POOLINGS)}")
        if isinstance(text, str) or (len(text) and isinstance(text[0], int | np.integer)):
            return self._embed(cast("str | Sequence[int]", text), pooling)[0, :]
        if not len(text):
            raise ValueError("there is no text")
        rows = [self._embed(each, pooling) for each in cast("Sequence[str | Sequence[int]]", text)]
        with self._scope():
            return concat(rows, axis=0)

    def _embed(self, text: str | Sequence[int], pooling: str) -> Array:
        """Return a row of features."""
        if isinstance(text, str):
            if self.tokenizer is None:
                raise ValueError("this model has no tokenizer: give token ids")
            text = self.tokenizer.encode(text)
        pooled: Array = None
        for piece in self._read(text, self.new_cache()):
            with self._scope():
                xp = tp.get_namespace(piece)
                rows = xp.asarray(piece)
                if pooling == "mean":
                    part = xp.sum(rows, axis=0, keepdims=True)
                    pooled = part if pooled is None else pooled + part
                elif pooling == "last" or pooled is None:
                    pooled = rows[-1:, :] if pooling == "last" else rows[:1, :]
        return tp.to_backend(pooled / len(text) if pooling == "mean" else pooled, self.backend)

    def generate(self, prompt: str | Sequence[dict[str, str]], *, chat: bool = False, **options: Any) -> Iterator[str]:
        """Continue a text, piece by piece.

        Parameters
        ----------
        prompt : str, or sequence of dict with ``role`` and ``content``
            What to continue.
        chat : bool
            Treat the prompt as a user's message and apply the model's chat template. A sequence of messages always
            uses it.
        **options
            As for `generate_ids`.

        Returns
        -------
        iterator of str
            Pieces of text as they become known, in whole characters. Of a text in `stop`, nothing is among them.

        Raises
        ------
        ValueError
            There is no tokenizer, or the prompt is empty or too long.
        """
        if self.tokenizer is None:
            raise ValueError("this model has no tokenizer: use generate_ids")
        ids = self.tokenizer.encode_prompt(prompt, chat=chat)
        return self.tokenizer.stream(self.generate_ids(ids, **options), stop=options.get("stop"))

    def generate_ids(
        self,
        ids: Sequence[int],
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        repeat_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_last_n: int = WINDOW,
        logit_bias: Mapping[int, float] | None = None,
        stop: str | Sequence[str] | None = None,
        prompt_cache: PromptCache | None = None,
        on_read: Callable[[int, int], object] | None = None,
    ) -> Iterator[int]:
        """Continue a sequence of tokens until the model ends it.

        Parameters
        ----------
        ids : sequence of int
            At least one token.
        max_new_tokens : int, optional
            The maximum number of tokens to add, 0 or more; with the prompt they must fit the context length. By default
            as many as fit.
        temperature, top_k, top_p, min_p
            As for `tensorops.sample`; temperature 0 chooses the likeliest token. It is the default, unless one of the
            others is given, which need a temperature: 1 then. What the model's files recommend is in `recommended`, and
            counts where it is passed: ``model.generate_ids(ids, **model.recommended)``.
        seed : int, optional
            Makes sampling repeatable.
        repeat_penalty, presence_penalty, frequency_penalty : float, optional
            Lower the logits of tokens that are among the last `repeat_last_n`, the prompt's included, as llama.cpp
            does: logits that are positive are divided by `repeat_penalty`, the others multiplied; then
            `presence_penalty` is subtracted once, and `frequency_penalty` as often as the token is there. 1, 0 and 0
            change nothing.
        repeat_last_n : int, optional
            -1 for all tokens, as for transformers' ``repetition_penalty``.
        logit_bias : mapping of int to float, optional
            Added to the logits of some tokens before that, as OpenAI does; -inf forbids one.
        stop : str or sequence of str, optional
            Texts that end the result: the token that completes one is the last. `generate` leaves the text out. They
            may have control tokens in them, such as ``<|im_start|>``.
        prompt_cache : PromptCache, optional
            From `new_prompt_cache`. Tokens that `ids` and the text in it begin with are not read again; it then has
            this text.
        on_read : callable, optional
            Called after each piece of the prompt, with the number of tokens that are in the cache, and that of `ids`.

        Returns
        -------
        iterator of int
            Token ids, without the one that ends the text.

        Raises
        ------
        ValueError
            The prompt is empty or too long, an id is not in the vocabulary, a number is out of range, or there is a
            text in `stop` and no tokenizer.
        """
        ids = [int(token) for token in self._check_ids(ids)]
        count = self.count_new_tokens(len(ids), max_new_tokens)
        rng = np.random.default_rng(seed)
        pick = _sampling(temperature, top_k, top_p, min_p) | {"rng": rng}
        penalties = self._penalties(repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n, logit_bias)
        stops = self._stop_texts(stop)
        found = self._continue(ids, count, pick, penalties, prompt_cache or self.new_prompt_cache(), on_read)
        return tokens_until(found, self.tokenizer.bytes_of, stops) if stops and self.tokenizer else found

    def _penalties(
        self, repeat: float, presence: float, frequency: float, last: int, bias: Mapping[int, float] | None
    ) -> Penalties:
        if bias:
            self._check_ids(list(bias))
        return Penalties(repeat, presence, frequency, last, tuple(sorted((bias or {}).items())))

    def _stop_texts(self, stop: str | Sequence[str] | None) -> tuple[str, ...]:
        stops = stop_texts(stop)
        if stops and self.tokenizer is None:
            raise ValueError("this model has no tokenizer, which stop needs")
        return stops

    def count_new_tokens(self, prompt: int, max_new_tokens: int | None = None) -> int:
        """Return how many tokens `generate_ids` may add to a prompt.

        Parameters
        ----------
        prompt : int
            The number of tokens of the prompt.
        max_new_tokens : int, optional
            As for `generate_ids`.

        Returns
        -------
        int
            `max_new_tokens`, or as many as the context has room for.

        Raises
        ------
        ValueError
            They do not fit, or `max_new_tokens` is negative.
        """
        limit = self.context_length
        count = max(limit - prompt, 1) if max_new_tokens is None else max_new_tokens
        if count < 0:
            raise ValueError(f"max_new_tokens is {count}, expected 0 or more")
        if (total := prompt + count) > limit:
            whose = "the model's" if limit == self.config.context_length else "the chosen"
            raise ValueError(
                f"{prompt} tokens of prompt and {count} new ones make {total}, "
                f"more than {whose} context length of {limit}"
            )
        return count

    def generate_batch(
        self,
        prompts: Iterable[Sequence[int]],
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        repeat_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_last_n: int = WINDOW,
        logit_bias: Mapping[int, float] | None = None,
        stop: str | Sequence[str] | None = None,
        max_batch: int = 8,
        max_seq_length: int | None = None,
        page_size: int = 32,
        max_num_pages: int | None = None,
        kv_dtype: str | None = None,
        on_end: Callable[[int], object] | None = None,
    ) -> Iterator[tuple[int, int]]:
        """Continue several sequences of tokens together: the weights are read once for all of them.

        Sequences begin as others end. Each gets the tokens that `generate_ids` gives it, up to rounding.

        Parameters
        ----------
        prompts : sequence of sequence of int
            At least one token each.
        max_new_tokens : int, optional
            The most tokens to add to each, 0 or more; by default as many as fit.
        temperature, top_k, top_p, min_p, seed, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n,
        logit_bias, stop
            As for `generate_ids`.
        max_batch : int
            The most sequences at a time.
        max_seq_length : int, optional
            The most tokens of a sequence; by default of the longest prompt and its new tokens, or the context length.
        page_size : int
            How many tokens a page of the cache holds; see `PagedKVCache`.
        max_num_pages : int, optional
            How many pages there are; by default enough for `max_batch` sequences of `max_seq_length` or, without
            `max_new_tokens`, of 2,048 tokens more than the longest prompt. With fewer, sequences wait, and the youngest
            may have to begin again.
        kv_dtype : {"float32", "float16", "bfloat16", "q8_0"}, optional
            How keys and values are kept; by default as the model says.
        on_end : callable, optional
            Called with the number of each prompt whose text is complete, after its last token.

        Returns
        -------
        iterator of (int, int)
            The number of a prompt and its next token, as it becomes known; not the one that ends the text.

        Raises
        ------
        ValueError
            A prompt is empty or too long, an id is not in the vocabulary, a number is out of range, the devices of a
            mesh share the network, or there is a text in `stop` and no tokenizer.
        OutOfPagesError
            While it runs: there are too few pages for a single sequence.
        """
        from .batch import Batch

        for name, value in (("max_batch", max_batch), ("page_size", page_size)):
            if isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}, expected at least 1")
        if max_new_tokens is not None and max_new_tokens < 0:
            raise ValueError(f"max_new_tokens is {max_new_tokens}, expected 0 or more")
        penalties = self._penalties(repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n, logit_bias)
        prompts = list(prompts)  # it may be a generator, and is gone through twice
        if not prompts:
            return iter(())
        context, longest = self.context_length, max(map(len, prompts))
        likely = longest + (_LIKELY_TOKENS if max_new_tokens is None else max_new_tokens)
        most = context if max_new_tokens is None else min(likely, context)
        most = most if max_seq_length is None else max_seq_length
        if not 0 < most <= context:
            raise ValueError(f"max_seq_length is {most}, expected 1 to the context length, {context}")
        number = max_num_pages
        if number is None:
            number = max(max_batch * -(-min(likely, most) // page_size), -(-most // page_size))
        cache = self.new_paged_cache(page_size, number, dtype=kv_dtype, max_sequences=max_batch)
        pick, stops = _sampling(temperature, top_k, top_p, min_p), self._stop_texts(stop)
        batch = Batch(self, cache, max_batch, most, pick, seed, on_end, penalties, stops)
        for ids in prompts:
            batch.add(ids, max(most - len(ids), 1) if max_new_tokens is None else max_new_tokens)
        return batch.run()

    def persistent(
        self,
        *,
        mode: str = "decode",
        batch: int = 1,
        length: int | None = None,
        max_seq_length: int | None = None,
        page_size: int | None = None,
        max_num_pages: int | None = None,
        kv_dtype: str | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        num_workers: int | None = None,
        repack: bool | None = None,
        profile: bool = False,
    ) -> tp.PersistentKernel:
        """Compile a step of this model.

        Parameters
        ----------
        mode : {"decode", "prefill", "onepass"}
            From one token of each sequence to the next; from many tokens of one sequence to the next; from many tokens
            to the logits after each, without a cache.
        batch : int
            The number of sequences, in pages if there are several.
        length : int, optional
            How many tokens a run of mode "prefill" or "onepass" has.
        max_seq_length : int, optional
            The most tokens of a sequence; by default the context length.
        page_size, max_num_pages : int, optional
            Keep keys and values in pages of that many tokens, as `new_paged_cache` makes them with
            ``max_sequences=batch``; by default, there are enough for `batch` sequences.
        kv_dtype : {"float32", "float16", "bfloat16", "q8_0"}, optional
            How pages keep keys and values; by default as the model says.
        temperature, top_k, top_p, min_p
            As for `generate_ids`.
        repack : bool, optional
            As for `tensorops.PersistentKernel`. By default, mode "decode" does: its copy of affine groups takes as much
            memory again, where there is one. Interleaved blocks are read as they are.
        num_workers, profile
            See `tensorops.PersistentKernel`.

        Returns
        -------
        PersistentKernel
            A run with a position that is not in the cache is a ValueError. With the temperature not 0, uniform random
            numbers of float32 and shape (batch,) are the last argument. The others are

            * ``(ids, positions, keys, values)`` of mode "decode": the last token and its position, arrays of int32 of
              shape (1,); keys and values, lists of an array of float32 of shape (1, kv_heads, max_seq_length, head_dim)
              for each block, such as those of ``new_cache(max_seq_length)``, which the step overwrites. It returns the
              next token, keys and values.
            * ``(ids, positions, keys, values, table, places)`` with pages: those of `PagedKVCache`, and what its
              method `step` returns. It returns the next token of each sequence, keys and values.
            * ``(ids, start, count, keys, values)`` of mode "prefill": tokens of shape (length,), the position of the
              first one, how many of them there are, and the cache of mode "decode". Tokens after the first `count` have
              no effect, but the cache has places for them. It returns the token that follows, keys and values.
            * ``(ids,)`` of mode "onepass": tokens of shape (length,). It returns logits of shape (length, vocab_size),
              which do not depend on later tokens.

        Raises
        ------
        ValueError
            A number is out of range, options do not belong together, or the backend cannot replay steps.
        """
        pick = _sampling(temperature, top_k, top_p, min_p)
        sizes = (length, max_seq_length, page_size, max_num_pages)
        options = StepOptions(mode, batch, *sizes, kv_dtype, pick)
        repack = mode == "decode" if repack is None else repack
        return persistent(self, options, num_workers=num_workers, repack=repack, profile=profile)

    def new_paged_cache(
        self, page_size: int, max_num_pages: int, *, dtype: str | None = None, max_sequences: int = 8
    ) -> PagedKVCache:
        """Return empty pages for keys and values of many sequences.

        Parameters
        ----------
        page_size, max_num_pages, dtype, max_sequences
            See `PagedKVCache`; by default, the dtype is the model's `kv_dtype`.

        Returns
        -------
        PagedKVCache
            The pages, of this rank's heads.

        Raises
        ------
        ValueError
            A number is out of range, or the devices of a mesh share the network.
        """
        if isinstance(self._ranks, MeshRanks):
            raise ValueError("the devices of a mesh share no pages: they take a sequence at a time")
        options = {"dtype": dtype or self.kv_dtype, "backend": self.backend}
        return PagedKVCache(self._part, page_size, max_num_pages, max_sequences=max_sequences, **options)

    def _continue(
        self,
        ids: list[int],
        count: int,
        pick: dict[str, Any],
        penalties: Penalties,
        known: PromptCache,
        on_read: Callable[[int, int], object] | None,
    ) -> Iterator[int]:
        if not count:
            return
        cache = known.cache
        end_ids = self.tokenizer.end_ids if self.tokenizer else frozenset()
        for hidden in self._read(known.begin(ids), cache):
            last = hidden
            if on_read is not None:
                on_read(cache.length, len(ids))
        token = self._pick(last, pick, penalties, ids)
        for left in range(count - 1, -1, -1):
            # A compiled step begins before the token in front of it is known here: to start one takes a while, in which
            # libraries that compute in the background would otherwise wait. After the last token, one is in vain.
            # Penalties depend on the token, so it has to be known.
            ahead = self._step(token, cache, pick) if left and self._compile and not penalties else None
            (number,) = on_host(token)
            if number in end_ids:
                return
            known.append(number)
            ids.append(number)
            yield number
            if left:
                following = np.asarray([number], dtype=np.int32)
                token = self._step(following, cache, pick, penalties, ids) if ahead is None else ahead

    def _step(
        self, token: Array, cache: KVCache, pick: dict[str, Any], penalties: Penalties = NONE, ids: Sequence[int] = ()
    ) -> Array:
        """Return the token that follows another one, each in an array."""
        return self._pick(self._read_piece(token, cache), pick, penalties, ids)

    def _piece(self, left: int) -> int:
        """Return how many of the remaining tokens go through the network at once."""
        size = min(left, PREFILL_TOKENS)
        # Every new length is compiled again, so a compiled network sees only powers of two.
        return 1 << (size.bit_length() - 1) if self._compile else size

    def _read(self, ids: Sequence[int], cache: KVCache) -> Iterator[Array]:
        """Yield the features of `ids`, piece by piece, and add them to the cache."""
        left = self._check_ids(ids)
        cache.require(len(left))  # before the first piece: all are added or none
        while len(left):
            size = self._piece(len(left))
            yield self._read_piece(left[:size], cache)
            left = left[size:]

    def _read_piece(self, ids: Array, cache: KVCache) -> Array:
        """Return the features of tokens in an array of NumPy or, if the network is compiled, of the backend."""
        count = ids.shape[0]
        with self._scope():
            cache.reserve(count)
            places = cache.places(count)
            moved = self._move((ids, places)) if isinstance(ids, np.ndarray) else (ids, self._move(places))
            options = {}
            if cache.is_writable and not self._compile:
                options = {"starts": tuple(places[:, 0].tolist()), "token": int(ids[0]) if count == 1 else None}
            hidden, keys, values = self._network(self._weights, *moved, cache.keys, cache.values, **options)
        cache.store(keys, values, count)
        return hidden

    def _pick(self, hidden: Array, pick: dict[str, Any], penalties: Penalties = NONE, ids: Sequence[int] = ()) -> Array:
        """Choose the token that follows the last row of `hidden`, in an array; `ids` are those that penalties look at.

        Under a compiler, what changes with every token has to be an argument.
        """
        options = tuple((name, value) for name, value in pick.items() if name != "rng")
        with self._scope():
            hidden = hidden if hidden.shape[0] == 1 else hidden[-1:, :]
            choose = partial(_choose, options, penalties, self._logits_of_rank, self._ranks)
            others = self._move(penalties.arrays([ids], self.config.vocab_size))
            if self._compile is None:
                return choose(hidden, self._output, pick["rng"], *others)
            kind = (options, penalties)
            if kind not in self._choosers:
                spread = self._ranks.spread(choose, (WHOLE, self._output, WHOLE, *(WHOLE for _ in others)), WHOLE)
                self._choosers[kind] = self._compile(spread)
            numbers = None
            if pick["temperature"] > 0:  # under a compiler, a generator's numbers would become constants
                numbers = self._move(pick["rng"].random(1, dtype=np.float32))
            return self._choosers[kind](hidden, self._output, numbers, *others)

    def _scope(self) -> AbstractContextManager[None]:
        """Put the model's backend in force, unless it already is; a choice of providers made outside then applies."""
        return nullcontext() if tp.get_backend() == self.backend else self._active

    def _check_ids(self, ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
        array = np.asarray(ids)
        if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
            raise ValueError(f"ids must be a non-empty sequence of integers, not {ids!r:.80}")
        size = self.config.vocab_size
        for token in (int(array.min()), int(array.max())):
            if not 0 <= token < size:
                raise ValueError(f"token id {token} is outside the vocabulary of {size} tokens")
        return array.astype(np.int32)


Llama = LanguageModel
