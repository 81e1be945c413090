"""Types of the compiled module, whose functions are bound in ``native/cpu/module.cpp``."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorops._typing import Array

def relu(x: Array) -> Array: ...
def relu_supports(x: Array) -> str | None: ...
def relu_squared(x: Array) -> Array: ...
def relu_squared_supports(x: Array) -> str | None: ...
def sigmoid(x: Array) -> Array: ...
def sigmoid_supports(x: Array) -> str | None: ...
def silu(x: Array) -> Array: ...
def silu_supports(x: Array) -> str | None: ...
def softplus(x: Array) -> Array: ...
def softplus_supports(x: Array) -> str | None: ...
def gelu(x: Array, *, approximate: str = "none") -> Array: ...
def gelu_supports(x: Array, *, approximate: str = "none") -> str | None: ...
def quick_gelu(x: Array, *, alpha: float = 1.702) -> Array: ...
def quick_gelu_supports(x: Array, *, alpha: float = 1.702) -> str | None: ...
def mish(x: Array) -> Array: ...
def mish_supports(x: Array) -> str | None: ...
def hard_sigmoid(x: Array, *, alpha: float = 0.16666666666666666, beta: float = 0.5) -> Array: ...
def hard_sigmoid_supports(x: Array, *, alpha: float = 0.16666666666666666, beta: float = 0.5) -> str | None: ...
def hard_swish(x: Array) -> Array: ...
def hard_swish_supports(x: Array) -> str | None: ...
def elu(x: Array, *, alpha: float = 1.0) -> Array: ...
def elu_supports(x: Array, *, alpha: float = 1.0) -> str | None: ...
def selu(x: Array) -> Array: ...
def selu_supports(x: Array) -> str | None: ...
def leaky_relu(x: Array, *, negative_slope: float = 0.01) -> Array: ...
def leaky_relu_supports(x: Array, *, negative_slope: float = 0.01) -> str | None: ...
def swiglu(gate: Array, up: Array) -> Array: ...
def swiglu_supports(gate: Array, up: Array) -> str | None: ...
def geglu(gate: Array, up: Array) -> Array: ...
def geglu_supports(gate: Array, up: Array) -> str | None: ...
def reglu(gate: Array, up: Array) -> Array: ...
def reglu_supports(gate: Array, up: Array) -> str | None: ...
def softmax(
    x: Array, *, axis: int | tuple[int, ...] = -1, where: Array | None = None, dtype: object = None
) -> Array: ...
def softmax_supports(
    x: Array, *, axis: int | tuple[int, ...] = -1, where: Array | None = None, dtype: object = None
) -> str | None: ...
def log_softmax(
    x: Array, *, axis: int | tuple[int, ...] = -1, where: Array | None = None, dtype: object = None
) -> Array: ...
def log_softmax_supports(
    x: Array, *, axis: int | tuple[int, ...] = -1, where: Array | None = None, dtype: object = None
) -> str | None: ...
def logsumexp(x: Array, *, axis: int | tuple[int, ...] = -1, keepdims: bool = False, dtype: object = None) -> Array: ...
def logsumexp_supports(
    x: Array, *, axis: int | tuple[int, ...] = -1, keepdims: bool = False, dtype: object = None
) -> str | None: ...
def linear(x: Array, weight: Array, bias: Array | None = None) -> Array: ...
def linear_supports(x: Array, weight: Array, bias: Array | None = None) -> str | None: ...
def linear_tuned(x: Array, weight: Array, bias: Array | None = None, *, few_rows: int | None = None) -> Array: ...
def linear_configuration(x: Array, weight: Array, bias: Array | None = None) -> dict[str, int]: ...
def grouped_linear(x: Array, experts: Array, weight: Array, bias: Array | None = None) -> Array: ...
def grouped_linear_supports(x: Array, experts: Array, weight: Array, bias: Array | None = None) -> str | None: ...
def grouped_quantized_linear(
    x: Array,
    experts: Array,
    weight: Array,
    scales: Array,
    biases: Array | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
) -> Array: ...
def grouped_quantized_linear_supports(
    x: Array,
    experts: Array,
    weight: Array,
    scales: Array,
    biases: Array | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
) -> str | None: ...
def moe(
    x: Array,
    router_logits: Array,
    gate_up_proj: Array,
    down_proj: Array,
    *,
    gate_up_scales: Array | None = None,
    gate_up_biases: Array | None = None,
    down_scales: Array | None = None,
    down_biases: Array | None = None,
    e_score_correction_bias: Array | None = None,
    shared_gate_up_proj: Array | None = None,
    shared_down_proj: Array | None = None,
    shared_gate_up_scales: Array | None = None,
    shared_gate_up_biases: Array | None = None,
    shared_down_scales: Array | None = None,
    shared_down_biases: Array | None = None,
    shared_expert_gate: Array | None = None,
    top_k: int,
    scoring_func: str = "softmax",
    renormalize: bool = True,
    routed_scaling_factor: float = 1.0,
    activation: str = "swiglu",
    bits: int = 4,
    group_size: int = 32,
) -> Array: ...
def moe_supports(
    x: Array,
    router_logits: Array,
    gate_up_proj: Array,
    down_proj: Array,
    *,
    gate_up_scales: Array | None = None,
    gate_up_biases: Array | None = None,
    down_scales: Array | None = None,
    down_biases: Array | None = None,
    e_score_correction_bias: Array | None = None,
    shared_gate_up_proj: Array | None = None,
    shared_down_proj: Array | None = None,
    shared_gate_up_scales: Array | None = None,
    shared_gate_up_biases: Array | None = None,
    shared_down_scales: Array | None = None,
    shared_down_biases: Array | None = None,
    shared_expert_gate: Array | None = None,
    top_k: int,
    scoring_func: str = "softmax",
    renormalize: bool = True,
    routed_scaling_factor: float = 1.0,
    activation: str = "swiglu",
    bits: int = 4,
    group_size: int = 32,
) -> str | None: ...
def quantize(w: Array, *, bits: int, group_size: int, mode: str = "affine") -> tuple[Array, Array, Array | None]: ...
def quantize_supports(w: Array, *, bits: int, group_size: int, mode: str = "affine") -> str | None: ...
def dequantize(
    weight: Array,
    scales: Array,
    biases: Array | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    mode: str = "affine",
) -> Array: ...
def dequantize_supports(
    weight: Array,
    scales: Array,
    biases: Array | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    mode: str = "affine",
) -> str | None: ...
def quantized_linear(
    x: Array, weight: Array, scales: Array, biases: Array | None = None, *, bits: int = 4, group_size: int = 32
) -> Array: ...
def quantized_linear_supports(
    x: Array, weight: Array, scales: Array, biases: Array | None = None, *, bits: int = 4, group_size: int = 32
) -> str | None: ...

class WeightPanels:
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def bits(self) -> int: ...
    @property
    def group_size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def scale_dtype(self) -> int: ...
    @property
    def biased(self) -> bool: ...
    @property
    def memory(self) -> Array: ...
    def unpack(self) -> tuple[Array, Array, Array | None]: ...

def pack_panels(
    weight: Array, scales: Array, biases: Array | None = None, *, bits: int = 4, group_size: int = 32
) -> WeightPanels: ...
def pack_panels_supports(
    weight: Array, scales: Array, biases: Array | None = None, *, bits: int = 4, group_size: int = 32
) -> str | None: ...
def panel_linear(x: Array, weight: WeightPanels) -> Array: ...
def panel_linear_supports(x: Array, weight: WeightPanels) -> str | None: ...
def rms_norm(
    x: Array, weight: Array | None = None, eps: float = 1e-6, *, axis: int = -1, weight_offset: float = 0.0
) -> Array: ...
def rms_norm_supports(
    x: Array, weight: Array | None = None, eps: float = 1e-6, *, axis: int = -1, weight_offset: float = 0.0
) -> str | None: ...
def add_rms_norm(
    x: Array, residual: Array, weight: Array | None = None, eps: float = 1e-6, *, axis: int = -1
) -> tuple[Array, Array]: ...
def add_rms_norm_supports(
    x: Array, residual: Array, weight: Array | None = None, eps: float = 1e-6, *, axis: int = -1
) -> str | None: ...
def layer_norm(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    axis: int | tuple[int, ...] = -1,
) -> Array: ...
def layer_norm_supports(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    axis: int | tuple[int, ...] = -1,
) -> str | None: ...
def group_norm(
    x: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    channel_axis: int = 1,
) -> Array: ...
def group_norm_supports(
    x: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    channel_axis: int = 1,
) -> str | None: ...
def instance_norm(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    channel_axis: int = 1,
) -> Array: ...
def instance_norm_supports(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    channel_axis: int = 1,
) -> str | None: ...
def l2_norm(x: Array, eps: float = 1e-12, *, axis: int | tuple[int, ...] = -1) -> Array: ...
def l2_norm_supports(x: Array, eps: float = 1e-12, *, axis: int | tuple[int, ...] = -1) -> str | None: ...
def sample(
    logits: Array,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    rng: np.random.Generator | Array | None = None,
) -> Array: ...
def sample_supports(
    logits: Array,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    rng: np.random.Generator | Array | None = None,
) -> str | None: ...
def top_k(x: Array, k: int, *, axis: int = -1, largest: bool = True) -> tuple[Array, Array]: ...
def top_k_supports(x: Array, k: int, *, axis: int = -1, largest: bool = True) -> str | None: ...
def scaled_dot_product_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    lengths: Array | None = None,
    page_table: Array | None = None,
) -> Array: ...
def scaled_dot_product_attention_supports(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    lengths: Array | None = None,
    page_table: Array | None = None,
) -> str | None: ...
def xla_handlers() -> dict[str, object]: ...
def rope(
    x: Array,
    positions: Array | None = None,
    *,
    base: float = 10000.0,
    freqs: Array | None = None,
    cos: Array | None = None,
    sin: Array | None = None,
    interleaved: bool = False,
    dims: int | None = None,
    attention_factor: float = 1.0,
) -> Array: ...
def rope_supports(
    x: Array,
    positions: Array | None = None,
    *,
    base: float = 10000.0,
    freqs: Array | None = None,
    cos: Array | None = None,
    sin: Array | None = None,
    interleaved: bool = False,
    dims: int | None = None,
    attention_factor: float = 1.0,
) -> str | None: ...
def embedding(ids: Array, weight: Array) -> Array: ...
def embedding_supports(ids: Array, weight: Array) -> str | None: ...
def cross_entropy(
    logits: Array,
    targets: Array,
    weight: Array | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Array: ...
def cross_entropy_supports(
    logits: Array,
    targets: Array,
    weight: Array | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> str | None: ...
def linear_cross_entropy(
    x: Array,
    weight: Array,
    targets: Array,
    bias: Array | None = None,
    ce_weight: Array | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Array: ...
def linear_cross_entropy_supports(
    x: Array,
    weight: Array,
    targets: Array,
    bias: Array | None = None,
    ce_weight: Array | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> str | None: ...
def call_operators(operator: type, current: object, unplanned: object) -> None: ...
def opencl_kernel(
    operator: object,
    wrapper: object,
    array: object,
    generator: object,
    queues: dict[Any, Any],
    device_of: object,
    plan: object,
    otherwise: object,
) -> Callable[..., Any]: ...
def cuda_kernel(
    known: dict[Any, Any], owners: dict[Any, Any], generator: object, plan: object, otherwise: object
) -> Callable[..., Any]: ...
def describes_tensors(table: object) -> bool: ...
def torch_kernel(kernel: object, reading: object, otherwise: object) -> Callable[..., Any]: ...
def targets() -> list[str]: ...
def better_targets() -> list[str]: ...
def uses_openmp() -> bool: ...
def target() -> str: ...
def use_target(name: str) -> None: ...
def empty_like(array: Array) -> Array: ...
def memory_stats() -> dict[str, int]: ...
def set_cache_limit(nbytes: int) -> None: ...
def reset_peak() -> None: ...
def empty_cache() -> int: ...
def cpu_features() -> list[str]: ...
def set_num_threads(n: int) -> None: ...
def use_one_thread(only: bool) -> bool: ...
def use_processors(n: int) -> None: ...
def num_threads() -> int: ...

class Plan:
    def __init__(self, threads: int) -> None: ...
    def add_array(self, array: Array, shape: list[int]) -> int: ...
    def move_array(self, number: int, to: Array, offset: int) -> None: ...
    def add_call(
        self, handler: str, arguments: list[int], results: list[int], options: list[tuple[str, float]]
    ) -> bool: ...
    def run_by_rows(
        self, begin: int, rows: int, block: int, threads: int, arrays: list[list[tuple[int, int, int]]]
    ) -> None: ...
    @property
    def threads(self) -> int: ...
    def run(self, begin: int = 0, end: int | None = None) -> None: ...
    def profile(self, begin: int = 0, end: int | None = None) -> list[float]: ...

class Replay:
    def __init__(
        self,
        plan: Plan,
        arguments: tuple[Any, ...],
        copied: list[Array | None],
        results: Any,
        made: list[bool],
        written: list[Array],
    ) -> None: ...
    def __call__(self, arguments: tuple[Any, ...]) -> Any: ...
