"""Figures of speed: their names and units, and the floors that a hardware file states for them. Plain values.

A floor is the least speed of a healthy device: ``">=2.4TB/s"`` for a bandwidth or a rate of operations. For a time it
is the maximum: ``"<=20us"``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

#: The prefix of names of recorded properties with a figure.
PREFIX = "performance."

_BANDWIDTH = {"TB/s": 1e12, "GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "B/s": 1.0}
_OPERATIONS = {"PFLOP/s": 1e15, "TFLOP/s": 1e12, "GFLOP/s": 1e9, "MFLOP/s": 1e6}
_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

#: Each figure and its units, the largest first.
QUANTITIES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "launch_latency": _TIME,
        "launch_synchronize": _TIME,
        "graph_replay": _TIME,
        "event_record": _TIME,
        "allocation": _TIME,
        "d2d_bandwidth": _BANDWIDTH,
        "h2d_pinned_bandwidth": _BANDWIDTH,
        "h2d_pageable_bandwidth": _BANDWIDTH,
        "d2h_pinned_bandwidth": _BANDWIDTH,
        "d2h_pageable_bandwidth": _BANDWIDTH,
        "bidirectional_bandwidth": _BANDWIDTH,
        "peer_bandwidth": _BANDWIDTH,
        "product_fp64": _OPERATIONS,
        "product_fp32": _OPERATIONS,
        "product_tf32": _OPERATIONS,
        "product_fp16": _OPERATIONS,
        "product_bf16": _OPERATIONS,
        "product_fp8": _OPERATIONS,
        "convolution_bf16": _OPERATIONS,
        "attention_bf16": _OPERATIONS,
    }
)
_WRITTEN = re.compile(r"(?P<operator>[<>]=)\s*(?P<number>\d{1,15}(?:\.\d{1,15})?)\s*(?P<unit>[A-Za-z/]{1,8})")
_FIGURE = re.compile(r"(?P<number>\d{1,15}(?:\.\d{1,15})?) (?P<unit>[A-Za-z/]{1,8})")
_UNITS = {unit: (family, factor) for family in (_BANDWIDTH, _OPERATIONS, _TIME) for unit, factor in family.items()}


#: The relative error of a value that was computed with a unit.
_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Floor:
    """The floor of one figure, in B/s, FLOP/s or seconds. `text`: as it was written."""

    name: str
    text: str
    value: float

    def holds(self, value: float) -> bool:
        """Return whether a measured value is at least as good as the floor."""
        return value <= self.value * (1 + _SLACK) if is_time(self.name) else value >= self.value * (1 - _SLACK)


def is_time(name: str) -> bool:
    """Return whether less is better for a figure."""
    return QUANTITIES[name] is _TIME


def parse_floor(name: str, text: object) -> Floor:
    """Return the floor of the figure `name`. Raise ValueError with what was expected."""
    if name not in QUANTITIES:
        near = get_close_matches(name, QUANTITIES, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(QUANTITIES)}"
        raise ValueError(f"there is no figure {name!r}; {advice}")
    units = QUANTITIES[name]
    operator, example = ("<=", "'<=20us'") if units is _TIME else (">=", f"'>=2.4{next(iter(units))}'")
    written = _WRITTEN.fullmatch(text.strip()) if isinstance(text, str) else None
    if written is None:
        raise ValueError(f"{text!r}: expected {operator}, a number and a unit, such as {example}")
    if written["operator"] != operator:
        better = "a time is at most its floor" if units is _TIME else "a speed is at least its floor"
        raise ValueError(f"{text!r}: expected {operator}, since {better}, such as {example}")
    if written["unit"] not in units:
        raise ValueError(f"{text!r}: the unit {written['unit']!r} is none of {', '.join(units)}")
    value = float(written["number"]) * units[written["unit"]]
    if value == 0:
        raise ValueError(f"{text!r}: expected a number above 0, such as {example}")
    return Floor(name, text.strip() if isinstance(text, str) else "", value)


def figure_text(name: str, value: float) -> str:
    """Return a value of the figure `name`, in B/s, FLOP/s or seconds, with the unit that suits it: ``3.01 TB/s``."""
    units = QUANTITIES[name]
    unit = next((unit for unit, factor in units.items() if value >= factor), [*units][-1])
    scaled = value / units[unit]
    return f"{scaled:.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"


def read_figure(text: str) -> float | None:
    """Return the value, in B/s, FLOP/s or seconds, of a text that `figure_text` made. None for any other text."""
    match = _FIGURE.fullmatch(text)
    if match is None or match["unit"] not in _UNITS:
        return None
    return float(match["number"]) * _UNITS[match["unit"]][1]


def reach_of_floor(name: str, value: float, floor: str) -> float | None:
    """Return a value as a fraction of its floor: 1.25 is a quarter better. None if `floor` is no floor of `name`."""
    try:
        least = parse_floor(name, floor).value
    except ValueError:
        return None
    if is_time(name):
        return least / value if value else None
    return value / least


class Floors:
    """The floors of the hardware file of a run. Cases get it from the fixture `floors`."""

    def __init__(self, written: Mapping[str, str], hardware: str) -> None:
        """`written`: the texts of a checked hardware file, by figure. `hardware`: its name."""
        self._floors = {name: parse_floor(name, text) for name, text in written.items()}
        self._hardware = hardware

    def shown(self, name: str, value: float) -> str:
        """Return the value of a figure with its unit. Raise KeyError if there is no such figure."""
        return figure_text(name, value)

    def text(self, name: str) -> str:
        """Return the floor of a figure as it was written; an empty text without one."""
        return self._floors[name].text if name in self._floors else ""

    def missed(self, name: str, value: float) -> str:
        """Return why a value is not good enough; an empty text if it is, or has no floor. Raise KeyError."""
        floor = self._floors.get(name)
        if name not in QUANTITIES:
            raise KeyError(name)
        if floor is None or floor.holds(value):
            return ""
        return f"{name} is {figure_text(name, value)}, and hardware {self._hardware} has the floor {floor.text}"
