"""The location of the suites, and how ``harness run`` interprets its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.installed import Home, NoSuitesError


def home_in(folder: Path) -> Path:
    (folder / "suites" / "streams").mkdir(parents=True)
    (folder / "suites" / "streams" / "test_a.py").touch()
    (folder / "pyproject.toml").touch()
    return folder


def test_the_bundle_of_a_wheel_comes_before_what_lies_beside_the_package(tmp_path: Path) -> None:
    package = tmp_path / "harness"
    home_in(tmp_path)
    assert Home.find(package) == Home(tmp_path, is_bundle=False)
    home_in(package / "bundle")
    assert Home.find(package) == Home(package / "bundle", is_bundle=True)


def test_a_package_without_suites_says_so(tmp_path: Path) -> None:
    (tmp_path / "suites").mkdir()  # without settings it belongs to another project
    with pytest.raises(NoSuitesError, match="this wheel was built without them; run pytest in a checkout"):
        Home.find(tmp_path / "harness")


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ([], ["HOME/suites"]),
        (["-n", "auto", "--profile", "smoke"], ["-n", "auto", "--profile", "smoke", "HOME/suites"]),
        (["suites", "-x"], ["HOME/suites", "-x"]),
        (["suites/streams/"], ["HOME/suites/streams"]),
        (["suites/streams/test_a.py::test_b[x::y]"], ["HOME/suites/streams/test_a.py::test_b[x::y]"]),
        (["suites/none"], ["HOME/suites/none"]),  # pytest reports that there is no such file
        (["--history", "old/suites"], ["--history", "old/suites", "HOME/suites"]),
    ],
)
def test_the_arguments_of_pytest(tmp_path: Path, given: list[str], made: list[str]) -> None:
    home = Home(home_in(tmp_path), is_bundle=False)
    head = ["-c", f"{tmp_path}/pyproject.toml", f"--rootdir={tmp_path}"]
    assert home.arguments(given, Path("/here")) == [*head, *(word.replace("HOME", str(tmp_path)) for word in made)]


def test_the_cache_of_pytest_is_not_written_into_a_bundle(tmp_path: Path) -> None:
    home = Home(home_in(tmp_path), is_bundle=True)
    assert "-ocache_dir=/here/.pytest_cache" in home.arguments([], Path("/here"))
    assert not any("cache_dir" in word for word in home.arguments([], None))
