"""The table of overloads of aten, and what the installed torch adds to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.catalog.overloads import (
    Overload,
    OverloadsError,
    overloads_json,
    overloads_page,
    overloads_summary,
    read_overloads,
    registered_overloads,
    with_installed,
    write_overloads,
)

CALLED = Overload("aten::add.out", ("CPU", "CUDA"), 3, "suites/a/test_b.py::test_c[a|b]")
EXCUSED = Overload("aten::_foobar", ("CPU",), 0, "torch's own tests")
MISSING = Overload("aten::new", ("CUDA",), 0, "")


def test_a_table_reads_as_it_was_written(tmp_path: Path) -> None:
    write_overloads(tmp_path / "table.txt", [CALLED, EXCUSED, MISSING], "2.13.0")

    assert list(read_overloads(tmp_path / "table.txt")) == [CALLED, EXCUSED, MISSING]


@pytest.mark.parametrize("line", ["aten::add", "aten::add\tCPU\tmany\tcase", "\tCPU\t1\tcase", "a\tCPU\t1\tcase\tmore"])
def test_a_line_that_is_no_overload_is_an_error(tmp_path: Path, line: str) -> None:
    (tmp_path / "table.txt").write_text(f"# header\n{line}\n")

    with pytest.raises(OverloadsError, match=r"table\.txt:2: .* is not 'overload, keys, number of cases"):
        list(read_overloads(tmp_path / "table.txt"))


def test_a_missing_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OverloadsError, match=r"nothing\.txt: the table of overloads cannot be read: .*No such file"):
        list(read_overloads(tmp_path / "nothing.txt"))


def test_an_overload_of_the_installed_torch_that_the_table_lacks_is_missing() -> None:
    found = with_installed([CALLED], {"aten::add.out": ("CPU",), "aten::new": ("CUDA",)})

    assert found == [CALLED, MISSING]
    assert [each.missing for each in found] == [False, True]


def test_the_summary_counts_each_kind() -> None:
    assert overloads_summary([CALLED, EXCUSED, MISSING]) == "3 overloads: cases call 1, 1 have a reason, 1 have neither"


def test_json_and_markdown_have_every_overload() -> None:
    table = [CALLED, EXCUSED, MISSING]

    assert [each["name"] for each in json.loads(overloads_json(table))] == [each.name for each in table]
    page = overloads_page(table)
    assert "| `aten::add.out` | CPU, CUDA | 3 | `suites/a/test_b.py::test_c[a|b]` |".replace("a|b", "a\\|b") in page
    assert "| `aten::new` | CUDA | 0 | **no case** |" in page


def test_the_installed_torch_has_kernels_of_its_own() -> None:
    found = registered_overloads()

    assert "CPU" in found["aten::add.out"]
    assert "aten::einsum" not in found  # composed of other operators on every device
