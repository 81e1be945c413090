"""Quantised weights in folders, written here from the definitions of their layouts."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import ml_dtypes
from safetensors.numpy import load_file, save_file

import tensorops as tp
import tiny_networks
from tensorops.models import GGUFError, LanguageModel
from tiny_networks import IDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RNG = np.random.default_rng(0)
SIZE = 32  # of a group
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def groups(w: np.ndarray, bits: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return integers (out, in), scales and whole zeros (out, groups)."""
    parts = w.reshape(w.shape[0], -1, SIZE).astype(np.float64)
    low, high = parts.min(-1), parts.max(-1)
    scales = ((high - low) / (2**bits - 1)).astype(np.float16).astype(np.float64)
    zeros = np.clip(np.round(-low / scales), 1, 2**bits - 1)
    codes = np.clip(np.round(parts / scales[..., None] + zeros[..., None]), 0, 2**bits - 1)
    return codes.reshape(w.shape).astype(np.int64), scales, zeros.astype(np.int64)


def values(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    return (codes - zeros.repeat(SIZE, 1)) * scales.repeat(SIZE, 1)


def words(numbers: np.ndarray, axis: int, order: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)) -> np.ndarray:
    """Return integers of 32 bits: the number at place `order[i]` of eight has the bits from 4 i on."""
    eights = np.moveaxis(numbers, axis, -1).reshape(*np.moveaxis(numbers, axis, -1).shape[:-1], -1, 8)
    word = sum(eights[..., place] << (4 * i) for i, place in enumerate(order))
    return np.ascontiguousarray(np.moveaxis(word, -1, axis).astype(np.uint32).view(np.int32))


Layout = tuple[dict[str, np.ndarray], np.ndarray]


def gptq(w: np.ndarray, is_shuffled: bool = False) -> Layout:
    codes, scales, zeros = groups(w)
    index = np.arange(w.shape[1]) // SIZE
    exact = values(codes, scales, zeros)
    if is_shuffled:
        order = RNG.permutation(w.shape[1])
        codes, index, exact = codes[:, order], index[order], exact[:, order]
    parts = {"qweight": words(codes.T, 0), "qzeros": words(zeros.T - 1, 1), "scales": scales.T.astype(np.float16),
             "g_idx": index.astype(np.int32)}  # fmt: skip
    return parts, exact


def awq(w: np.ndarray) -> Layout:
    codes, scales, zeros = groups(w)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    parts = {"qweight": words(codes.T, 1, order), "qzeros": words(zeros.T, 1, order),
             "scales": scales.T.astype(np.float16)}  # fmt: skip
    return parts, values(codes, scales, zeros)


def fp8(w: np.ndarray) -> Layout:
    scale = np.float32(np.abs(w).max() / 448)
    stored = (w / scale).astype(ml_dtypes.float8_e4m3fn)
    return {"weight": stored, "weight_scale_inv": np.full((1, 1), scale)}, stored.astype(np.float64) * scale


def fp8_by_block(w: np.ndarray) -> Layout:
    count = -(-w.shape[0] // 128)
    scale = (RNG.uniform(1, 2, (count, w.shape[1] // 128)) * np.abs(w).max() / 448).astype(np.float32)
    each = scale.repeat(128, 0)[: w.shape[0]].repeat(128, 1)
    stored = (w / each).astype(ml_dtypes.float8_e4m3fn)
    return {"weight": stored, "weight_scale_inv": scale}, stored.astype(np.float64) * each


def fp8_by_row(w: np.ndarray) -> Layout:
    scale = (np.abs(w).max(-1, keepdims=True) / 57344).astype(np.float32)
    stored = (w / scale).astype(ml_dtypes.float8_e5m2)
    return {"weight": stored, "weight_scale_inv": scale}, stored.astype(np.float64) * scale


def mlx(w: np.ndarray, bits: int = 4) -> Layout:
    codes, scales, zeros = groups(w, bits)
    biases = (-scales * zeros).astype(np.float32)
    per = 32 // bits
    word = sum(codes.reshape(w.shape[0], -1, per)[..., i] << (bits * i) for i in range(per)).astype(np.uint32)
    exact = codes * scales.repeat(SIZE, 1) + biases.astype(np.float64).repeat(SIZE, 1)
    return {"weight": word, "scales": scales.astype(np.float32), "biases": biases}, exact


def mxfp4(w: np.ndarray) -> Layout:
    codes = RNG.integers(0, 16, w.shape)
    power = RNG.integers(122, 126, (w.shape[0], w.shape[1] // 32))
    word = sum(codes.reshape(w.shape[0], -1, 8)[..., i] << (4 * i) for i in range(8)).astype(np.uint32)
    exact = E2M1[codes] * 2.0 ** (power - 127.0).repeat(32, 1)
    return {"weight": word, "scales": power.astype(np.uint8)}, exact


LAYOUTS: dict[str, tuple[Callable[..., Layout], dict[str, Any]]] = {
    "gptq": (gptq, {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": SIZE}}),
    "gptq, by activations": (lambda w: gptq(w, True), {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
    "awq": (awq, {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": SIZE}}),
    "fp8": (fp8, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}),
    "fp8, packed": (fp8_by_block, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}),
    "fp8, by row": (fp8_by_row, {"quantization_config": {"quant_method": "fp8"}}),
    "mlx, 4 bits": (mlx, {"quantization": {"group_size": SIZE, "bits": 4}}),
    "mlx, 8 bits": (lambda w: mlx(w, 8), {"quantization": {"group_size": SIZE, "bits": 8}}),
    "mlx, mxfp4": (mxfp4, {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}),
}  # fmt: skip


def write(folder: Path, layout: str, name: str = "llama") -> None:
    """Write a network with its matrices in a layout, and with their values in float64 into ``exact.npz``."""
    tiny_networks.save(name, folder)
    quantize, changes = LAYOUTS[layout]
    made, exact = {}, {}
    for key, array in load_file(folder / "model.safetensors").items():
        if not key.endswith("_proj.weight"):
            made[key] = array
            continue
        parts, exact[key] = quantize(array)
        made |= {key.removesuffix("weight") + part: np.ascontiguousarray(value) for part, value in parts.items()}
    save_file(made, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    np.savez(folder / "exact.npz", **exact)


@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_quantized_folder(layout: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if layout.startswith("fp8,"):  # rows of whole blocks, and matrices of fewer rows than a block
        monkeypatch.setattr(
            tiny_networks, "SIZES", tiny_networks.SIZES | {"hidden_size": 128, "intermediate_size": 256}
        )
    write(tmp_path / "quantized", layout, name)
    plain = tmp_path / "plain"
    tiny_networks.save(name, plain)
    exact = dict(np.load(tmp_path / "quantized" / "exact.npz"))
    arrays = load_file(plain / "model.safetensors")
    save_file({key: np.asarray(exact.get(key, array), np.float32, order="C") for key, array in arrays.items()},
              plain / "model.safetensors")  # fmt: skip
    expected = np.asarray(LanguageModel.load(plain, "numpy")(IDS))
    model = LanguageModel.load(tmp_path / "quantized")
    with tp.trace() as log:
        logits = np.asarray(model(IDS))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    packed = {record.operator for record in log} & {"quantized_linear", "grouped_quantized_linear", "moe"}
    if tp.is_backend_available("cpu") and layout not in ("fp8", "gptq, by activations"):
        assert packed


@pytest.mark.parametrize("backend", ["array_api_strict", "jax", "mlx", "numpy", "opencl", "torch"])
@pytest.mark.parametrize("layout", ["gptq", "gptq, by activations", "awq", "mlx, 8 bits", "mlx, mxfp4"])
def test_experts_compute_on_every_library(layout: str, backend: str, tmp_path: Path) -> None:
    if not tp.is_backend_available(backend):
        pytest.skip(f"backend {backend} is not available")
    write(tmp_path / "quantized", layout, "qwen3moe")
    plain = tmp_path / "plain"
    tiny_networks.save("qwen3moe", plain)
    values_of = dict(np.load(tmp_path / "quantized" / "exact.npz"))
    assert any(".experts." in name for name in values_of)
    arrays = load_file(plain / "model.safetensors")
    save_file({key: np.asarray(values_of.get(key, array), np.float32, order="C") for key, array in arrays.items()},
              plain / "model.safetensors")  # fmt: skip
    exact = tiny_networks.logits_of(plain)
    logits: Any = tp.to_backend(LanguageModel.load(tmp_path / "quantized", backend)(IDS), "numpy")
    np.testing.assert_allclose(logits, exact, rtol=0, atol=2e-5 * np.abs(exact).max())


@pytest.mark.parametrize("kind", ["activation_scale", "input_scale"])
def test_scales_of_inputs_are_not_used(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize, changes = LAYOUTS["fp8"]
    write(tmp_path / "without", "fp8")

    def with_scale(w: np.ndarray) -> Layout:
        parts, exact = quantize(w)
        return parts | {kind: np.asarray(np.float32(0.5))}, exact

    monkeypatch.setitem(LAYOUTS, "fp8", (with_scale, changes))
    write(tmp_path / "with", "fp8")
    both = [np.asarray(LanguageModel.load(tmp_path / name, "numpy")(IDS)) for name in ("without", "with")]
    np.testing.assert_array_equal(*both)


@pytest.mark.parametrize(
    ("layout", "part", "change", "message"),
    [
        ("gptq", "qzeros", None, "qzeros: missing"),
        ("gptq", "scales", lambda a: a[:1], "does not fit"),
        ("awq", "qweight", lambda a: a[:, :-1], "does not fit"),
        ("mlx, 4 bits", "biases", None, "is not supported"),
        ("mlx, mxfp4", "scales", lambda a: a[:, :1], "does not fit"),
        ("gptq", "scales", lambda a: a.astype(np.int32), "scales: not numbers"),
        ("gptq", "qzeros", lambda a: a.astype(np.float32), "qzeros: not integers"),
        ("gptq, by activations", "g_idx", lambda a: a.astype(np.float32), "g_idx: not integers"),
        ("awq", "qweight", lambda a: a.astype(np.float32), "qweight: not integers"),
        ("mlx, 4 bits", "scales", lambda a: a.astype(np.uint32), "scales: not numbers"),
        ("mlx, mxfp4", "scales", lambda a: a.astype(np.float32), "scales: not integers"),
    ],
)  # fmt: skip
def test_what_does_not_fit(layout: str, part: str, change: Any, message: str, tmp_path: Path) -> None:
    write(tmp_path, layout)
    made = load_file(tmp_path / "model.safetensors")
    key = f"model.layers.1.self_attn.q_proj.{part}"
    array = made.pop(key)
    if change is not None:
        made[key] = np.ascontiguousarray(change(array))
    save_file(made, tmp_path / "model.safetensors")
    with pytest.raises(GGUFError, match=message):
        LanguageModel.load(tmp_path)


@pytest.mark.parametrize(
    ("layout", "options", "message"),
    [
        ("mlx, 4 bits", {"bits": 4.0}, "4.0 bits is not supported"),
        ("mlx, 4 bits", {"group_size": 0}, "group_size 0 is not a positive integer"),
        ("mlx, 4 bits", {"group_size": 32.0}, "group_size 32.0 is not a positive integer"),
        ("gptq", {"bits": "4"}, "'4' bits are not supported"),
    ],
)
def test_options_of_a_wrong_type(layout: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, layout)
    config = json.loads((tmp_path / "config.json").read_text())
    key = next(iter(LAYOUTS[layout][1]))
    (tmp_path / "config.json").write_text(json.dumps(config | {key: config[key] | options}))
    with pytest.raises(GGUFError, match=re.escape(message)):
        LanguageModel.load(tmp_path)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (np.ones((3, 1), np.float32), "is not supported"),
        (np.ones((1, 1), np.int32), "not numbers"),
        (np.full((1, 1), np.inf, np.float32), "not finite"),
    ],
)
def test_scales_of_eight_bits_that_do_not_fit(
    scale: np.ndarray, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = (lambda w: ({"weight": fp8(w)[0]["weight"], "weight_scale_inv": scale}, w), LAYOUTS["fp8"][1])
    monkeypatch.setitem(LAYOUTS, "fp8", wrong)
    write(tmp_path, "fp8")
    with pytest.raises(GGUFError, match=message):
        LanguageModel.load(tmp_path)


def test_experts_of_gpt_oss_in_mxfp4(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    tiny_networks.save("gpt-oss", plain)
    tiny_networks.save("gpt-oss", packed)
    arrays, made = load_file(plain / "model.safetensors"), {}
    for key, array in arrays.items():
        if not key.endswith(("experts.gate_up_proj", "experts.down_proj")):
            made[key] = array
            continue
        experts, columns, rows = array.shape  # transposed, unlike blocks
        codes = RNG.integers(0, 16, (experts, rows, columns))
        power = RNG.integers(122, 126, (experts, rows, columns // 32))
        pairs = codes.reshape(experts, rows, columns // 32, 16, 2)
        made[f"{key}_blocks"] = (pairs[..., 0] | (pairs[..., 1] << 4)).astype(np.uint8)
        made[f"{key}_scales"] = power.astype(np.uint8)
        exact = E2M1[codes] * 2.0 ** (power - 127.0).repeat(32, -1)
        arrays[key] = np.ascontiguousarray(exact.swapaxes(1, 2), np.float32)
    save_file(arrays, plain / "model.safetensors")
    save_file(made, packed / "model.safetensors")
    config = json.loads((packed / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    expected = np.asarray(LanguageModel.load(plain, "numpy")(IDS))
    model = LanguageModel.load(packed)
    with tp.trace() as log:
        logits = np.asarray(model(IDS))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    if tp.is_backend_available("cpu"):
        assert {record.kernel for record in log if record.operator == "grouped_quantized_linear"} == {"cpu"}
