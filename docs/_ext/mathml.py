"""Formulas as MathML, which browsers show by themselves: no script, no other server, and readable aloud."""

from __future__ import annotations

from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import convert

_NAMESPACE = "http://www.w3.org/1998/Math/MathML"


def converted(formula: str, display: str = "inline") -> str:
    """Return a formula with the spaces around names of functions that TeX puts there and MathML does not."""
    ElementTree.register_namespace("", _NAMESPACE)
    tree = ElementTree.fromstring(convert(formula, display=display))
    for row in [element for element in tree.iter() if _kind(element) in ("math", "mrow", "mstyle", "mtd", "msqrt")]:
        children = list(row)
        for before, child, after in zip([None, *children], children, [*children[1:], None], strict=False):
            if not _is_function(child):
                continue
            if after is not None and not _is(after, "([{|‖") and _kind(after) != "mspace":
                row.insert(list(row).index(child) + 1, _space())
            if before is not None and (_kind(before) not in ("mo", "mspace") or _is(before, ")]}|‖")):
                row.insert(list(row).index(child), _space())
    for name in tree.iter(f"{{{_NAMESPACE}}}mo"):
        if _is_name(name):
            name.set("lspace", "0")
            name.set("rspace", "0")
    return ElementTree.tostring(tree, encoding="unicode")


def _kind(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _is_name(element: ElementTree.Element) -> bool:
    text = element.text or ""
    return _kind(element) in ("mi", "mo") and len(text) > 1 and text.isalpha() and not element.get("mathvariant")


def _is_function(element: ElementTree.Element) -> bool:
    with_index = _kind(element) in ("msub", "msup", "munder", "msubsup")
    return _is_name(element[0] if with_index and len(element) else element)


def _is(element: ElementTree.Element, characters: str) -> bool:
    """Return whether an element is, or begins with, one of these characters."""
    while len(element):
        element = element[0]
    return (element.text or "") in tuple(characters)


def _space() -> ElementTree.Element:
    return ElementTree.Element(f"{{{_NAMESPACE}}}mspace", {"width": "0.167em"})


def inline(self, node: nodes.math) -> None:
    self.body.append(converted(node.astext()))
    raise nodes.SkipNode


def block(self, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{converted(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True}
