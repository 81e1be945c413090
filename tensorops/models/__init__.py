"""Language models written with tensorops operators (reader, tokenizer, network), and files of arrays.

Install the requirements with ``pip install 'tensorops[models]'``.
"""

from ._errors import GGUFError
from .config import LlamaConfig, ModelConfig
from .files.gguf import open_gguf
from .files.safetensors_files import load_safetensors, save_safetensors
from .language_model import LanguageModel, Llama
from .logprobs import LogProbs
from .pages import OutOfPagesError, PagedKVCache
from .prompt_cache import PromptCache
from .tokenizers.tokenizer import Tokenizer

__all__ = [
    "GGUFError",
    "LanguageModel",
    "Llama",
    "LlamaConfig",
    "LogProbs",
    "ModelConfig",
    "OutOfPagesError",
    "PagedKVCache",
    "PromptCache",
    "Tokenizer",
    "load_safetensors",
    "open_gguf",
    "save_safetensors",
]
