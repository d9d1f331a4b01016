"""Whole trees, compared with the texts accepted for this release of torch (docs/golden-trees.md)."""

from __future__ import annotations

import pytest
import torch

from .golden import FOLDER, GOLDENS, Golden, applicable, difference, file_name, running_minor, stored, tree_text


def _parameter(golden: Golden) -> object:
    marks = [pytest.mark.covers(*golden.covers)] if golden.covers else []
    if golden.cuda:
        marks.append(pytest.mark.requires(device="cuda"))
    return pytest.param(golden, id=golden.name, marks=marks)


@pytest.mark.parametrize("golden", [_parameter(golden) for golden in GOLDENS if stored(golden.name)])
def test_golden_tree_is_the_accepted_one(golden: Golden) -> None:
    """The tree equals the text that was accepted for this release of torch, or for the newest release before it.

    A tree without a text for any release has no case; if only newer releases have one, the case is skipped.
    """
    running, texts = running_minor(), stored(golden.name)
    minor = applicable(texts, running)
    if minor is None:
        pytest.skip(
            f"no golden file {file_name(golden.name, running)} nor one of an older torch in {FOLDER.name}/: "
            f"accept one with python -m suites.profiler.accept {golden.name}"
        )

    found = tree_text(golden, torch.device("cuda", 0) if golden.cuda else torch.device("cpu"))

    file = file_name(golden.name, minor)
    changed = difference(texts[minor], found, file, f"torch {torch.__version__}")
    assert not changed, (
        f"differs from the accepted tree; to accept it: python -m suites.profiler.accept {golden.name}\n{changed}"
    )
