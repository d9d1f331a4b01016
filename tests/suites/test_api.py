"""The table of public names (suites/api.txt): it fits the suites, and the share of names that cases call stays."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from harness.catalog.api import MODULES, PublicName, module_of, read_api, shares

SUITES = Path(__file__).parents[2] / "suites"
TABLE = list(read_api(SUITES / "api.txt"))

#: By module, the share of its names that some case calls, of those without a reason. Raise it when cases are added.
FLOORS: dict[str, float] = {
    "torch.accelerator": 0.95,
    "torch.amp": 1.0,
    "torch.autograd": 0.9,
    "torch.autograd.forward_ad": 1.0,
    "torch.autograd.function": 1.0,
    "torch.autograd.functional": 1.0,
    "torch.autograd.graph": 0.7,
    "torch.autograd.profiler": 0.86,
    "torch.autograd.profiler_util": 0.91,
    "torch.backends.cuda": 0.58,
    "torch.backends.cudnn": 0.8,
    "torch.backends.mkldnn": 0.8,
    "torch.backends.nnpack": 0.66,
    "torch.cuda": 0.93,
    "torch.cuda.nvtx": 1.0,
    "torch.nn.attention": 1.0,
    "torch.nn.attention.bias": 1.0,
    "torch.optim": 0.97,
    "torch.optim.lr_scheduler": 1.0,
    "torch.optim.swa_utils": 1.0,
    "torch.profiler": 0.72,
    "torch.random": 0.85,
    "torch.serialization": 1.0,
    "torch.storage": 0.89,
    "torch.utils.checkpoint": 0.92,
}


@functools.cache
def _cases_of(file: str) -> frozenset[str]:
    tree = ast.parse((SUITES.parent / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("module", sorted({module_of(each.name) for each in TABLE}))
def test_the_share_of_a_module_does_not_fall(module: str) -> None:
    whole, called, excused = shares(TABLE)[module]
    if whole > excused:
        assert called / (whole - excused) >= FLOORS[module], f"{module}: {called} of {whole - excused} names are called"


def test_every_module_of_the_table_is_known() -> None:
    assert {module_of(each.name) for each in TABLE} <= {*MODULES}


@pytest.mark.parametrize("each", [each for each in TABLE if each.cases], ids=lambda each: each.name)
def test_the_case_that_a_line_names_exists(each: PublicName) -> None:
    file, _, name = each.text.partition("::")
    assert name.partition("[")[0] in _cases_of(file), "write the table again: harness mutate api"


def test_names_are_listed_once_and_in_order() -> None:
    names = [each.name for each in TABLE]
    assert names == sorted(set(names))
