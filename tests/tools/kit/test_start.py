"""The script that starts a kit: its refusals, and the arguments that it adds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from harness.tools.kit import start

KIT: dict[str, Any] = {"python": "3.12", "machine": "x86_64", "torch": "2.11"}
HERE = {"python": "3.12.4", "machine": "x86_64", "torch": "2.13.0+cu130"}


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({}, ""),
        ({"torch": "2.11"}, ""),
        ({"torch": "3.0.0a0+git1234"}, ""),
        ({"torch": "2.9.1"}, "has torch 2.9.1: expected 2.11 or newer"),
        ({"torch": None}, "has no torch: set PYTHON to the Python that has it"),
        ({"python": "3.13.0"}, "make a kit with: harness kit --python 3.13"),
        ({"python": "3.1.2"}, "this kit is for Python 3.12, and"),
        ({"machine": "aarch64"}, "this kit is for machines of type x86_64, and this one is aarch64"),
    ],
)
def test_the_machine_must_be_the_one_that_the_kit_is_for(changes: dict[str, Any], refusal: str) -> None:
    here = {**HERE, **changes}
    if not refusal:
        start.check_machine(KIT, **here)
        return
    with pytest.raises(start.KitError) as caught:
        start.check_machine(KIT, **here)
    assert refusal in str(caught.value)


def _kit(folder: Path) -> dict[str, Any]:
    contents = {"wheels/a.whl": b"wheel", "suites/a.py": b"case", "configs/b.yaml": b"b: 1"}
    for name, data in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return {**KIT, "files": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}}


def test_changed_files_are_reported(tmp_path: Path) -> None:
    kit = _kit(tmp_path)
    assert start.check_files(kit, tmp_path) == []
    (tmp_path / "configs/b.yaml").write_text("b: 2")
    (tmp_path / "suites/a.py").unlink()
    assert start.check_files(kit, tmp_path) == ["suites/a.py", "configs/b.yaml"]


@pytest.mark.parametrize(("data", "how"), [(None, "missing"), (b"torn", "damaged")])
def test_a_damaged_wheel_is_refused(tmp_path: Path, data: bytes | None, how: str) -> None:
    kit = _kit(tmp_path)
    (tmp_path / "wheels/a.whl").unlink()
    if data is not None:
        (tmp_path / "wheels/a.whl").write_bytes(data)
    with pytest.raises(start.KitError, match=f"^wheels/a.whl is {how}: unpack the kit again$"):
        start.check_files(kit, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "run_dir", "has_path"),
    [
        ([], None, False),
        (["--profile", "smoke"], None, False),
        (["--results-dir=out"], Path("out"), False),
        (["--results-dir", "out", "suites"], Path("out"), True),
        (["--results-dir"], None, False),
        (["suites/streams/test_a.py::test_b[x/y]"], None, True),
        (["-k", "suitesfoo"], None, False),
    ],
)
def test_arguments(arguments: list[str], run_dir: Path | None, has_path: bool) -> None:
    assert start._results_dir(arguments) == run_dir
    assert any(map(start._is_path, arguments)) == has_path


def test_without_a_kit_it_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "HERE", tmp_path)
    (tmp_path / "kit.json").write_text(json.dumps({**KIT, "python": "2.7", "files": {}}))
    assert start.main([]) == 4
    assert capsys.readouterr().err.startswith("kit: this kit is for Python 2.7, and ")
