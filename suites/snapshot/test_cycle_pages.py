"""Pages of cycles: HTML with the graph, and with the allocation stack of each tensor."""

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

#: Texts that occur as keys or strings in the garbage, and break a page that does not escape them.
HOSTILE = {
    "quotes": "'\"`\\",
    "lines": "one\ntwo\r",
    "comment": "<!-- -->",
    "elements": "<b>&amp;",
}
#: Texts that break current pages.
BREAKING = {"end_of_script": "</script><script>alert(1)</script>", "placeholder": "$LISTENERS"}
CARELESS = pytest.mark.xfail(
    raises=(ValueError, AssertionError),
    reason="texts are inserted into the page unescaped, including </script> and $LISTENERS",
)


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def nodes_of(*objects: object, context: str | None = None) -> list[Any]:
    return private.cycle_graph(objects, context=lambda each: context if is_tensor(each) else None, filter=is_tensor)


def graph_in(page: str) -> str:
    """Return the graph that the page's second script draws; the first one loads the drawing library."""
    library, drawing = pages.structure(page).scripts
    assert (library.attributes.get("src") or "").startswith("https://")
    assert not library.text.strip()
    found = re.match(r"\s*let dot = ('(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")\n", drawing.text)
    assert found is not None, drawing.text[:200]
    return str(ast.literal_eval(found[1]))


def listeners(page: str) -> dict[int, str]:
    """Return the text shown for each node, by its number in the drawing, starting from one."""
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
    """The page is an HTML document that draws the graph of the given nodes."""
    nodes = nodes_of(*garbage())

    page = private.cycle_page(nodes)

    assert graph_in(page) == private.cycle_dot(nodes)
    assert {"div", "pre"} <= set(pages.structure(page).elements)
    assert listeners(page) == {}


def test_to_html_shows_the_allocation_of_a_tensor() -> None:
    """A node with a known allocation stack shows it with its label; no other node does."""
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
def test_to_html_escapes_texts_in_the_garbage(text: str) -> None:
    """A key or string with any content does not change the page's structure, and the graph is drawn."""
    nodes = nodes_of(*garbage(text), context=text)

    page = private.cycle_page(nodes)

    assert pages.structure(page).elements == pages.structure(private.cycle_page(nodes_of(*garbage()))).elements
    assert graph_in(page) == private.cycle_dot(nodes)
    assert list(listeners(page).values()) == [f"{next(n.label for n in nodes if n.root)}:\n{text}"]
