"""The words that docs/dev/style.md excludes: they are in no page, docstring, comment, message or name of a test."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STYLE = ROOT / "docs" / "dev" / "style.md"
FOLDERS = ("harness", "suites", "tests", "benchmarks", "ci", "configs")
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("c*/*.md"), *ROOT.glob("benchmarks/*.md")})
#: The pages that quote these words.
QUOTES = {STYLE, Path(__file__)}


def _banned() -> re.Pattern[str]:
    (listed,) = re.findall(r"^6\. None of: (.*)\.$", STYLE.read_text(encoding="utf-8"), re.MULTILINE)
    words = [word.strip('"') for word in listed.split(", ")]
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b", re.IGNORECASE)


BANNED = _banned()
_CODE = re.compile(r"`[^`]*`|^ {4,}(?:python|pytest) .*$|^python .*$", re.MULTILINE)


def _strings(tree: ast.AST, *, messages: bool) -> Iterator[tuple[int, str]]:
    """Yield docstrings, names of tests as words, and if asked for all texts with a space."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if messages and " " in text:
                yield node.lineno, text
            case ast.Module() | ast.ClassDef() | ast.FunctionDef():
                yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " ")


def _comments(code: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def prose_of(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield the prose of a file with its lines: all of a page but its code, and in Python what people read.

    Texts in code are messages in the harness. In tests, cases and benchmarks many are programs, which are left out.
    """
    if path.suffix == ".md":
        text = re.sub(r"^```.*?^```$", lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
        for number, line in enumerate(text.splitlines(), 1):
            yield number, "" if line.startswith("    ") else _CODE.sub("", line)
    elif path.suffix == ".py":
        messages = path.is_relative_to(ROOT / "harness")
        yield from ((line, _CODE.sub("", said)) for line, said in _strings(ast.parse(text), messages=messages))
        yield from _comments(text)
    else:
        yield from enumerate(text.splitlines(), 1)


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.md", "He was told.\n`told`\n```\ntold\n```\nTheirs.\n", [1, 6]),
        ("a.py", '"""What it is told."""\ntold = 1  # as told\nraise ValueError(f"{told} in vain")\n', [1, 2]),
        ("harness/a.py", 'told = 1\nraise ValueError(f"{told} in vain")\n', [2]),
        ("a.py", "def test_told_twice(): ...\ntold = ours['told']\n", [1]),
        ("a.def", 'FAULT(a, "is told")\n', [1]),
    ],
)
def test_banned_words_are_found_in_prose_only(name: str, text: str, lines: list[int]) -> None:
    found = [number for number, prose in prose_of(ROOT / name, text) if BANNED.search(prose)]
    assert sorted(found) == lines


@pytest.mark.parametrize("suffix", [".md", ".py", ".def", ".yaml"])
def test_no_prose_has_a_banned_word(suffix: str) -> None:
    files = PAGES if suffix == ".md" else [path for name in FOLDERS for path in (ROOT / name).rglob(f"*{suffix}")]
    assert files
    wrong = []
    for path in sorted(set(files) - QUOTES):
        text = path.read_text(encoding="utf-8", errors="replace")
        if BANNED.search(text.replace("_", " ")):
            wrong += [
                f"{path.relative_to(ROOT)}:{number}: {found[0]}"
                for number, prose in prose_of(path, text)
                if (found := BANNED.search(prose))
            ]
    assert not wrong, "write the trade's word instead (docs/dev/style.md):\n" + "\n".join(wrong)
