"""Claims to devices: tables, and a model in which any mix of claims starts and ends."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.scheduling.leases import ALONE, Claim, Lease, grant_leases, share_of

HALF = Fraction(1, 2)
GIB = 1 << 30


def pair(own: str, *others: str) -> Claim:
    return Claim(own, others, count=2)


@pytest.mark.parametrize(
    ("waiting", "held", "leases", "awaited"),
    [
        pytest.param([], [], {}, {}, id="nothing"),
        pytest.param([Claim("a")], [], {0: ("a",)}, {}, id="free"),
        pytest.param([Claim("a")], [Lease(("a",))], {}, {0: ("a",)}, id="held"),
        pytest.param([Claim("a"), Claim("a")], [], {0: ("a",)}, {1: ("a",)}, id="the_earlier_one_first"),
        pytest.param([pair("a", "b", "c")], [Lease(("b",))], {0: ("a", "c")}, {}, id="other_devices_that_are_free"),
        pytest.param([pair("a", "b", "c")], [], {0: ("a", "b")}, {}, id="preferred_devices_if_all_are_free"),
        pytest.param(
            [pair("a", "b"), Claim("a"), Claim("c")],
            [Lease(("b",))],
            {2: ("c",)},
            {0: ("a", "b"), 1: ("a",)},
            id="a_free_device_is_kept_for_who_waits_for_another_one_too",
        ),
        pytest.param(
            [pair("a", "b", "c"), Claim("b"), Claim("c")],
            [Lease(("b",)), Lease(("c",))],
            {},
            {0: ("a", "b"), 1: ("b",), 2: ("c",)},
            id="all_others_are_held",
        ),
        pytest.param(
            [Claim("a", share=HALF), Claim("a", share=HALF), Claim("a", share=HALF)],
            [],
            {0: ("a",), 1: ("a",)},
            {2: ("a",)},
            id="slots",
        ),
        pytest.param(
            [Claim("a"), Claim("a", share=HALF)],
            [Lease(("a",), HALF)],
            {},
            {0: ("a",), 1: ("a",)},
            id="who_waits_to_be_alone_is_not_overtaken",
        ),
    ],
)
def test_who_gets_what(
    waiting: list[Claim], held: list[Lease], leases: dict[int, tuple[str, ...]], awaited: dict[int, tuple[str, ...]]
) -> None:
    decision = grant_leases(waiting, held, {})
    assert {position: lease.devices for position, lease in decision.leases.items()} == leases
    assert decision.awaited == awaited


@pytest.mark.parametrize(
    ("wanted", "held", "granted"),
    [
        (6 * GIB, [4 * GIB], True),
        (7 * GIB, [4 * GIB], False),
        (12 * GIB, [], True),  # if no device has that much, the requirement refuses it, not the lease
    ],
)
def test_declared_memory(wanted: int, held: list[int], granted: bool) -> None:
    leases = [Lease(("a",), Fraction(1, 4), memory) for memory in held]
    decision = grant_leases([Claim("a", share=Fraction(1, 4), memory=wanted)], leases, {"a": 10 * GIB})
    assert (0 in decision.leases) == granted


@pytest.mark.parametrize(
    ("slots", "memory", "total", "alone", "share"),
    [
        (1, 0, None, False, ALONE),
        (4, 0, 8 * GIB, False, Fraction(1, 4)),
        (4, 0, 8 * GIB, True, ALONE),
        (4, 3 * GIB, 8 * GIB, False, Fraction(1, 4)),
        (4, 4 * GIB, 8 * GIB, False, ALONE),
        (4, 4 * GIB, None, False, Fraction(1, 4)),
    ],
)
def test_shares(slots: int, memory: int, total: int | None, alone: bool, share: Fraction) -> None:
    assert share_of(slots, memory, total, alone=alone) == share


DEVICES = "abcde"


@st.composite
def claims(draw: st.DrawFn) -> Claim:
    devices = draw(st.permutations(DEVICES))
    own, others = devices[0], tuple(devices[1 : draw(st.integers(1, len(DEVICES)))])
    return Claim(
        own,
        others,
        count=draw(st.integers(1, 1 + len(others))),
        share=draw(st.sampled_from([ALONE, HALF, Fraction(1, 3), Fraction(1, 4)])),
        memory=draw(st.sampled_from([0, 1, 5, 10])),
    )


class Model:
    """A host on which claims start and leases end. Each step checks that no device is over-committed."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Claim]] = []
        self.held: dict[int, tuple[Claim, Lease]] = {}
        self.memory = dict.fromkeys(DEVICES, 10)
        self.came = 0

    def come(self, claim: Claim) -> None:
        self.waiting.append((self.came, claim))
        self.came += 1
        self.settle()

    def end(self, number: int) -> None:
        del self.held[number]
        self.settle()

    def settle(self) -> None:
        decision = grant_leases(
            [claim for _, claim in self.waiting], [lease for _, lease in self.held.values()], self.memory
        )
        for position, lease in decision.leases.items():
            number, claim = self.waiting[position]
            assert claim.within(lease) == lease.devices
            self.held[number] = (claim, lease)
        self.waiting = [each for position, each in enumerate(self.waiting) if position not in decision.leases]
        shares: Counter[str] = Counter()
        memory: Counter[str] = Counter()
        for _, lease in self.held.values():
            for device in lease.devices:
                shares[device] += lease.share  # type: ignore[assignment]  # a Counter counts fractions as well
                memory[device] += lease.memory
        assert all(share <= 1 for share in shares.values())
        assert all(used <= self.memory[device] for device, used in memory.items())
        assert self.held or not self.waiting, "nobody has a device and yet claims wait"


@given(st.lists(claims(), max_size=25), st.data())
def test_any_mix_of_claims_ends(mix: list[Claim], data: st.DataObject) -> None:
    model = Model()
    for claim in mix:
        model.come(claim)
        ends: bool = data.draw(st.booleans())
        if model.held and ends:
            model.end(data.draw(st.sampled_from(sorted(model.held))))
    while model.held:
        model.end(data.draw(st.sampled_from(sorted(model.held))))
    assert not model.waiting


@given(st.lists(claims(), min_size=1, max_size=8), st.lists(claims(), min_size=1, max_size=8), st.data())
def test_a_stream_of_later_claims_starves_nobody(first: list[Claim], later: list[Claim], data: st.DataObject) -> None:
    """A round ends all leases held at its start, in any order, and after each end another claim starts.

    A claim with N claims before it has its devices after at most N + 1 rounds.
    """
    model = Model()
    for claim in first:
        model.come(claim)
    mine = model.came
    model.come(data.draw(claims()))
    for _ in range(mine + 1):
        for number in data.draw(st.permutations(sorted(model.held))):
            model.end(number)
            model.come(data.draw(st.sampled_from(later)))
    assert mine not in {number for number, _ in model.waiting}


@pytest.mark.parametrize(
    ("claim", "lease", "devices"),
    [
        (Claim("a"), Lease(("a",)), ("a",)),
        (Claim("a"), Lease(("b", "a")), ("a",)),
        (Claim("a"), Lease(("b",)), ()),
        (pair("a", "b", "c"), Lease(("a", "c")), ("a", "c")),
        (pair("a", "b"), Lease(("a", "c")), ()),
        (pair("a", "b"), Lease(("a",)), ()),
        (Claim("a"), Lease(("a",), HALF), ()),
        (Claim("a", share=HALF), Lease(("a",)), ("a",)),
        (Claim("a", share=HALF, memory=5), Lease(("a",)), ("a",)),
        (Claim("a", share=HALF, memory=5), Lease(("a",), HALF, 4), ()),
        (Claim("a", share=HALF, memory=5), Lease(("a",), HALF, 5), ("a",)),
    ],
)
def test_what_a_lease_is_enough_for(claim: Claim, lease: Lease, devices: tuple[str, ...]) -> None:
    assert claim.within(lease) == devices


def test_a_pair_is_not_starved_by_singles() -> None:
    model = Model()
    for claim in (Claim("a"), Claim("b"), pair("a", "b"), Claim("a"), Claim("b")):
        model.come(claim)
    for _ in range(2):
        model.end(min(model.held))
        model.come(Claim("a"))
    assert [claim.count for claim, _ in model.held.values()] == [2]
