"""A plugin that puts unusual values into reports, as plugins do by mistake."""

from typing import Any

import pytest


class Broken:
    def __str__(self) -> str:
        return str(1 / 0)


ODD = {
    "test_duration_below_zero": ("duration", -5.0),
    "test_duration_of_no_number": ("duration", float("nan")),
    "test_duration_without_end": ("duration", 1e300),
    "test_duration_of_text": ("duration", "long"),
    "test_no_start": ("start", None),
    "test_section_of_three": ("sections", [("a", "b", "c")]),
    "test_sections_of_bytes": ("sections", [(1, b"\xff")]),
    "test_no_sections": ("sections", None),
    "test_property_alone": ("user_properties", [("alone",)]),
    "test_no_phase": ("when", None),
    "test_own_attribute": ("odd", {(1, 2): object()}),
    "test_fails_with_a_number": ("longrepr", 5),
    "test_fails_with_a_broken_text": ("longrepr", Broken()),
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    report = yield
    if call.when == "call" and item.name in ODD:
        setattr(report, *ODD[item.name])
    return report
