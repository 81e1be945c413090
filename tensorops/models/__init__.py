"""Language models written in tensorops operators: the reader, the tokenizer and the network.

Install what they need with ``pip install 'tensorops[models]'``.
"""

from ._errors import GGUFError
from .config import LlamaConfig
from .gguf import open_gguf
from .llama import Llama
from .tokenizer import Tokenizer

__all__ = ["GGUFError", "Llama", "LlamaConfig", "Tokenizer", "open_gguf"]
