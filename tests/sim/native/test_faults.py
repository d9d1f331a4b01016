"""The catalogue of faults, and the syntax of injections."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sim.native.faults import (
    Injection,
    InjectionError,
    fault_catalogue,
    injectable_kinds,
    join_injections,
    parse_fault_list,
    parse_injection,
    parse_injections,
)
from harness.sim.softdevice.registration import COUNT, INJECT, MASK, MEMORY


@pytest.mark.parametrize("kind", injectable_kinds())
def test_every_fault_says_in_one_line_what_it_breaks(kind: str) -> None:
    known = fault_catalogue(kind)
    assert {"wait_ignored", "launch_hangs", "device_lost", "slow"} <= known.keys()
    assert all(len(text) >= 15 and "\n" not in text for text in known.values())


def test_a_list_of_faults() -> None:
    text = '// a comment\n\nFAULT(a_b, "does this")\nFAULT(c, "and, (that)")\n'
    assert parse_fault_list(text) == {"a_b": "does this", "c": "and, (that)"}


@pytest.mark.parametrize(
    "line", ["FAULT(a)", 'FAULT(a, "x"', "something", 'FAULT(a, "x") FAULT(b, "y")', 'FAULT(z, "y")']
)
def test_a_list_of_faults_with_an_invalid_line(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse_fault_list(f'FAULT(z, "x")\n{line}\n')


@pytest.mark.parametrize(
    ("text", "injection", "short"),
    [
        ("slow", Injection("slow"), "slow"),
        (" slow ", Injection("slow"), "slow"),
        ("slow:1", Injection("slow"), "slow"),
        ("slow:1.0,seed=0", Injection("slow"), "slow"),
        ("slow:.5", Injection("slow", 0.5), "slow:0.5"),
        ("slow:0.001,seed=18446744073709551615", Injection("slow", 0.001, 2**64 - 1), f"slow:0.001,seed={2**64 - 1}"),
        ("slow,seed=7", Injection("slow", seed=7), "slow,seed=7"),
        ("slow:0.000000001", Injection("slow", 1e-9), "slow:0.000000001"),
    ],
)
def test_an_injection(text: str, injection: Injection, short: str) -> None:
    assert parse_injection(text) == injection
    assert str(injection) == short


@given(probability=st.floats(1e-6, 1), seed=st.integers(0, 2**64 - 1))
def test_an_injection_reads_back_what_it_writes(probability: float, seed: int) -> None:
    probability = round(probability, 12)
    assert parse_injection(str(Injection("slow", probability, seed))) == Injection("slow", probability, seed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("event_erly", "the name of a fault, not 'event_erly'; did you mean 'event_early'?"),
        ("nonsense", "the name of a fault, not 'nonsense'; 'harness faults list' lists all faults"),
        ("", r"a fault as NAME\[:probability\]\[,seed=N\], not ''"),
        ("slow:", "a probability above 0 and at most 1 for 'slow', not ''"),
        ("slow:0", "a probability above 0 and at most 1 for 'slow', not '0'"),
        ("slow:1.1", "not '1.1'"),
        ("slow:1e-3", "not '1e-3'"),
        ("slow:-1", "not '-1'"),
        ("slow:nan", "not 'nan'"),
        ("slow,3", r"after the comma of 'slow' comes '3'"),
        ("slow,seed=", "a seed from 0 to 2\\*\\*64-1 for 'slow', not ''"),
        ("slow,seed=18446744073709551616", "not '18446744073709551616'"),
        ("slow,seed=1,seed=2", "not '1,seed=2'"),
    ],
)
def test_an_invalid_injection(text: str, message: str) -> None:
    with pytest.raises(InjectionError, match=message):
        parse_injection(text)


def test_several() -> None:
    assert parse_injections("slow; event_early:0.5 ;") == (Injection("slow"), Injection("event_early", 0.5))
    assert parse_injections("") == ()
    assert join_injections(["slow", "event_early:0.5,seed=2"]) == "slow;event_early:0.5,seed=2"
    with pytest.raises(InjectionError, match="each fault once, but 'slow' appears 2 times"):
        parse_injections("slow;slow:0.5")


def test_the_page_has_every_variable() -> None:
    page = (Path(__file__).parents[3] / "docs" / "softdevice.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in (COUNT, MASK, MEMORY, INJECT))
