"""The table of overloads of aten, and what the installed torch adds to it."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest
import torch

from tests.breaks.calls import uncalled
from tests.breaks.calls.overloads import (
    FILE,
    Overload,
    OverloadsError,
    overloads_page,
    overloads_summary,
    read_overloads,
    registered_overloads,
    with_installed,
    write_overloads,
)
from tests.cli.commands import command

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


def test_the_page_has_every_overload() -> None:
    page = overloads_page([CALLED, EXCUSED, MISSING])
    assert "| `aten::add.out` | CPU, CUDA | 3 | `suites/a/test_b.py::test_c[a|b]` |".replace("a|b", "a\\|b") in page
    assert "| `aten::new` | CUDA | 0 | **no case** |" in page


def test_the_installed_torch_has_kernels_of_its_own() -> None:
    found = registered_overloads()

    assert "CPU" in found["aten::add.out"]
    assert "aten::einsum" not in found  # composed of other operators on every device


def test_every_overload_with_a_kernel_is_called_by_a_case_or_has_a_reason() -> None:
    table = list(read_overloads(FILE))
    if torch.__version__.startswith("2.13."):
        table = with_installed(table, registered_overloads())
    assert [each.name for each in table if each.missing] == []


def test_every_reason_is_that_of_an_overload_that_no_case_calls() -> None:
    names = [each.name for each in read_overloads(FILE) if not each.cases]
    assert [each for each in uncalled.REASONS if not fnmatch.filter(names, each)] == []


@pytest.mark.acceptance
@pytest.mark.parametrize("table", ["overloads", "names"])
def test_the_commands_show_the_tables(table: str) -> None:
    """Exit status 1 means that the installed torch has something that neither a case nor a reason covers."""
    done = command("tests.breaks", table)
    assert done.returncode == int("**no case**" in done.stdout), done.stderr
    assert ": cases call " in done.stdout
