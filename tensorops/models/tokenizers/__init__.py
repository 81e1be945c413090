"""Tokenizers and chat templates, of GGUF files and of folders."""
