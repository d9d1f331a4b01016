"""Private names of torch: found by their paths, or the case is skipped with the missing name in the reason."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from suites.reaching import below, reach


@pytest.mark.parametrize(
    "path",
    [
        "torch.no_such_name",
        "torch._C._no_such_function",
        "torch.Tensor._no_such_method",
        "torch.autograd.no_such_name.deeper",
        "torch.no_such_module.name",
        "torch.cuda._memory_viz.no_such_plot",
        "torch.utils.viz._no_such_module.f",
        "torch.profiler._memory_profiler.Category.NO_SUCH_MEMBER",
    ],
)
def test_a_name_that_torch_lacks_skips_the_case_and_is_reported(path: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=rf"^torch \S+ has no {path}$"):
        reach(path)


def test_names_of_modules_classes_and_members_are_found() -> None:
    assert reach("torch.profiler._memory_profiler.Action.CREATE").name == "CREATE"
    assert reach("torch.Tensor._make_wrapper_subclass") is torch.Tensor._make_wrapper_subclass
    assert reach("torch") is torch


def test_a_module_that_needs_another_package_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_this_test.py").write_text(
        "import warnings\nwarnings.warn('old', DeprecationWarning)\nimport nowhere"
    )
    monkeypatch.setattr(torch, "__path__", [*torch.__path__, str(tmp_path)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # warnings of torch's own modules are not the case's concern
        with pytest.raises(pytest.skip.Exception, match=r"^torch\.of_this_test needs nowhere, which is not installed$"):
            reach("torch.of_this_test.name")


def test_an_attribute_that_torch_lacks_skips_the_case_and_is_reported() -> None:
    outer = SimpleNamespace(inner=SimpleNamespace(there=1))

    assert below(outer, "inner.there") == 1
    with pytest.raises(pytest.skip.Exception, match=r"has no gone in SimpleNamespace$"):
        below(outer, "inner.gone")
