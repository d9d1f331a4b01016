"""The root folder and ini file of a run: those that later processes get, and those in a line that reproduces a case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.configuration.rootdir import RootFolder

ROOT = RootFolder("/p", "/p/pytest.ini")


@pytest.mark.parametrize(
    ("root", "arguments", "reported"),
    [
        (ROOT, ["suites", "-x"], ["suites", "-x", "--rootdir=/p", "--config-file=/p/pytest.ini"]),
        (RootFolder("/p", None), [], ["--rootdir=/p"]),
        (RootFolder("/p", None), ["-x", "--", "-odd"], ["-x", "--rootdir=/p", "--", "-odd"]),
    ],
)
def test_arguments_that_tell(root: RootFolder, arguments: Sequence[str], reported: Sequence[str]) -> None:
    assert root.add_to(arguments) == tuple(reported)


def test_what_differs_is_reported_with_both_values() -> None:
    assert ROOT.difference(RootFolder("/p", "/p/pytest.ini")) == ""
    folder, inifile, hint = ROOT.difference(RootFolder("/q", None)).split("; ")
    assert folder == "the root folder is /q in this process, but /p in the process that began the run"
    assert inifile == "the ini file is none in this process, but /p/pytest.ini in the process that began the run"
    assert "--option=VALUE" in hint


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("suites/test_x.py", "/p"),
        ("p/suites/test_x.py", "/"),
        ("test_x.py", "/p/suites"),  # collected by its folder, which is outside the root folder
        ("", "/root"),  # collected as the root itself
        ("other/test_x.py", "/root"),  # not a suffix of the file's path: nothing better is known
    ],
)
def test_the_folder_that_an_id_leads_from(path: str, folder: str) -> None:
    assert RootFolder("/root", None).root_of_id(Path("/p/suites/test_x.py"), path) == RootFolder(folder, None)


@pytest.mark.parametrize(
    ("files", "root", "inifile", "here", "found"),
    [
        (["pytest.ini"], ".", "pytest.ini", ".", True),
        (["pytest.ini"], ".", "pytest.ini", "suites", True),
        (["pytest.ini", "suites/a/tox.ini"], ".", "pytest.ini", ".", False),
        (["pytest.ini"], "suites", "pytest.ini", ".", False),
        (["conf/my.ini"], "conf", "conf/my.ini", ".", False),
        ([], "suites", None, "suites", True),
        ([], ".", None, "suites", False),
        (["setup.py"], ".", None, ".", False),
    ],
)
def test_whether_pytest_finds_it_again_by_itself(
    tmp_path: Path, files: Sequence[str], root: str, inifile: str | None, here: str, found: bool
) -> None:
    (tmp_path / "suites" / "a").mkdir(parents=True)
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    reported = RootFolder(str((tmp_path / root).resolve()), None if inifile is None else str(tmp_path / inifile))
    assert reported.found_from(tmp_path / "suites" / "a" / "test_x.py", (tmp_path / here).resolve()) is found
