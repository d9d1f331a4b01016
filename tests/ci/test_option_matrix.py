"""The matrix of options: each run has the arguments and the surrounding that its name says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.configuration.options import OPTIONS
from tests.ci import option_matrix
from tests.ci.option_matrix import Variant


def test_each_variant_has_its_own_name_and_only_known_options() -> None:
    every = option_matrix.variants(Path("/folder"))
    assert len({variant.name for variant in every}) == len(every) > 20
    flags = {option.flag for option in OPTIONS.values()}
    for variant in every:
        for argument in variant.arguments:
            assert argument.partition("=")[0] in flags or argument.startswith(("-n", "-m"))


def test_runs_together_have_each_variant_once_and_no_option_twice() -> None:
    every = {variant.name: variant for variant in option_matrix.variants(Path("/folder"))}
    grouped = [name for names in option_matrix.TOGETHER for name in names]
    assert sorted(grouped) == sorted(every.keys() - {"base"})
    for names in option_matrix.TOGETHER:
        run = option_matrix.combined([every[name] for name in names])
        options = [re.sub("^-n[0-9]$", "-n", argument.partition("=")[0]) for argument in run.arguments]
        variables = [name for each in names for name in every[each].variables]
        assert len(set(options)) == len(options)
        assert len(set(variables)) == len(variables) == len(run.variables)


@pytest.mark.parametrize(
    ("variant", "spread"), [(Variant("a", ("--slots=2",)), ["-n3", "--slots=2"]), (Variant("b", ("-n0",)), ["-n0"])]
)
def test_the_command_of_a_variant(variant: Variant, spread: list[str]) -> None:
    made = option_matrix.command(variant, ["suites/"], "3", Path("/results"))
    assert made == [sys.executable, "-m", "pytest", "suites/", *spread, "--results-dir=/results", "-p", made[-1]]


def test_a_surrounding_is_set_up_for_the_command(tmp_path: Path) -> None:
    option_matrix.prepare(tmp_path)
    every = {variant.name: variant for variant in option_matrix.variants(tmp_path)}
    assert "HOME" not in option_matrix.environment(every["HOME unset"], os.environ)
    code = "import os; print(oct(os.umask(0)), os.geteuid(), os.access(os.path.expanduser('~'), os.W_OK))"
    printed = {}
    for name in ("umask 077", "unprivileged user", "read-only HOME"):
        # A user that cannot start further interpreters still gets the surrounding.
        why = option_matrix.why_not_tried(every[name], tmp_path)
        if why and not why.startswith("it cannot start"):
            printed[name] = why
            continue
        words = [*every[name].before, sys.executable, "-c", code]
        environment = option_matrix.environment(every[name], os.environ)
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        printed[name] = done.stdout.strip() or done.stderr
    assert printed["umask 077"].startswith("0o77 ")
    if os.geteuid() == 0:
        assert printed["unprivileged user"].split()[1] == str(option_matrix.NOBODY)
        assert printed["read-only HOME"].endswith(" False")
