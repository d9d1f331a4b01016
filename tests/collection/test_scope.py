"""The names of test files outside of the root folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.collection.scope import name_outside_root


@pytest.mark.parametrize(
    ("path", "arguments", "name"),
    [
        ("/lib/pk/m1.py", ["/lib/pk/m1.py"], "m1.py"),
        ("/lib/pk/m1.py", ["/lib/pk/m1.py", "/lib/pk/sub/m1.py"], "m1.py"),
        ("/lib/pk/sub/m1.py", ["/lib/pk/m1.py", "/lib/pk/sub/m1.py"], "sub/m1.py"),
        ("/lib/pk/sub/m1.py", ["/lib/pk/"], "sub/m1.py"),
        ("/lib/a/test_it.py", ["/lib/a/", "/other/b/", "/root/suites/"], "lib/a/test_it.py"),
        ("/lib/a/test_it.py", ["/root/suites/"], None),
        ("/elsewhere/test_it.py", ["/lib/a/"], None),
    ],
)
def test_a_name_is_relative_to_the_common_folder_of_the_arguments(
    path: str, arguments: list[str], name: str | None
) -> None:
    given = [(Path(argument), argument.endswith("/")) for argument in arguments]
    assert name_outside_root(Path(path), Path("/root"), given) == name
