"""Breaks: the requirements on a catalogue, the kinds of breaks, and the harness's own catalogue."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.breaks.breaks import Break, BreakError, Theme, by_name
from tests.breaks.catalogue import catalogue
from tests.breaks.demonstration import judge_outcomes, unusable
from tests.breaks.source import chosen, read_source

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (Break("Bad name", "It breaks.", ("a",), nothing, nothing), "a name of small letters"),
        (Break("a", " ", ("a",), nothing, nothing), "a sentence"),
        (Break("a", "It breaks.", (), nothing, nothing), "and suites"),
        (Break("a", "It breaks.", ("a",), nothing), "a demonstration"),
        (Break("a", "It breaks.", ("a",), None, nothing), "a demonstration"),
        (Break("a", "It breaks.", ("a",)), "or the name of a fault"),
        (Break("a", "It breaks.", ("a",), nothing, nothing, fault="slow"), "or the name of a fault"),
    ],
)
def test_a_break_that_lacks_something_is_refused(each: Break, expected: str) -> None:
    with pytest.raises(BreakError, match=expected):
        Theme().add(each)


def test_two_breaks_of_one_name_are_refused() -> None:
    each = Break("a", "It breaks.", ("a",), nothing, nothing)
    with pytest.raises(BreakError, match="two breaks are named 'a'"):
        by_name([each, each])


def test_the_catalogue_names_suites_that_exist_and_says_what_it_breaks() -> None:
    known = catalogue()
    assert len(known) >= 150
    for each in known.values():
        assert each.breaks.endswith(".") or each.device == "soft", each.name
        assert all((ROOT / suite.partition("::")[0]).exists() for suite in each.suites), each.name
    assert len({each.breaks for each in known.values()}) == len(known)


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        (("1", "1", "2"), ""),
        (("1", "1", "1"), "its demonstration shows nothing: 1 without the break and with it"),
        (("1", "2", "3"), "its demonstration differs without the break: 1 and 2"),
        (("1", "1", "RuntimeError: the seed is negative"), ""),
        (("TypeError: wanted", "TypeError: wanted", "1"), ""),
        (
            ("1", "1", "TypeError: 'float'"),
            "it changes no value, but has a bug: its demonstration raises TypeError: 'float'",
        ),
    ],
)
def test_a_demonstration_must_show_something(values: tuple[str, str, str], wrong: str) -> None:
    assert judge_outcomes(*values) == wrong


BREAKS = """
import os
from tests.breaks.breaks import Theme, replace, replace_kernel

broken = Theme()

def product():
    import torch
    return (torch.ones(2, 2) @ torch.ones(2, 2)).tolist()

@broken("A product is one too large.", "suites/sums", shows=product)
def product_is_off():
    replace_kernel("mm", lambda kernel, a, b: kernel(a, b) + 1)

@broken("Nothing is broken.", "suites/sums", shows=product)
def nothing_is_broken():
    pass

@broken("The demonstration dies.", "suites/sums", shows=lambda: 1)
def dies():
    os._exit(3)

@broken("`relu` lets negative numbers pass.", "suites/sums", shows=lambda: relu())
def relu_is_the_identity():
    import torch
    replace(torch.nn.functional, "relu", lambda _: lambda x: x)

def relu():
    import torch
    return torch.nn.functional.relu(torch.tensor(-1.0)).item()

broken.edit("edited", "A rate is halved.", "torch.optim.sgd:_single_tensor_sgd", "alpha=-lr", "alpha=-lr / 2",
            "suites/sums", shows=lambda: step())
broken.edit("not_there", "It edits nothing.", "torch.optim.sgd:_single_tensor_sgd", "no such text", "", "suites/sums",
            shows=lambda: step())

broken.edit("method_with_super", "A norm is twice as large.", "torch.nn.modules.batchnorm:_BatchNorm.__init__",
            "eps,", "eps * 2,", "suites/sums", shows=lambda: norm())

def norm():
    import torch
    return torch.nn.BatchNorm1d(1, eps=1.0).eps

@broken("Numbers are multiplied as ever, tensors are not.", "suites/sums", shows=lambda: products())
def products_are_off():
    import torch
    replace_kernel("mul.Tensor", lambda kernel, a, b: kernel(a, b) + isinstance(b, torch.Tensor))

def products():
    import torch
    kinds = (torch.bool, torch.int64, torch.float16, torch.float32, torch.complex64)
    tensors = [torch.ones(shape, dtype=kind) for shape in ((), (2,)) for kind in kinds]
    made = [made for x in tensors for made in (x * True, x * 3, 0.1 * x, torch.mul(x, 1j))]
    return (torch.ones(2) * torch.ones(2)).tolist(), [(str(each.dtype), each.tolist()) for each in made]

def step():
    import torch
    x = torch.ones(1, requires_grad=True)
    x.grad = torch.ones(1)
    torch.optim.SGD([x], lr=0.5, foreach=False).step()
    return x.item()
"""


def test_demonstrations_run_in_processes_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "breaks.py"
    path.write_text(BREAKS)
    found = unusable(list(read_source(path)), "cpu", path)
    assert found.keys() == {"nothing_is_broken", "dies", "not_there"}
    assert "shows nothing" in found["nothing_is_broken"]
    assert found["dies"] == "its demonstration ended the process (3)"
    assert "does not have 'no such text'" in found["not_there"]


_NUMBERS = """
import json, sys, runpy
made = runpy.run_path(sys.argv[1])
before = made["products"]()
made["broken"].breaks[[each.name for each in made["broken"].breaks].index("products_are_off")].apply()
after = made["products"]()
print(json.dumps([before[0], after[0], before[1] == after[1]]))
"""


def test_a_replaced_kernel_takes_numbers_as_torch_does(tmp_path: Path) -> None:
    """Values and types of products with numbers equal those without the break: for all types, and for scalars."""
    path = tmp_path / "breaks.py"
    path.write_text(BREAKS)
    done = subprocess.run([sys.executable, "-c", _NUMBERS, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[1.0, 1.0], [2.0, 2.0], True]


def test_a_break_of_a_file_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "breaks.py"
    path.write_text(BREAKS)
    assert chosen(f"{path}:dies").breaks == "The demonstration dies."
    with pytest.raises(BreakError, match="no break named 'other'"):
        chosen(f"{path}:other")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "expected a Python file"),
        ("import math\nmath.sqrt(-1)", "cannot be imported (line 2): ValueError: math domain error"),
        ("a = (", "cannot be imported: SyntaxError: '(' was never closed (breaks.py, line 1)"),
        ("a = 1", "expected 'broken = Theme()' in it"),
    ],
)
def test_a_file_that_is_no_catalogue_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("breaks.py")  # as the user types it
    if text is not None:
        path.write_text(text)
    with pytest.raises(BreakError) as caught:
        functools.partial(read_source, path)()
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)
