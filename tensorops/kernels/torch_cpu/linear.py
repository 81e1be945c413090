"""Linear maps of torch tensors in host memory; see ``tensorops/kernels/cpu/linear.py``.

`linear` is not among them: its body is one product of torch's own.
"""

from tensorops.kernels.torch_cpu._launch import register
from tensorops.ops.linear import embedding

register(embedding)
