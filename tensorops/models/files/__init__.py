"""Files of models and of arrays: GGUF files, folders of Hugging Face, safetensors files."""
