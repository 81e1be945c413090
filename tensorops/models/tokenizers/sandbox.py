"""Jinja's sandbox with a budget: templates come from files of models.

Whatever a template makes costs its size in bytes, each step and each element that is looked at a constant, and reading
texts a part of their size. What may become larger than its arguments is paid before it is made. So a template takes
memory and time in proportion to the conversation, whatever it says.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import Environment, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

__all__ = ["BoundedEnvironment"]

LEAST = 1 << 27  # the budget in bytes, for any conversation
PER_BYTE = 1024  # of the conversation
STEP = 64  # the price of a pass of a loop or an operation: about a microsecond
CALL = 512  # the price of a call besides
ELEMENT = 32  # the price of looking at an element of a container
READING = 16  # bytes of a text that are read at the price of one
LONGEST_NUMBER = 1 << 14  # bits: Python prints no longer ones
MULTIPLYING = {"batch", "expandtabs", "indent", "slice", "tojson"}  # may add a number of characters to each
SLOW = ("lipsum", "pprint", "striptags", "urlize", "wordwrap", "xmlattr")  # and of no use for a model's text


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox for one rendering, which raises a SecurityError when the budget is spent."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.left = LEAST
        self.concat = self._concat  # type: ignore[method-assign] # joins the pieces of macros and of blocks
        self.globals["namespace"] = _Namespace
        for name in SLOW:
            self.globals.pop(name, None)
            self.filters.pop(name, None)

    def render(self, source: str, **names: Any) -> str:
        """Render a template."""
        self.left += PER_BYTE * self._size(names)
        self.filters = {name: self._paid(name, function) for name, function in self.filters.items()}
        self.tests = {name: self._paid(name, function) for name, function in self.tests.items()}
        self.filters |= {
            "counted": self._paying(lambda items: STEP * len(items) if hasattr(items, "__len__") else 0),
            "made": self._paying(self._size),
            "read": self._paying(lambda value: self._size(value) // READING),
        }
        tree = _Pricing().visit(self.parse(source))
        tree.set_environment(self)
        return self._concat(self.from_string(tree).generate(**names))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse `translate` as well, whose table may replace each character by a text."""
        return attr != "translate" and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a binary operator, whose result is paid first."""
        self._spend(self._price_of_operator(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function, a macro, or a method of a value."""
        function = getattr(__obj, "__wrapped__", __obj)  # inside of the sandbox's own `format`
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str | bytes | int | list | tuple | dict):
            args = tuple(map(_as_list, args))
            __self._spend(__self._price(function.__name__, owner, *args, *kwargs.values()))
        result = super().call(__context, __obj, *args, **kwargs)
        __self._spend(CALL + __self._size(result))
        return result

    def _spend(self, price: int) -> None:
        self.left -= price + STEP
        if self.left < 0:
            raise SecurityError("it takes more steps or memory than a conversation of this length explains")

    def _paid(self, name: str, function: Any) -> Callable[..., Any]:
        """Return a filter or a test that is paid."""

        @functools.wraps(function)
        def paid(*args: Any, **kwargs: Any) -> Any:
            args = tuple(map(_as_list, args))
            values = [x for x in (*args, *kwargs.values()) if not isinstance(x, Context | Environment | EvalContext)]
            self._spend(self._price(name, *values))
            result = _as_list(function(*args, **kwargs))
            self._spend(self._size(result))
            return result

        return paid

    def _paying(self, price: Callable[[Any], int]) -> Callable[..., Any]:
        """Return a filter that pays for its argument; as it takes a context, Jinja does not compute it beforehand."""

        @pass_context
        def paying(context: Context, value: Any) -> Any:
            value = _as_list(value)
            self._spend(price(value))
            return value

        return paying

    def _concat(self, pieces: Iterable[str]) -> str:
        texts = []
        for piece in pieces:
            self._spend(len(piece))
            texts.append(piece)
        return "".join(texts)

    def _size(self, value: Any) -> int:
        """Return about how many bytes a value has, with what containers hold; pay for looking at it."""
        if isinstance(value, str | bytes | int):
            return sys.getsizeof(value)
        parts: Collection[Any] = ()
        if isinstance(value, Mapping):
            parts = [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            parts = value
        self._spend(ELEMENT * len(parts) - STEP)
        return ELEMENT + sum(map(self._size, parts))

    def _price_of_operator(self, operator: str, left: Any, right: Any) -> int:
        if isinstance(left, int) and isinstance(right, int):
            bits = {"**": left.bit_length() * max(right, 0), "*": left.bit_length() + right.bit_length()}
            if bits.get(operator, 0) > LONGEST_NUMBER:
                raise SecurityError("a number is too long")
            return 0
        if operator == "*":
            number, other = (right, left) if isinstance(right, int) else (left, right)
            return self._size(other) * max(_number(number), 0)
        if operator == "%" and isinstance(left, str | bytes):
            return self._price_of_format(left, right)
        return self._size(left) + self._size(right)

    def _price(self, name: str, *values: Any) -> int:
        """Return the price of a filter or a method for values, of which the first is the one that has it."""
        if name in ("format", "format_map"):
            return self._price_of_format(*values)
        texts = [value for value in values if isinstance(value, str | bytes)]
        size, number = sum(map(self._size, values)), max(map(_number, values), default=0)
        longest = max((len(value) for value in values if hasattr(value, "__len__")), default=0)
        if name == "join":
            return size + longest * max(map(len, texts), default=0)
        if name == "replace" and len(texts) == 3:
            text, old, new = texts
            return size + (text.count(old) if isinstance(text, str) and isinstance(old, str) else longest) * len(new)
        if name == "sum":  # of lists copies each sum
            return longest * size // READING
        return (number + 1) * size if name in MULTIPLYING else number + size // READING

    def _price_of_format(self, text: Any, *values: Any) -> int:
        """Return the price of ``%`` or `format`: any value in any place, with any width."""
        letters = text.decode("latin-1") if isinstance(text, bytes) else str(text)
        widths = sum(int(digits[:10]) for digits in re.findall(r"\d+", letters))
        if "*" in letters or re.search(r"\{[^}]*\{", letters):  # widths are among the values
            widths += sum(map(_numbers, values))
        size = sum(map(self._size, values))
        return len(letters) + widths + (letters.count("%") + letters.count("{")) * size


class _Namespace(Namespace):
    """A namespace that is printed without its values, which may be printed in each other any number of times."""

    def __repr__(self) -> str:
        return "<namespace>"


class _Pricing(NodeTransformer):
    """Adds the filters that pay for what Jinja compiles without asking the environment."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Concat:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_filtered(each, "made") for each in node.nodes]
        return node

    def visit_List(self, node: nodes.List) -> nodes.List:  # noqa: N802
        self.generic_visit(node)
        node.items = [_filtered(each, "made") for each in node.items]
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Tuple:  # noqa: N802
        self.generic_visit(node)
        if node.ctx == "load":
            node.items = [_filtered(each, "made") for each in node.items]
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:  # noqa: N802
        self.generic_visit(node)
        node.value = _filtered(node.value, "made")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filtered(node.node, "made")
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "read")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "read")
        return node


def _filtered(node: Any, name: str) -> Any:
    return node if isinstance(node, nodes.Const) else nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _as_list(value: Any) -> Any:
    """Return the items of an iterator, which can be counted then; other values as they are."""
    return list(value) if isinstance(value, Iterator) and not isinstance(value, LoopContext) else value


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _numbers(value: Any) -> int:
    """Return the sum of integers in a value, without their signs."""
    if isinstance(value, Mapping):
        value = list(value.values())
    return sum(map(_numbers, value)) if isinstance(value, list | tuple) else abs(_number(value))
