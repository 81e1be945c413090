"""Text to token ids and back, with the tokenizer of a model file or of a folder."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any

from tensorops.models.stopping import require_characters, stop_texts, until

from .folder_tokenizer import read_folder_tokenizer
from .gguf_tokenizer import read_gguf_tokenizer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from tensorops.models.files.gguf import GGUFFile

    from .vocabulary import TokenizerParts

__all__ = ["Tokenizer"]


class Tokenizer:
    """The tokenizer of a GGUF file; `from_folder` reads that of a folder.

    Parameters
    ----------
    file : GGUFFile
        Its ``tokenizer.ggml.model`` is one of ``gpt2`` (byte-level BPE), ``llama`` (SentencePiece's BPE with scores)
        and ``gemma4`` (BPE of text). For the first, ``tokenizer.ggml.pre`` is a name in
        ``tensorops/models/tokenizers/pretokenizers.py``.

    Attributes
    ----------
    bos_id, eos_id : int or None
        The tokens that begin and end a text.
    end_ids : frozenset of int
        All tokens that end the output of a model.

    Raises
    ------
    GGUFError
        A field is missing, malformed or not supported; the message names it.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._use(read_gguf_tokenizer(file))

    @classmethod
    def from_folder(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read a tokenizer as Hugging Face's libraries store it.

        Nothing in the folder is run, except the chat template in Jinja's sandbox.

        Parameters
        ----------
        path : str or path-like
            A folder with ``tokenizer.json`` and, if the model has them, ``tokenizer_config.json``,
            ``special_tokens_map.json``, ``generation_config.json`` (without it, the ends in ``config.json`` count) and
            ``chat_template.jinja``.

        Returns
        -------
        Tokenizer
            The same ids as those of the package ``tokenizers``.

        Raises
        ------
        ValueError
            A file is damaged, too large or needs something that is not supported; the message names file and field.
        OSError
            A file cannot be read, or ``tokenizer.json`` is missing.

        Examples
        --------
        >>> import tempfile
        >>> import tokenizers
        >>> from tensorops.models import Tokenizer
        >>> made = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
        >>> made.decoder = tokenizers.decoders.ByteLevel()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made.save(f"{folder}/tokenizer.json")
        ...     tokenizer = Tokenizer.from_folder(folder)
        >>> tokenizer.encode("abb"), tokenizer.decode([2, 1])
        ([2, 1], 'abb')
        """
        tokenizer = cls.__new__(cls)
        tokenizer._use(read_folder_tokenizer(path))
        return tokenizer

    def _use(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self.bos_id = parts.bos_id
        self.eos_id = parts.eos_id
        self.end_ids = parts.end_ids

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the model's chat template, or None if it has none."""
        return self._parts.template

    def __len__(self) -> int:
        return len(self._parts.vocabulary.tokens)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the token ids of a text.

        A control token written out in the text, such as ``<|im_end|>``, becomes that token. Bytes that a byte-level
        vocabulary lacks are left out, and the texts before and after one are not merged.

        Parameters
        ----------
        text : str
            Any text.
        add_special : bool
            Add the beginning and end tokens if the file requires them.

        Returns
        -------
        list of int
            Token ids.

        Raises
        ------
        ValueError
            The text has a lone surrogate, half of a pair that is one character only together; or the package
            ``tokenizers`` cannot apply what the folder says.
        """
        require_characters("text", text)
        ids = self._parts.encode(text)
        return [*self._parts.before, *ids, *self._parts.after] if add_special else ids

    def encode_prompt(self, prompt: str | Sequence[dict[str, str]], *, chat: bool = False) -> list[int]:
        """Return the tokens of a prompt for a model to continue.

        Parameters
        ----------
        prompt : str, or sequence of dict with ``role`` and ``content``
            A text, or the messages of a conversation.
        chat : bool
            Treat a text as a user's message; messages are always a conversation.

        Returns
        -------
        list of int
            Tokens of the text, or of the conversation rendered with the model's chat template.
        """
        if isinstance(prompt, str) and not chat:
            return self.encode(prompt)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return self.encode(self.apply_chat_template(messages), add_special=False)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, stop: str | Sequence[str] | None = None) -> str:
        """Return the text of token ids; bytes that are not UTF-8 become U+FFFD.

        Parameters
        ----------
        ids, skip_special, stop
            As for `stream`.

        Returns
        -------
        str
            The text. Where `encode` puts a space before a text, as SentencePiece does, this one is left out.
        """
        text = "".join(self.stream(ids, skip_special=skip_special, stop=stop))
        return text.removeprefix(" ") if self._parts.space_before else text

    def stream(
        self, ids: Iterable[int], *, skip_special: bool = True, stop: str | Sequence[str] | None = None
    ) -> Iterator[str]:
        """Yield the text of token ids as it becomes known, in whole characters.

        A token may have only some bytes of a character; they are kept until the rest arrives. A space at the beginning
        is kept, other than by `decode`: the ids may continue a text.

        Parameters
        ----------
        ids : iterable of int
            Token ids, for instance as a model produces them. Those that no token has, such as the last ones of a
            network whose vocabulary was padded, have no text.
        skip_special : bool
            Leave control tokens out.
        stop : str or sequence of str, optional
            Texts before the first of which this one ends. They may have control tokens in them, such as
            ``<|im_start|>``, also where these are left out. What may be the beginning of one is held back.

        Returns
        -------
        iterator of str
            Non-empty pieces of the text.

        Raises
        ------
        ValueError
            An id is negative, or `stop` has an empty text or a lone surrogate.
        """
        if stops := stop_texts(stop):
            all_bytes = ((self.bytes_of(i, skip_special=False), self._is_shown(i, skip_special)) for i in ids)
            return _decoded(until(all_bytes, stops))
        return _decoded(self.bytes_of(i, skip_special=skip_special) for i in ids)

    def _is_shown(self, token: int, skip_special: bool) -> bool:
        vocabulary = self._parts.vocabulary
        return not (skip_special and token < len(vocabulary.tokens) and vocabulary.is_control(token))

    def apply_chat_template(
        self,
        messages: Sequence[dict[str, str]],
        *,
        add_generation_prompt: bool = True,
        template: str | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> str:
        """Return a conversation as the text that the model was trained on.

        Encode the result with ``add_special=False``: the template itself writes the special tokens.

        Parameters
        ----------
        messages : sequence of dict
            Each with the strings ``role`` (``system``, ``user``, ``assistant``) and ``content``.
        add_generation_prompt : bool
            End with the start of the assistant's turn.
        template : str, optional
            A Jinja template to use instead of the model's own. It sees ``bos_token``, ``eos_token``, ``unk_token``,
            ``sep_token``, ``pad_token``, ``cls_token`` and ``mask_token``, those of them that the model has.
        tools : sequence of dict, optional
            Descriptions of functions, in the form that the template expects.

        Returns
        -------
        str
            The prompt.

        Raises
        ------
        ValueError
            A message lacks its role or its content; or there is no template, or it failed, which is a GGUFError if the
            tokenizer is that of a GGUF file.
        """
        from .chat import check_messages, render_chat  # a text needs no Jinja

        check_messages(messages)
        source = self._parts.template if template is None else template
        if source is None:
            raise self._parts.template_error(
                "missing: pass messages as one text, generate(prompt, chat=False), or give a template"
            )
        try:
            special = self._parts.special
            return render_chat(source, messages, tools=tools, add_generation_prompt=add_generation_prompt, **special)
        except Exception as error:
            # The template is a program from the file: anything it raises is the file's fault.
            problem = f"the template failed: {type(error).__name__}: {error}"
            if template is not None:
                raise ValueError(problem) from error
            raise self._parts.template_error(problem) from error

    def bytes_of(self, token: int, *, skip_special: bool = True) -> bytes:
        """Return what a token stands for, which may be only some bytes of a character.

        Parameters
        ----------
        token : int
            A token id.
        skip_special : bool
            Whether control tokens stand for nothing.

        Returns
        -------
        bytes
            UTF-8, or a part of it; nothing for an id that no token has: networks often have more rows than there are
            tokens.

        Raises
        ------
        ValueError
            The id is negative.
        """
        if token < 0:
            raise ValueError(f"token id {token} is negative")
        vocabulary = self._parts.vocabulary
        if token >= len(vocabulary.tokens) or not self._is_shown(token, skip_special):
            return b""
        return vocabulary.bytes_of(token)


def _decoded(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield UTF-8, which may be cut anywhere, as text."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        if text := decoder.decode(piece):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text
