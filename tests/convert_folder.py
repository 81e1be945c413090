"""Runs llama.cpp's own converter on a folder: ``python convert_folder.py SOURCES FOLDER OUT [OPTION…]``.

It is a program because the converter comes with a gguf package of its own. Only the vocabulary is that of `make_gguf`:
the converter recognises the tokenizers of published models by a hash of what they make of a text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    sources, folder, out, *options = sys.argv[1:]
    sys.path[:0] = [sources, f"{sources}/gguf-py", str(Path(__file__).parent)]
    import convert_hf_to_gguf
    import gguf

    from make_gguf import add_to, tokenizer_metadata

    def set_vocab(model: Any) -> None:
        for key, value in tokenizer_metadata().items():
            add_to(gguf, model.gguf_writer, key, value)

    class_of = convert_hf_to_gguf.get_model_class

    def with_vocabulary(*arguments: Any, **keywords: Any) -> Any:
        found = class_of(*arguments, **keywords)
        for each in (found, *(inner for inner in vars(found).values() if isinstance(inner, type))):
            each.set_vocab = set_vocab
        return found

    convert_hf_to_gguf.get_model_class = with_vocabulary
    # The converter of Gemma counts these.
    tokens = {token: number for number, token in enumerate(tokenizer_metadata()["tokenizer.ggml.tokens"])}
    (Path(folder) / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}))
    sys.argv[1:] = [folder, "--outfile", out, "--outtype", "f32", *options]
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main()
