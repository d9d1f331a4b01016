"""Properties that a case recorded with pytest's ``record_property``, as texts for the journal."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.core.text import escape_invalid_xml, truncate_middle

#: The most properties that are kept of a case, and the most characters of a name and of a value.
MOST = 100
MOST_OF_NAME, MOST_OF_VALUE = 200, 2000


def texts(reports: Sequence[pytest.TestReport]) -> tuple[tuple[str, str], ...]:
    """Return names and values in the order in which they were recorded.

    Each report includes the properties of the previous phases, so the last report that has any has all.
    """
    recorded = next((report.user_properties for report in reversed(reports) if report.user_properties), [])
    properties = tuple((_text(name, MOST_OF_NAME), _text(value, MOST_OF_VALUE)) for name, value in recorded[:MOST])
    more = len(recorded) - MOST
    return (*properties, ("more properties", str(more))) if more > 0 else properties


def _text(value: object, most: int) -> str:
    if not isinstance(value, str):
        try:
            value = str(value)
        except Exception as error:  # noqa: BLE001 - a value of the user's, where the case ran in this process
            value = f"<{type(value).__name__}, whose text cannot be had: {type(error).__name__}>"
    return escape_invalid_xml(truncate_middle(value, most))
