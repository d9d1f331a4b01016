"""Cases that cannot fail: for a device that they never use, or a comparison of a value with itself.

Also finds conditions that each device meets. Only the syntax tree of a file is examined. `python -m tests.breaks` finds
the rest.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SUITES = Path(__file__).parents[2] / "suites"
FILES = sorted(SUITES.rglob("test_*.py"))
#: Fixtures that are unrelated to devices.
PLAIN_FIXTURES = frozenset(
    {"tmp_path", "monkeypatch", "request", "capfd", "capsys", "recwarn", "case_seed", "pytestconfig", "caplog"}
)
#: Words of a case that uses a device. `Stream`, `Event` and `Generator` can be created without naming the device.
DEVICE_WORDS = frozenset(
    {
        "device",
        "devices",
        "cuda",
        "accelerator",
        "Stream",
        "Event",
        "get_device_module",
        "backends",
        "pin_memory",
        "is_available",
    }
)
#: Functions that compare their first two arguments.
EQUALITIES = frozenset({"equal", "allclose", "assert_close", "assert_equal"})
#: Cases that deliberately compare a value with itself, by file and name, with the reason.
ON_PURPOSE = {
    "suites/kernels/test_nvrtc_compile.py::test_nvrtc_compile_of_the_same_text_gives_the_same_binary": "compiled twice",
    "suites/rng/test_seeds.py::test_generator_manual_seed_takes_every_seed_of_64_bits": "drawn twice",
    "suites/streams/test_on_cpu.py::test_cpu_streams_are_all_equal": "two streams are made",
}


def name_of(path: Path) -> str:
    return path.relative_to(SUITES.parent).as_posix()


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node


def words(node: ast.AST) -> set[str]:
    """Return the names, attributes and words of texts below a node."""
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            found.add(each.id)
        elif isinstance(each, ast.Attribute):
            found.add(each.attr)
        elif isinstance(each, ast.keyword) and each.arg:
            found.add(each.arg)
    return found


def unused_devices(tree: ast.Module) -> list[str]:
    """Return the cases that request the fixture `device` but never use it."""
    found = []
    for node in functions(tree):
        arguments = {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
        body = set().union(*(words(each) for each in node.body))
        if node.name.startswith("test_") and "device" in arguments and "device" not in body:
            found.append(node.name)
    return found


def _requires_device(node: ast.expr) -> bool:
    """Return whether a mark requires an accelerator or a GPU, without alternatives."""
    if isinstance(node, ast.List | ast.Tuple):
        return any(_requires_device(each) for each in node.elts)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires"):
        return False
    wanted = {each.arg: ast.unparse(each.value) for each in node.keywords}
    return wanted.get("device") == "'cuda'" or wanted.get("accelerator") == "True"


def device_cases_without_a_device(tree: ast.Module) -> list[str]:
    """Return the cases that require a device, but neither name one nor have a fixture or a helper that may."""
    own = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("suites"))
        for alias in node.names
    }
    whole = "pytestmark" in assigned and _requires_device(assigned["pytestmark"])

    def uses(node: ast.AST, seen: frozenset[str]) -> bool:
        said = words(node)
        if said & (DEVICE_WORDS | imported):
            return True
        texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and type(each.value) is str)
        if any("cuda" in text for text in texts):
            return True
        further = {**own, **assigned}
        return any(uses(further[name], seen | {name}) for name in said & further.keys() - seen)

    found = []
    for name, node in own.items():
        if not (name.startswith("test_") and isinstance(node, ast.FunctionDef)):
            continue
        if not (whole or any(_requires_device(each) for each in node.decorator_list)):
            continue
        parameters = {text for each in node.decorator_list for text in _parameters(each)}
        arguments = {each.arg for each in node.args.args} - parameters - PLAIN_FIXTURES
        bodies = [*node.body, *(each for each in node.decorator_list if not _requires_device(each))]
        if not arguments and not any(uses(each, frozenset({name})) for each in bodies):
            found.append(name)
    return found


def _parameters(node: ast.expr) -> list[str]:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parametrize"):
        return []
    names = ast.literal_eval(node.args[0])
    return [word.strip() for word in names.split(",")] if isinstance(names, str) else [*names]


def comparisons_with_itself(tree: ast.Module) -> list[str]:
    """Return the cases that compare an expression with the same expression, by `==` or a function."""
    found = []
    for function in functions(tree):
        for node in ast.walk(function):
            pairs: list[tuple[ast.expr, ast.expr]] = []
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.Is | ast.LtE | ast.GtE):
                pairs.append((node.left, node.comparators[0]))
            elif isinstance(node, ast.Call) and words(node.func) & EQUALITIES and len(node.args) > 1:
                pairs.append((node.args[0], node.args[1]))
            if any(ast.dump(left) == ast.dump(right) for left, right in pairs):
                found.append(f"{function.name}: {ast.unparse(node)}")
    return found


def conditions_that_always_hold(tree: ast.Module) -> list[str]:
    """Return the conditions with the alternative `device="cpu"`, which every machine meets, whatever a case runs on."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires":
            alternatives = [each.value for each in node.keywords if each.arg == "any"]
            if any("{'device': 'cpu'}" in ast.unparse(each) for each in alternatives):
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_case_is_weak(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not unused_devices(tree), "the fixture device is not used: take it out, or use it"
    assert not device_cases_without_a_device(tree), "a device is required and not used"
    assert not conditions_that_always_hold(tree), "every device meets this: ask for no accelerator instead"
    compared = comparisons_with_itself(tree)
    found = [each for each in compared if f"{name_of(path)}::{each.partition(':')[0]}" not in ON_PURPOSE]
    assert not found, "a value is compared with itself"


@pytest.mark.parametrize(
    ("source", "weak"),
    [
        ("def test_a(device):\n    assert 1 + 1 == 2\n", ["test_a"]),
        ("def test_a(device):\n    assert f(device)\n", []),
        ("def helper(device):\n    pass\n", []),
    ],
)
def test_a_device_that_is_not_used_is_found(source: str, weak: list[str]) -> None:
    assert unused_devices(ast.parse(source)) == weak


@pytest.mark.parametrize(
    ("source", "weak"),
    [
        ("@pytest.mark.requires(device='cuda')\ndef test_a():\n    assert torch.ones(1)\n", ["test_a"]),
        ("@pytest.mark.requires(device='cuda')\ndef test_a(device):\n    assert torch.ones(1)\n", []),
        ("@pytest.mark.requires(device='cuda')\ndef test_a(tmp_path):\n    assert torch.ones(1)\n", ["test_a"]),
        (
            "@pytest.mark.requires(device='cuda')\n@pytest.mark.parametrize('n', [1])\ndef test_a(n):\n    f()\n",
            ["test_a"],
        ),
        ("pytestmark = [pytest.mark.requires(accelerator=True)]\ndef test_a():\n    f()\n", ["test_a"]),
        ("@pytest.mark.requires(device='cuda')\ndef test_a():\n    f()\ndef f():\n    torch.cuda.synchronize()\n", []),
        ("from .helpers import f\n@pytest.mark.requires(device='cuda')\ndef test_a():\n    f()\n", []),
        ("def test_a():\n    assert torch.ones(1)\n", []),
    ],
)
def test_a_device_that_is_required_and_not_used_is_found(source: str, weak: list[str]) -> None:
    assert device_cases_without_a_device(ast.parse(source)) == weak


@pytest.mark.parametrize(
    ("body", "weak"),
    [
        ("assert x.sum() == x.sum()", True),
        ("assert torch.equal(a.t(), a.t())", True),
        ("torch.testing.assert_close(f(x), f(x))", True),
        ("assert f(x) == f(y)", False),
        ("assert x != x", False),  # NaN
    ],
)
def test_a_comparison_with_itself_is_found(body: str, weak: bool) -> None:
    assert bool(comparisons_with_itself(ast.parse(f"def test_a():\n    {body}\n"))) is weak


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("any=[{'device': 'cpu'}, {'device': 'cuda'}]", True),
        ("any=[{'not_': {'accelerator': True}}, {'device': 'cuda'}]", False),
        ("any=[{'device': 'cpu', 'torch': '>=2.13'}]", False),
        ("device='cpu'", False),
    ],
)
def test_a_condition_that_always_holds_is_found(condition: str, holds: bool) -> None:
    assert bool(conditions_that_always_hold(ast.parse(f"pytestmark = pytest.mark.requires({condition})"))) is holds
