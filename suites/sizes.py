"""Sizes of cases that check themselves on any device, and that fill a real GPU."""

from __future__ import annotations

import pytest

#: For `parametrize`: False, small; True, as large as a real GPU needs.
SIZES = [
    pytest.param(False, id="small"),
    pytest.param(True, id="full", marks=pytest.mark.requires(silicon=True)),
]
