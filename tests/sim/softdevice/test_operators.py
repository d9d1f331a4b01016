"""The soft device's operators. The checks are in `operator_checks`, the table of calls in `operator_calls`."""

from __future__ import annotations

import pytest

from tests.sim.softdevice import inside, operator_checks

pytestmark = pytest.mark.acceptance


@pytest.mark.parametrize("function", inside.checks(operator_checks), ids=lambda function: function.__name__)
def test_operator(function: inside.Check, once: inside.Once) -> None:
    inside.verdict(function, once)
