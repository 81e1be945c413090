"""What the docstrings of elementwise operators have in common, written once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_GATED = {
    "Parameters": "gate, up : array, floating point\n    Arrays of one shape and dtype.",
    "TypeError": "If an input is not floating point, or they differ in dtype.",
    "ValueError": "If they differ in shape.",
    "References": 'Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202',
}
_SECTIONS = ("Parameters", "Returns", "Raises", "References", "Examples")


def completed(function: F) -> F:
    """Complete a docstring that has only what is particular to the function.

    Its arrays, its result, and errors in its arrays and numbers are described here. The source describes other
    parameters; what it says under Returns follows the sentence here, and what it says under Raises replaces the errors
    of numbers. Whole entries, which begin with a type, stand as they are.
    """
    if not function.__doc__:  # python -OO
        return function
    head, *parts = re.split(r"^(\w+)\n-+\n", inspect.cleandoc(function.__doc__), flags=re.M)
    own = {title: text.strip() for title, text in zip(parts[::2], parts[1::2], strict=True)}
    parameters = inspect.signature(function).parameters.values()
    first = next(iter(parameters)).name
    numbers = " or ".join(f"`{p.name}`" for p in parameters if p.annotation == "float")
    common = _GATED if first == "gate" else {"Parameters": f"{first} : array, floating point\n    Input of any shape."}
    floating = f"If `{first}` is not floating point" + (f", or {numbers} not a number" if numbers else "") + "."
    errors = [f"TypeError\n    {common.get('TypeError', floating)}"]
    if "Raises" in own:
        errors.append(own["Raises"])
    elif value_error := common.get("ValueError", f"If {numbers} is not finite." if numbers else ""):
        errors.append(f"ValueError\n    {value_error}")
    result = f"array\n    Shape, dtype, library and device of `{first}`; half types are computed in float32."
    said = own.get("Returns", "")
    if not said.startswith("array\n"):
        said = result + "".join(f"\n    {line}" for line in said.splitlines())
    whole = {
        "Parameters": "\n".join(filter(None, (common["Parameters"], own.get("Parameters")))),
        "Returns": said,
        "Raises": "\n".join(errors),
        "References": own.get("References", common.get("References", "")),
        "Examples": own["Examples"],
    }
    sections = [f"{title}\n{'-' * len(title)}\n{whole[title]}\n" for title in _SECTIONS if whole[title]]
    function.__doc__ = "\n".join([head.rstrip() + "\n", *sections])
    return function
