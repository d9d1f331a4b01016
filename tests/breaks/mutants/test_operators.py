"""The mutation operators, as tables: a line of code, and its mutants."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("libcst")

from tests.breaks.mutants.operators import OPERATORS, PLACED
from tests.breaks.mutants.walk import mutants_of


def made(body: str) -> list[tuple[str, str]]:
    """Return the operators and the changed bodies, each within a function that has `a` and `b`."""
    head = "def f(a, b=None):\n"
    source = (head + textwrap.indent(textwrap.dedent(body), "    ")).encode()
    mutants, _ = mutants_of("m.py", source)
    for each in mutants:
        compile(each.applied(source), "m.py", "exec")
    return [
        (each.operator, textwrap.dedent(each.applied(source).decode().removeprefix(head)).rstrip("\n"))
        for each in mutants
    ]


LINES: list[tuple[str, str, list[str]]] = [
    ("condition negated", "while a: pass", ["while not (a): pass"]),
    ("condition negated", "if not a: pass", ["if (a): pass"]),
    ("condition always true", "x = 1 if a else 2", ["x = 1 if True else 2"]),
    ("condition never true", "if a: pass", ["if False: pass"]),
    ("comparison changed", "return a < b", ["return (a <= b)"]),
    ("comparison changed", "return a is None", ["return (a is not None)"]),
    ("comparison changed", "return a not in b", ["return (a in b)"]),
    ("comparison changed", "if a >= 2: pass", ["if (a > 2): pass"]),
    ("comparison changed", "if a == 2: pass", []),  # the negated condition is the same
    ("and and or exchanged", "return a and b or a", ["return (a and b and a)", "return (a or b) or a"]),
    ("arithmetic changed", "return a // b", ["return (a * b)"]),
    ("arithmetic changed", "a -= b", ["a += b"]),
    ("arithmetic changed", "return -a", ["return (a)"]),
    ("arithmetic changed", "return a + 'text'", []),
    ("statement dropped", "a.x = b", ["pass"]),
    ("statement dropped", "raise ValueError(1)", ["pass"]),
    ("statement dropped", "x = b", []),  # the following code would have no x
    ("assignment dropped", "b = a", ["pass"]),
    ("assignment dropped", "x = a", []),
    ("nothing returned", "return a", ["return None"]),
    ("nothing returned", "return None", []),
    ("break and continue exchanged", "while a:\n    break", ["while a:\n    continue"]),
    (
        "constant changed",
        "return 1, 0.5, True",
        ["return 2, 0.5, True", "return 1, 1.0, True", "return 1, 0.5, False"],
    ),
    ("constant changed", "raise ValueError(1)", []),
    ("argument dropped", "return a(1, x=2, y=3)", ["return a(1, y=3)", "return a(1, x=2)"]),
    ("arguments swapped", "return a(b, 1, *b)", ["return a(1, b, *b)"]),
    ("arguments swapped", "return max(a, b)", []),
    ("early return", "a()\nreturn b", ["return None\na()\nreturn b"]),
    ("early return", "return b", []),
    ("with left out", "with a: pass", ["if True: pass"]),
    ("with left out", "with a() as x: pass", ["if [x := (a())]: pass"]),
    ("with left out", "with a, b: pass", ["with b: pass", "with a: pass"]),
    ("finally skipped", "try:\n    a()\nfinally:\n    b()\n    b()", ["try:\n    a()\nfinally:\n    pass"]),
    (
        "finally without an exception only",
        "try:\n    a()\nfinally:\n    b()",
        ["try:\n    a()\nexcept ():\n    pass\nelse:\n    b()"],
    ),
    ("finally without an exception only", "try:\n    a()\nexcept E:\n    a()\nfinally:\n    b()", []),
]


@pytest.mark.parametrize(("operator", "before", "after"), LINES)
def test_what_becomes_of_a_line(operator: str, before: str, after: list[str]) -> None:
    assert [changed for name, changed in made(before) if name == operator] == after


def test_every_operator_is_in_the_table_above() -> None:
    names = {operator for operator, _, _ in LINES}
    assert names == {*(each.name for each in OPERATORS), *PLACED} - {"default changed"}


def test_defaults_change_apart_from_the_source() -> None:
    source = b"def f(a, b=1, *, c=False, d=None):\n    return a\n"
    mutants, _ = mutants_of("m.py", source)
    found = {each.parameter: each.new for each in mutants if each.operator == "default changed"}
    assert found == {"b": "2", "c": "True"}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f(a):\n    return a\n", {"f"}),
        ("class C:\n    def f(self, a):\n        return a\n    def g(self, a):\n        return a\n", {"C.f", "C.g"}),
        ("def f(a):\n    def g():\n        return a\n    return g\n", {"f", "f.<locals>.g"}),
        ("@d(1)\ndef f(a):\n    return a\n", {"f"}),
    ],
)
def test_functions_have_the_names_of_their_code(source: str, names: set[str]) -> None:
    assert {each.function for each in mutants_of("m.py", source.encode())[0]} == names


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        ("typing", "x: int\nif TYPE_CHECKING:\n    a(1)"),
        ("typing", "return cast('T', 1)"),
        ("logging", "log.info('text', 1)"),
        ("logging", "warnings.warn('text', stacklevel=2)"),
        ("logging", "get_chromium_event_logger().log_event_end('text', 1)"),
        ("platforms", "if sys.platform == 'win32':\n    a(1)"),
        ("texts", "return f'{1 + a}'"),
        ("assertions", "assert a == 1"),
        ("assertions", "if a == 1:\n    raise AssertionError('text')"),
        ("assertions", "return zip(a, a, strict=True)"),
        ("freed names", "del a"),
        ("names", "global x"),
    ],
)
def test_what_no_user_observes_is_left_out(rule: str, body: str) -> None:
    source = "def f(a):\n" + textwrap.indent(body, "    ") + "\n"
    mutants, excluded = mutants_of("m.py", source.encode())
    assert [each.operator for each in mutants if each.operator not in ("nothing returned", "early return")] == []
    assert excluded[rule]


def test_what_follows_an_assertion_is_changed() -> None:
    source = (
        b"def f(a):\n    if a:\n        raise AssertionError('text')\n    if a > 1:\n        raise ValueError('text')\n"
    )
    mutants, _ = mutants_of("m.py", source)
    assert [(each.operator, each.first) for each in mutants] == [
        ("early return", 2),
        ("condition negated", 4),
        ("condition always true", 4),
        ("condition never true", 4),
        ("comparison changed", 4),
        ("constant changed", 4),
        ("statement dropped", 5),
    ]


def test_a_function_named_for_debugging_is_left_out() -> None:
    mutants, excluded = mutants_of("m.py", b"class C:\n    def __repr__(self):\n        return 1\n")
    assert not mutants
    assert excluded["debugging"] == 1


def test_names_of_mutants_differ_and_do_not_depend_on_other_functions() -> None:
    one, two = b"def f(a):\n    a(1)\n    a(1)\n", b"def g():\n    return 1\n"
    names = [each.name for each in mutants_of("m.py", one)[0]]
    assert len(set(names)) == len(names)
    assert {*names} < {each.name for each in mutants_of("m.py", two + one)[0]}
