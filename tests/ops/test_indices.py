"""Indices out of range in torch's tensors: refused in host memory, left alone where values cannot be read."""

from __future__ import annotations

import pytest

import tensorops as tp

torch = pytest.importorskip("torch")

X, W, TABLE = torch.ones(3, 4), torch.ones(2, 5, 4), torch.ones(6, 2)
WRONG = torch.tensor([0, 7, 1])
CALLS = [  # with the largest index allowed
    ("embedding", "ids", 2, lambda ids, x: tp.embedding(ids, x)),
    ("cross_entropy", "targets", 3, lambda ids, x: tp.cross_entropy(x, ids)),
    ("linear_cross_entropy", "targets", 4, lambda ids, x: tp.linear_cross_entropy(x, W[0], ids)),
    ("grouped_linear", "experts", 1, lambda ids, x: tp.grouped_linear(x, ids, W)),
    ("rope", "positions", 5, lambda ids, x: tp.rope(x[None], ids, cos=TABLE, sin=TABLE)),
    (
        "scaled_dot_product_attention",
        "lengths",
        2,
        lambda ids, x: tp.scaled_dot_product_attention(*(x.reshape(3, 1, 2, 2) for _ in range(3)), lengths=ids),
    ),
]


@pytest.mark.parametrize("recording", [False, True], ids=["kernel", "body"])
@pytest.mark.parametrize(("operator", "name", "largest", "function"), CALLS)
def test_they_are_refused_by_name(operator, name, largest, function, recording):
    x = X.clone().requires_grad_(recording)
    message = rf"^{operator}: {name} has the (index|number) 7, outside 0 … {largest}$"
    with pytest.raises(ValueError, match=message):
        function(WRONG, x)
    with pytest.raises(ValueError, match=message.replace("7", "-1")):
        function(torch.tensor([0, -1, 1]), x)
    assert function(torch.tensor([0, 1, 1]), x).requires_grad == recording


def test_values_that_something_else_sees_are_not_read():
    from torch._subclasses.fake_tensor import FakeTensorMode

    ids = torch.tensor([[0, 1], [1, 0]])
    assert torch.vmap(lambda i: tp.embedding(i, X))(ids).shape == (2, 2, 4)
    with FakeTensorMode() as fake:
        assert tp.embedding(fake.from_tensor(ids), fake.from_tensor(X)).shape == (2, 2, 4)
    compiled = torch.compile(lambda i: tp.embedding(i, X), backend="eager", fullgraph=True)
    assert compiled(ids[0]).shape == (2, 4)
