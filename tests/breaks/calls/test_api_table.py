"""The table of public names (api.txt): it matches the suites, and the share of names that cases call stays."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.breaks.calls.api import FILE, MODULES, PublicName, module_of_name, read_api, shares

SUITES = Path(__file__).parents[3] / "suites"
TABLE = list(read_api(FILE))

#: By module, the minimum share of its names that cases call. Raise it when cases are added.
FLOORS: dict[str, float] = {
    "torch.accelerator": 1.0,
    "torch.amp": 1.0,
    "torch.autograd": 0.44,
    "torch.autograd.forward_ad": 1.0,
    "torch.autograd.function": 0.91,
    "torch.autograd.functional": 1.0,
    "torch.autograd.graph": 1.0,
    "torch.autograd.profiler": 0.97,
    "torch.autograd.profiler_util": 1.0,
    "torch.backends.cuda": 0.96,
    "torch.backends.cudnn": 1.0,
    "torch.backends.mkldnn": 1.0,
    "torch.backends.nnpack": 1.0,
    "torch.backends.opt_einsum": 1.0,
    "torch.cuda": 0.94,
    "torch.cuda.nvtx": 1.0,
    "torch.nn.attention": 0.16,
    "torch.nn.attention.bias": 1.0,
    "torch.nn.attention.flex_attention": 1.0,
    "torch.optim": 0.97,
    "torch.optim.lr_scheduler": 1.0,
    "torch.optim.swa_utils": 1.0,
    "torch.profiler": 1.0,
    "torch.random": 1.0,
    "torch.serialization": 0.95,
    "torch.storage": 1.0,
    "torch.utils.checkpoint": 1.0,
}


@functools.cache
def _cases_of(file: str) -> frozenset[str]:
    tree = ast.parse((SUITES.parent / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("module", sorted({module_of_name(each.name) for each in TABLE}))
def test_the_share_of_a_module_does_not_fall(module: str) -> None:
    whole, called, _ = shares(TABLE)[module]
    assert called / whole >= FLOORS.get(module, 0.0), f"{module}: {called} of {whole} names are called"


def test_each_name_has_a_case_or_a_reason() -> None:
    assert [each.name for each in TABLE if each.missing] == []


@pytest.mark.parametrize("each", [each for each in TABLE if "suites/" in each.text], ids=lambda each: each.name)
def test_the_files_that_a_reason_names_exist(each: PublicName) -> None:
    for file in re.findall(r"suites/[\w/]+\.py", each.text):
        assert (SUITES.parent / file).is_file()


def test_every_module_of_the_table_is_known() -> None:
    assert {module_of_name(each.name) for each in TABLE} <= {*MODULES}


@pytest.mark.parametrize("each", [each for each in TABLE if each.cases], ids=lambda each: each.name)
def test_the_case_that_a_line_names_exists(each: PublicName) -> None:
    file, _, name = each.text.partition("::")
    assert name.partition("[")[0] in _cases_of(file), "write the table again: python -m tests.breaks names DIR..."


def test_names_are_listed_once_and_in_order() -> None:
    names = [each.name for each in TABLE]
    assert names == sorted(set(names))
