"""A kept list is used as long as all that was read for it is as it was, and no longer."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.catalog import kept

_ENTRIES = [{"id": "a", "requires": [{"device": "cuda"}]}]
_CONTENT = "VALUE = 1\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a file to read, which may have been written only now."""
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "_SETTLED", -(10**12))
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "below" / "data.txt").write_text(_CONTENT)
    return source


def _keep(read: Callable[[], object], entries: Any = _ENTRIES) -> str:
    key = kept.key_of(["suites"])
    with kept.recording() as sources:
        read()
    kept.keep_list(key, entries, sources)
    return key


def _read(key: str) -> Any:
    return kept.read_list(key, list[dict[str, Any]])


def _module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Return an import of a module whose compiled code is in the cache, so that Python does not open its source."""
    name = f"kept_{folder.parent.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text(_CONTENT)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    importlib.import_module(name)
    del sys.modules[name]
    return lambda: importlib.import_module(name)


@pytest.mark.parametrize("way", ["open", "list", "scan", "import"])
def test_a_list_is_kept_while_nothing_changes(folder: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    ways: dict[str, Callable[[], object]] = {
        "open": (folder / "below" / "data.txt").read_text,
        "list": lambda: os.listdir(folder),
        "scan": lambda: [*os.scandir(folder)],
        "import": _module(folder, monkeypatch),
    }
    key = _keep(ways[way])
    assert _read(key) == _ENTRIES
    (folder / "below" / "data.txt").read_text()
    assert _read(key) == _ENTRIES


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.write_text("VALUE = 2\n"),  # of the same size
        lambda file: os.utime(file, ns=(file.write_text("VALUE = 2\n"), 1)),
        lambda file: file.unlink(),
        lambda file: (file.rename(f"{file}x"), file.write_text(_CONTENT)),
        lambda file: (file.parent / "conftest.py").write_text(""),
    ],
    ids=["content", "content and an old time", "removed", "replaced", "a file beside it"],
)
@pytest.mark.parametrize("way", ["open", "import"])
def test_a_change_ends_a_list(
    folder: Path, monkeypatch: pytest.MonkeyPatch, way: str, change: Callable[[Path], object]
) -> None:
    read = _module(folder, monkeypatch) if way == "import" else (folder / "below" / "data.txt").read_text
    (file,) = folder.glob("kept_*.py") if way == "import" else folder.glob("below/data.txt")
    key = _keep(read)
    assert _read(key) == _ENTRIES
    change(file)
    assert _read(key) is None


@pytest.mark.parametrize("change", ["a new file", "a file less"])
def test_a_change_in_a_listed_folder_ends_a_list(folder: Path, change: str) -> None:
    key = _keep(lambda: os.listdir(folder / "below"))
    if change == "a new file":
        (folder / "below" / "test_new.py").touch()
    else:
        (folder / "below" / "data.txt").unlink()
    assert _read(key) is None


def test_a_file_that_did_not_exist_may_come(folder: Path) -> None:
    def read() -> None:
        with pytest.raises(FileNotFoundError):
            (folder / "below" / "none.txt").read_text()

    key = _keep(read)
    assert _read(key) == _ENTRIES
    (folder / "below" / "none.txt").touch()
    assert _read(key) is None


def test_what_is_written_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    key = _keep(lambda: (tmp_path / "out" / "log").write_text("1"))
    (tmp_path / "out" / "log").write_text("22")
    assert _read(key) == _ENTRIES


def test_the_key_depends_on_command_folder_and_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = kept.key_of(["suites"])
    assert kept.key_of(["suites"]) == key
    assert kept.key_of(["suites/a"]) != key
    monkeypatch.setenv("COLUMNS", "77")
    assert kept.key_of(["suites"]) == key
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k some")
    assert kept.key_of(["suites"]) != key
    monkeypatch.delenv("PYTEST_ADDOPTS")
    monkeypatch.chdir(folder)
    assert kept.key_of(["suites"]) != key


def test_a_file_that_changed_only_now_keeps_no_list(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_SETTLED", 2 * 10**9)
    file = folder / "below" / "data.txt"
    assert _read(_keep(file.read_text)) is None


@pytest.mark.parametrize("entries", [[{"id": (1, 2)}], [{"id": object()}], [{1: "a"}]], ids=["tuple", "object", "key"])
def test_what_json_would_change_is_not_kept(entries: Any) -> None:
    assert _read(_keep(lambda: None, entries)) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '["other", {}, []]', "[" * 100_000, "\x00"])
def test_a_damaged_list_is_none(tmp_path: Path, text: str) -> None:
    key = _keep(lambda: None)
    assert _read(key) == _ENTRIES
    (tmp_path / "cache" / "catalogs" / key).write_text(text)
    assert _read(key) is None


def test_a_list_in_a_folder_that_others_may_write_to_is_none(tmp_path: Path) -> None:
    key = _keep(lambda: None)
    (tmp_path / "cache" / "catalogs").chmod(0o777)
    assert _read(key) is None


def test_the_oldest_lists_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_MOST", 2)
    for number in range(4):
        with kept.recording() as sources:
            pass
        kept.keep_list(f"{number}", _ENTRIES, sources)
        os.utime(tmp_path / "cache" / "catalogs" / f"{number}", ns=(number, number))
    assert {path.name for path in (tmp_path / "cache" / "catalogs").iterdir()} == {"2", "3"}


#: The command, for which a file may have been written only now.
_COMMAND = "from harness.catalog import kept; kept._SETTLED = -10**12; from harness.cli.main import main; main()"


def test_the_command_imports_no_test_file_for_a_kept_list(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "suites" / "a").mkdir(parents=True)
    (project / "pytest.ini").write_text("[pytest]\nharness_suites = suites\n")
    file = project / "suites" / "a" / "test_it.py"
    imports = tmp_path / "imports"
    file.write_text(f"print('imported', file=open({str(imports)!r}, 'a'))\ndef test_it(): pass\n")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(Path(__file__).parents[2])}

    def listed() -> list[str]:
        command = [sys.executable, "-c", _COMMAND, "catalog", "--format", "json"]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=True)
        return [entry["id"].rpartition("::")[2] for entry in json.loads(done.stdout)]

    assert [listed(), listed()] == [["test_it"], ["test_it"]]
    assert imports.read_text() == "imported\n"
    file.write_text(f"{file.read_text()}def test_two(): pass\n")
    assert listed() == ["test_it", "test_two"]
    assert imports.read_text() == "imported\nimported\n"
