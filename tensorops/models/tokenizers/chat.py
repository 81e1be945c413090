"""Chat templates: the Jinja program inside a model file, run in a sandbox."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tensorops.models._errors import missing

try:
    from jinja2 import TemplateError
    from jinja2.ext import Extension, LoopControlExtension

    from .sandbox import BoundedEnvironment
except ImportError as error:
    raise missing("jinja2") from error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from jinja2.nodes import Node
    from jinja2.parser import Parser

__all__ = ["check_messages", "render_chat"]


def check_messages(messages: Sequence[dict[str, str]]) -> None:
    """Raise ValueError unless every message has a role and a content, both strings."""
    for index, message in enumerate(messages):
        for key in ("role", "content"):
            if not isinstance(message, dict) or not isinstance(message.get(key), str):
                raise ValueError(f"messages[{index}] must be a dict whose {key!r} is a string")


def render_chat(
    template: str,
    messages: Sequence[dict[str, str]],
    *,
    add_generation_prompt: bool,
    tools: Sequence[dict[str, Any]] | None = None,
    **names: str,
) -> str:
    """Render a conversation with a chat template.

    The template comes from the file, so it runs in Jinja's sandbox: it cannot access Python's internals or anything
    outside its arguments, and its memory and steps are bounded (`sandbox.py`).

    Parameters
    ----------
    template : str
        The Jinja source.
    messages : sequence of dict
        Each with the strings ``role`` and ``content``.
    add_generation_prompt : bool
        Passed to the template.
    tools : sequence of dict, optional
        Passed to the template.
    **names : str
        Other strings that templates use, such as ``bos_token``.

    Returns
    -------
    str
        The rendered text.
    """
    # Published templates are written for these settings.
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _to_json
    return environment.render(
        template,
        messages=list(messages),
        add_generation_prompt=add_generation_prompt,
        tools=None if tools is None else list(tools),
        **names,
    )


def _raise_exception(message: str) -> NoReturn:
    """Refuse a conversation, such as two user turns in a row; called by templates."""
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    """Return the local date and time; called by templates."""
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON for a model to read; Jinja's own filter would escape it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Generation(Extension):
    """The blocks that mark what a model is trained to write: text as any other here."""

    tags = {"generation"}  # noqa: RUF012 - as in the base class

    def parse(self, parser: Parser) -> list[Node]:
        """Return what is in the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
