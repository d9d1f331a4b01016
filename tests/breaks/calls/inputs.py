"""The inputs that the cases of operators compare: by operator and argument, and what no case has given."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path

from harness.core.text import format_count
from suites.operators import known, oracles, test_special_inputs
from suites.operators.catalogue import COSTLY, entries
from tests.breaks.calls import input_recorder
from tests.breaks.calls.input_recorder import Inputs

_ROOT = Path(__file__).parents[3]
#: The cases that compare values of operators of the catalogue.
CASES = [
    f"suites/operators/{name}.py"
    for name in ("test_values", "test_sizes", "test_variants", "test_special_inputs", "test_option_pairs")
]
#: What a tensor argument should have been: the property, and the property of the arguments for which it is asked.
COLUMNS = {"gaps": "array", "nan": "float", "rows of -inf": "float", "far mean": "float"}
#: What one of the arguments should have been, for operators with the aspect `sizes`.
MANY = ("many of float16", "many of bfloat16")

_EXCLUDE = "the options exclude each other"
_GRADIENT = "an option of the gradient alone"
_STRIDES = "it is about strides: gaps change what it means"
_COSTLY = "its reference takes long, and a sibling has the same kernel"
_NO_16_BITS = "the CPU has no kernel of 16 bits"
_COMPLEX_INPUT = "its input is complex, and the cases of special inputs are of float32"
_WITHOUT_SAMPLES = "torch's samples are empty; `test_options` and `test_option_pairs` have its windows"
_SCALES = "scales and matrices have the layout that the kernel takes"
#: Why no case gives an input: by operator, argument or pair, and property. `*` stands for anything, as in `fnmatch`.
_REASONS: dict[tuple[str, str, str], str] = {
    ("*", "correction+unbiased", "pair"): _EXCLUDE,
    ("*", "scale_factor+size", "pair"): _EXCLUDE,
    ("*", "output_ratio+output_size", "pair"): _EXCLUDE,
    ("searchsorted", "right+side", "pair"): "they mean the same",
    ("_upsample_bilinear2d_aa", "scale_factors+scales_?", "pair"): "options of two overloads",
    ("nn.functional.embedding*", "*scale_grad_by_freq", "pair"): _GRADIENT,
    ("nn.functional.embedding*", "*+sparse", "pair"): _GRADIENT,
    ("view_as_complex", "*", "gaps"): "its last dimension has no gaps",
    ("as_strided*", "*", "gaps"): _STRIDES,
    ("view*", "*", "gaps"): _STRIDES,
    ("resize_*", "*", "gaps"): _STRIDES,
    ("empty_like", "*", "gaps"): "it reads no values",
    ("new_empty*", "*", "gaps"): "it reads no values",
    ("native_group_norm", "*", "gaps"): "group_norm, which makes its arguments contiguous, has gaps",
    ("sparse.*", "*", "gaps"): "an argument is sparse",
    ("to_sparse", "*", "gaps"): "its result is sparse",
    ("torch._scaled_mm_v2", "*", "*"): _SCALES,
    ("nn.functional.unfold", "*", "*"): _WITHOUT_SAMPLES,
    ("istft", "window", "*"): _COMPLEX_INPUT,
    ("fft.*", "", "many of *"): _NO_16_BITS,
    ("nn.functional.avg_pool3d", "", "many of *"): _NO_16_BITS,
    ("unique", "", "many of *"): "its samples are whole numbers",
    ("nonzero", "", "many of *"): "its samples are whole numbers",
}


@dataclass(frozen=True, slots=True)
class Hole:
    """An input that no case gives an operator, and why; empty if there is no reason."""

    operator: str
    argument: str
    what: str
    reason: str


def record(results: Path) -> Inputs:
    """Run the cases with the recorder, and return what they have given. `results`: a folder for the run."""
    command = [sys.executable, "-m", "pytest", *CASES, "-n", "auto", "-p", input_recorder.__name__]
    command += ["--leak-check=off", f"--results-dir={results}"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, input_recorder.VARIABLE: folder, "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run(command, cwd=_ROOT, env=environment, check=False)
        return input_recorder.read(Path(folder))


def holes(inputs: Inputs) -> list[Hole]:
    """Return what the arguments of each operator never were."""
    found = []
    for entry in entries():
        if (arguments := inputs.get(entry.name)) is None:
            continue
        missing = [
            (name, what)
            for name, seen in arguments.items()
            for what, asked in COLUMNS.items()
            if asked in seen and what not in seen
        ]
        options = sorted(name for name, seen in arguments.items() if "option" in seen and "array" not in seen)
        missing += [(pair, "pair") for pair in map("+".join, combinations(options, 2)) if pair not in arguments]
        if "sizes" in entry.aspects and "half" in entry.groups:
            given = {each for seen in arguments.values() for each in seen}
            missing += [("", what) for what in MANY if what not in given]
        found += [Hole(entry.name, name, what, _reason(entry.name, name, what)) for name, what in missing]
    return found


def _reason(operator: str, argument: str, what: str) -> str:
    """Return why no case gives an argument a property; empty if there is no reason."""
    for patterns, reason in _REASONS.items():
        if all(map(fnmatchcase, (operator, argument, what), patterns)):
            return reason
    if what in MANY and operator in COSTLY:
        return _COSTLY
    if what not in test_special_inputs.CHANGES:
        return ""
    if oracles.kind(operator) not in (oracles.NUMPY, oracles.PICKS):
        return f"the oracle is {oracles.kind(operator)}"
    if operator in COSTLY:
        return _COSTLY
    return known.special(operator, what)


def inputs_page(inputs: Inputs) -> str:
    """Return the table as Markdown: a row per operator and tensor argument, with the holes that have no reason last."""
    lines = ["| operator | argument | " + " | ".join(COLUMNS) + " |", "| --- " * (2 + len(COLUMNS)) + "|"]
    every = holes(inputs)
    why = {(each.operator, each.argument, each.what): each.reason for each in every}
    for operator, arguments in sorted(inputs.items()):
        for name, seen in arguments.items():
            if "array" in seen:
                cells = [_cell(seen, what, why.get((operator, name, what))) for what in COLUMNS]
                lines.append(f"| `{operator}` | {name} | " + " | ".join(cells) + " |")
    missing = [each for each in every if not each.reason]
    lines += ["", *(f"**no case**: {each.operator} {each.argument} {each.what}" for each in missing)]
    total = sum("array" in seen for arguments in inputs.values() for seen in arguments.values())
    have_one = len(every) - len(missing)
    counts = f"{format_count(len(inputs), 'operator')}, {format_count(total, 'tensor argument')}"
    return "\n".join([*lines, f"{counts}: {have_one} holes have a reason, {len(missing)} have none"]) + "\n"


def _cell(seen: set[str], what: str, reason: str | None) -> str:
    if what in seen:
        return "yes"
    return "" if reason is None else reason or "**no case**"
