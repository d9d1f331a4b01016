"""The table of public names of torch, and what the installed torch adds to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.breaks.calls.api import (
    ApiError,
    PublicName,
    api_page,
    api_summary,
    called,
    module_of_name,
    public_names,
    read_api,
    shares,
    with_installed_names,
    write_api,
)

CALLED = PublicName("torch.random.seed", 3, "suites/rng/test_seeds.py::test_x", "a=1|2")
EXCUSED = PublicName("torch.random.fork_rng", 0, "it is a test")
MISSING = PublicName("torch.optim.SGD.step")


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_api(tmp_path / "api.txt", [CALLED, EXCUSED, MISSING])
    assert list(read_api(tmp_path / "api.txt")) == [CALLED, EXCUSED, MISSING]


@pytest.mark.parametrize("line", ["torch.a", "torch.a\tmany\tx\t", "\t1\tx\t"])
def test_a_line_that_is_none_is_an_error(tmp_path: Path, line: str) -> None:
    (tmp_path / "api.txt").write_text(f"# header\n{line}\n")
    with pytest.raises(ApiError, match=r"api\.txt:2"):
        list(read_api(tmp_path / "api.txt"))


def test_a_table_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="cannot be read"):
        list(read_api(tmp_path / "api.txt"))


def test_the_sentence_and_the_shares() -> None:
    names = [CALLED, EXCUSED, MISSING]
    assert api_summary(names) == "3 public names: cases call 1, 1 have a reason, 1 have neither"
    assert shares(names) == {"torch.optim": (1, 0, 0), "torch.random": (2, 1, 1)}
    assert [each.missing for each in names] == [False, False, True]


def test_the_page() -> None:
    page = api_page([CALLED, EXCUSED, MISSING])
    assert "| `torch.random` | 2 | 1 | 100% |" in page
    assert "| `torch.optim.SGD.step` | **no case** |" in page


def test_new_names_of_the_installed_torch_are_added() -> None:
    assert with_installed_names([CALLED], [CALLED.name, "torch.random.new"]) == [CALLED, PublicName("torch.random.new")]


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("torch.optim.SGD", "torch.optim"),
        ("torch.optim.lr_scheduler.StepLR.step", "torch.optim.lr_scheduler"),
        ("numpy.sum", ""),
    ],
)
def test_the_module_of_a_name(name: str, module: str) -> None:
    assert module_of_name(name) == module


def test_names_have_the_code_that_a_recording_names() -> None:
    pytest.importorskip("torch")
    names = public_names(["torch.optim", "torch.random", "torch.backends.cudnn"])
    assert {"torch.optim.SGD", "torch.optim.SGD.step"} <= {*names}
    assert {"torch.random.fork_rng", "torch.backends.cudnn.flags"} <= {*names}
    assert not [name for name in names if "._" in name]
    (code,) = names["torch.optim.SGD.step"]  # below a decorator
    root = Path(code.co_filename).parents[2]
    key = "torch/optim/sgd.py:SGD.step"
    values = {"self": {"1"}, "closure": {"None", "function"}}

    found = called(names, root, lambda path: path != "torch/random.py", {key: ["long case", "case"]}, {key: values}, {})

    table = {each.name: each for each in found}
    assert table["torch.optim.SGD.step"] == PublicName("torch.optim.SGD.step", 2, "case", "closure=None|function")
    assert table["torch.optim.Adam.step"].missing
    assert table["torch.random.fork_rng"].text == "its file is not recorded"
