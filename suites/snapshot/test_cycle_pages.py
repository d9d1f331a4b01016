"""Pages of cycles: each is HTML with the graph in it, and with where each tensor was allocated."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from . import _torch_private as private
from . import pages

#: Texts that are keys or strings in the garbage, and mean something where a page is careless with them.
HOSTILE = {
    "quotes": "'\"`\\",
    "lines": "one\ntwo\r",
    "comment": "<!-- -->",
    "elements": "<b>&amp;",
}
#: Those that today's pages are broken by.
BREAKING = {"end_of_script": "</script><script>alert(1)</script>", "placeholder": "$LISTENERS"}
CARELESS = pytest.mark.xfail(
    raises=(ValueError, AssertionError),
    reason="texts are put into the page as they are, </script> and $LISTENERS included",
)


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def nodes_of(*objects: object, context: str | None = None) -> list[Any]:
    return private.cycle_graph(objects, context=lambda each: context if is_tensor(each) else None, filter=is_tensor)


def graph_in(page: str) -> str:
    """The graph that the page's second script draws; the first is the library that draws it."""
    library, drawing = pages.structure(page).scripts
    assert (library.attributes.get("src") or "").startswith("https://")
    assert not library.text.strip()
    found = re.match(r"\s*let dot = ('(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")\n", drawing.text)
    assert found is not None, drawing.text[:200]
    return str(ast.literal_eval(found[1]))


def listeners(page: str) -> dict[int, str]:
    """The text that is shown for each node, by the node's number in the drawing, which counts from one."""
    shown = re.findall(
        r"getElementById\('node(\d+)'\)\.addEventListener\('mouseover'.*?\{\s*"
        r'document\.getElementById\("stacktrace"\)\.textContent = ("(?:[^"\\\n]|\\.)*")\s*\}\)',
        pages.structure(page).scripts[1].text,
        re.DOTALL,
    )
    return {int(number): json.loads(text) for number, text in shown}


def garbage(text: str = "key") -> Sequence[object]:
    tensor = torch.ones(2)
    table: dict[str, Any] = {text: tensor}
    table["itself"] = table
    return [table, tensor, text]


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_cycles")
def test_to_html_draws_the_graph() -> None:
    """Contract: the page is an HTML document that draws the graph of the nodes that were given."""
    nodes = nodes_of(*garbage())

    page = private.cycle_page(nodes)

    assert graph_in(page) == private.cycle_dot(nodes)
    assert {"div", "pre"} <= set(pages.structure(page).elements)
    assert listeners(page) == {}


def test_to_html_tells_where_a_tensor_was_allocated() -> None:
    """Contract: a node of which it is known where it comes from shows that, with its label, and no other node does."""
    nodes = nodes_of(*garbage(), context="model.py:3:forward\nmain.py:9:<module>")
    (place,) = [number for number, node in enumerate(nodes) if node.root]

    page = private.cycle_page(nodes)

    assert listeners(page) == {place + 1: f"{nodes[place].label}:\nmodel.py:3:forward\nmain.py:9:<module>"}


@pytest.mark.parametrize(
    "text",
    [
        *(pytest.param(text, id=name) for name, text in HOSTILE.items()),
        *(pytest.param(text, id=name, marks=CARELESS) for name, text in BREAKING.items()),
    ],
)
def test_to_html_is_broken_by_no_text_in_the_garbage(text: str) -> None:
    """Contract: a key or a string may be anything: the page has the elements of any other, and draws the graph."""
    nodes = nodes_of(*garbage(text), context=text)

    page = private.cycle_page(nodes)

    assert pages.structure(page).elements == pages.structure(private.cycle_page(nodes_of(*garbage()))).elements
    assert graph_in(page) == private.cycle_dot(nodes)
    assert list(listeners(page).values()) == [f"{next(n.label for n in nodes if n.root)}:\n{text}"]
