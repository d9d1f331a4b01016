"""Sizes of cases: small ones, which check the case itself on any device, and full ones for a real GPU."""

from __future__ import annotations

import pytest

#: For `parametrize`: False means small, True means as large as a real GPU needs.
SIZES = [
    pytest.param(False, id="small"),
    pytest.param(True, id="full", marks=pytest.mark.requires(silicon=True)),
]
