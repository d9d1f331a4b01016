"""Puts the suites, configurations and the commit into the wheel, so that it can run them. See pyproject.toml."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

#: The folder in the package, and what of the project it has. `harness/cli/installed.py` finds it there.
BUNDLE = Path("harness", "bundle")
CONTENTS = ("suites", "configs", "pyproject.toml")


class BuildWithBundle(build_py):
    """An editable installation has no bundle: it uses the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        bundle = Path(self.build_lib) / BUNDLE
        shutil.rmtree(bundle, ignore_errors=True)
        bundle.mkdir(parents=True)
        for name in CONTENTS:
            source = Path(__file__).parent / name
            if source.is_dir():
                shutil.copytree(source, bundle / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, bundle / name)
        if (state := _git_state()) is not None:
            (bundle / "commit.json").write_text(json.dumps(state), encoding="ascii")


def _git_state() -> dict[str, object] | None:
    """Return the commit of these sources and whether tracked files have changed; None without git."""
    try:
        commit, changes = (
            subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "--verify", "HEAD^{commit}"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit, "dirty": bool(changes)}


setup(cmdclass={"build_py": BuildWithBundle})
