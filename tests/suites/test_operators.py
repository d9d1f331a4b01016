"""The table of operators from which the cases of `suites/operators` are made."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from junitparser import JUnitXml

from suites.operators import (
    catalogue,
    known,
    oracles,
    samples,
    sizes,
    test_values,
    test_variants,
    tolerances,
    variants,
)
from tests.preloaded import run_script
from tests.warm import client

ROOT = Path(__file__).parents[2]
NAMES = {each.name for each in catalogue.entries()}


@pytest.mark.acceptance
@pytest.mark.nightly  # it changes with torch and with the generator
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the table is that of torch 2.13")
def test_the_table_is_up_to_date() -> None:
    program = "from suites.operators import generate; print(generate.table(), end='')"
    found = run_script(program)

    assert found.stdout == catalogue.FILE.read_text(encoding="ascii"), (
        f"run python -m suites.operators.generate\n{found.stderr[-2000:]}"
    )


def test_every_operator_has_cases_of_its_values_or_a_reason_why_not() -> None:
    (mark,) = (each for each in test_values.test_values.pytestmark if each.name == "parametrize")
    tried = {parameter.values[0] for parameter in mark.args[1]}

    assert tried == NAMES - set(oracles.WITHOUT)


@pytest.mark.parametrize(
    ("line", "only", "kind"),
    [
        ("add float,half values,out", {}, ""),
        ("addmm float,half,int:cpu values", {"int": "cpu"}, ""),
        ("histc float,half:cpu,int:cuda values", {"half": "cpu", "int": "cuda"}, ""),
        ("histogram float:cpu values,out", {"float": "cpu"}, "cpu"),
    ],
)
def test_a_line_names_the_kind_of_device_that_alone_has_a_group(line: str, only: dict[str, str], kind: str) -> None:
    found = catalogue.Entry.parse(line)

    assert (found.only, found.kind, str(found)) == (only, kind, line)


def _needs(function: Any, *values: str) -> list[dict[str, Any]]:
    """Return the requirements of the cases of a function with these parameters."""
    (mark,) = (each for each in function.pytestmark if each.name == "parametrize")
    (parameter,) = (each for each in mark.args[1] if each.values == values)
    return [each.kwargs for each in parameter.marks if each.name == "requires"]


@pytest.mark.parametrize(
    ("function", "values", "wanted"),
    [
        (test_values.test_values, ("add", "int"), []),
        (test_values.test_values, ("addmm", "int"), [{"not_": {"device": "cuda"}}]),
        (test_values.test_values, ("addmm", "float"), []),
        (test_values.test_values, ("fft.fft", "half"), [{"device": "cuda", "silicon": True}]),
        (test_values.test_values, ("native_batch_norm", "half"), [{"not_": {"device": "cuda"}}]),
        (test_values.test_values_of_whole_numbers, ("addmm",), [{"not_": {"device": "cuda"}}]),
        (test_values.test_values_of_whole_numbers, ("add",), []),
        (test_variants.test_out, ("histogram",), [{"not_": {"device": "cuda"}}]),
        (test_variants.test_out, ("addmm",), []),
        (test_variants.test_errors, ("histogramdd",), []),
        (test_variants.test_repeated, ("index_add",), [{"not_": {"device": "cuda"}}]),
    ],
)
def test_cases_require_the_kind_of_device_for_which_torch_declares_their_types(
    function: Any, values: tuple[str, ...], wanted: list[dict[str, Any]]
) -> None:
    assert _needs(function, *values) == wanted


@pytest.mark.parametrize(
    "table",
    [
        oracles.IDENTITIES, oracles.PICKING, oracles.UNDEFINED, oracles.DENSELY, oracles.WITHOUT, oracles.OWN,
        known.VALUES, known.GRADIENTS, known.NO_SLOPES, known.NO_FORWARD, known.EXTREMES, known.ACCEPT_NUMBERS,
        known.OUT, known.OUT_WITHOUT_CUDA, known.LAYOUTS, known.LENGTHS, known.OUT_OF_ANY_TYPE, known.NOT_UNIQUE,
        known.NOT_FLOATS_ALONE, known.EMPTY,
        *(names.split() for reasons in known.SPECIAL.values() for names in reasons.values()),
        sizes.SIZES, tolerances.MORE, tolerances.LEAST,
    ],
)  # fmt: skip
def test_every_table_names_operators_of_the_catalogue(table: object) -> None:
    assert set(table) - NAMES == set()  # type: ignore[call-overload]


def test_every_variant_is_called_by_an_operator_of_the_catalogue() -> None:
    assert {each.operator for each in variants.variants()} <= NAMES
    assert set(known.OVERLOADS) <= {each.name for each in variants.variants()}
    assert set(known.STRIDED) <= {each.name for each in variants.derivatives()}


def test_collection_does_not_import_the_catalogue_of_torch() -> None:
    program = (
        "import sys; from suites.operators import test_values, test_gradients, test_sizes, test_variants; "
        "print('torch.testing._internal.common_utils' in sys.modules)"
    )
    found = run_script(program)

    assert found.stdout.strip() == "False", found.stderr


@pytest.mark.nightly
def test_the_catalogue_of_torch_leaves_the_process_as_it_was() -> None:
    """It is imported before executors are forked, so its changes would affect the cases of all suites."""
    program = (
        "import torch\n"
        "from harness.checks.state.guard import StateGuard\n"
        "guard = StateGuard()\n"
        "guard.capture()\n"
        "from suites.operators import preloaded\n"
        "print(torch.backends.flags_frozen(), [problem.text for problem in guard.compare()])"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "False []"


def test_an_unknown_operator_is_an_error(tmp_path: Path) -> None:
    arguments = [
        "suites/operators/test_values.py",
        "--operators=nn.functional.conf2d",
        "-n0",
        f"--results-dir={tmp_path}",
    ]
    found = client.run(["-m", "pytest", *arguments], ROOT)

    assert found.returncode == 4
    assert re.search(
        r"--operators='nn.functional.conf2d': .*did you mean nn.functional.conv2d", found.stdout + found.stderr
    )


@pytest.mark.nightly
@pytest.mark.acceptance
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the deviations are those of torch 2.13")
def test_every_known_deviation_is_still_one(tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    arguments = ["suites/operators/test_deviations.py", "--extended", "-n1", f"--junitxml={report}"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, "--device=cpu", f"--results-dir={tmp_path}/run"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )

    passed = [case.name for suite in JUnitXml.fromfile(str(report)) for case in suite if not case.result]
    varying = tuple(
        f"test_values_known_to_deviate[{name}-" for name, entry in known.VALUES.items() if not entry.everywhere
    )
    assert [name for name in passed if not name.startswith(varying)] == [], (
        "torch computes this as documented: remove its line from suites/operators/known.py"
    )


@pytest.mark.parametrize(
    ("chosen", "ranks", "wanted"),
    [
        ([0, 2, 4], [3, 3, 3, 4, 5], [0, 3, 4]),
        ([0, 2], [3, 3, 3, 4, 5], [0, 3]),  # there are fewer positions than numbers
        ([0, 1, 2], [3, 3, 3], [0, 1, 2]),
        ([0, 1, 2], [3, 4, 5, 3], [0, 1, 2]),
        ([1], [3, 4, 5], [1]),
        ([], [], []),
    ],
)
def test_samples_have_each_number_of_dimensions(chosen: list[int], ranks: list[int], wanted: list[int]) -> None:
    assert samples.with_each_rank(chosen, ranks) == wanted
