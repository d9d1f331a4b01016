"""Accepts the trees of the running torch as golden files: `python -m suites.profiler.accept [TREE …]`.

Each tree is taken in a fresh process. Changes are printed as a diff, for review together with the change that caused
them. CI never accepts trees: nothing is accepted if the variable `CI` is set. `--into FILE` accepts nothing either; it
writes one tree to that file for inspection.

Exit status: 0 accepted or unchanged, 1 a tree could not be taken (the others are accepted), 2 usage error.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from .golden import (
    FOLDER,
    GOLDENS,
    UnstableTreeError,
    accepted,
    applicable,
    difference,
    file_name,
    running_minor,
    stored,
    tree_text,
)

BY_NAME = {golden.name: golden for golden in GOLDENS}


def main(arguments: list[str] | None = None) -> int:
    """Accept the given trees, or all that this machine can produce, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m suites.profiler.accept", description="accept trees of this torch")
    parser.add_argument("trees", nargs="*", metavar="TREE", help=f"one of {', '.join(BY_NAME)}; default: all")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the given tree to this file and accept none")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.trees if name not in BY_NAME]
    if unknown:
        parser.error(f"no tree named {', '.join(map(repr, unknown))}; there are {', '.join(BY_NAME)}")
    if options.into:
        if len(options.trees) != 1:
            parser.error(f"--into takes one tree, not {len(options.trees)}")
        return _take(options.trees[0], options.into)
    if os.environ.get("CI"):
        parser.error("golden files are never accepted by CI: run this where a person reviews the diff, without CI set")
    failed = [name for name in options.trees or _possible() if not _accept(name, FOLDER)]
    return 1 if failed else 0


def _possible() -> list[str]:
    """Return the trees that this machine can produce, and print the others."""
    cuda = torch.cuda.is_available()
    left_out = [golden.name for golden in GOLDENS if golden.cuda and not cuda]
    if left_out:
        print(f"skipped, since torch finds no CUDA device: {', '.join(left_out)}")
    return [name for name in BY_NAME if name not in left_out]


def _accept(name: str, folder: Path) -> bool:
    """Take one tree and write the changes to the folder. Return False if it could not be taken."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "tree.txt")
        # One process per tree, so that modules and state of one tree do not affect the next one.
        command = [sys.executable, "-m", "suites.profiler.accept", name, "--into", str(file)]
        if subprocess.run(command, check=False).returncode != 0:
            return False
        text = file.read_text(encoding="utf-8")
    before, running = stored(name, folder), running_minor()
    after = accepted(before, running, text)
    folder.mkdir(exist_ok=True)
    for minor in sorted(before.keys() | after.keys()):
        _write(folder / file_name(name, minor), before.get(minor), after.get(minor))
    if before == after:
        print(f"{name}: unchanged, {file_name(name, applicable(after, running) or running)}")
    return True


def _take(name: str, file: Path) -> int:
    """Write the text of a tree in this process to a file. Return 1 if this machine or torch cannot produce it."""
    golden = BY_NAME[name]
    if golden.cuda and not torch.cuda.is_available():
        return _refuse(name, "it needs a CUDA device, and torch finds none")
    try:
        text = tree_text(golden, torch.device("cuda", 0) if golden.cuda else torch.device("cpu"))
    except (UnstableTreeError, pytest.skip.Exception) as reason:
        return _refuse(name, str(reason))
    file.write_text(text, encoding="utf-8")
    return 0


def _refuse(name: str, reason: str) -> int:
    print(f"{name}: not taken: {reason}", file=sys.stderr)
    return 1


def _write(file: Path, before: str | None, after: str | None) -> None:
    """Change a file from its old text to the new one, either of which may be None, and print the difference."""
    if before == after:
        return
    print(difference(before or "", after or "", file.name if before else "nothing", file.name if after else "nothing"))
    if after is None:
        file.unlink()
    else:
        file.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
