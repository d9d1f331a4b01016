"""Common causes of red results: tables of situations, and properties that hold for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fleet import wording
from harness.fleet.classing import (
    Cause,
    CauseClass,
    Classing,
    Explanation,
    Factor,
    ResultPlace,
    Sure,
    Tally,
    classify,
    joint_chance,
    together,
)
from harness.fleet.statistics import hypergeometric

RED, FLAKY, GREEN = Tally(red=1), Tally(flaky=1), Tally(green=1)
Observations = list[tuple[ResultPlace, Tally]]


def tally(observations: Iterable[tuple[ResultPlace, Tally]]) -> dict[ResultPlace, Tally]:
    """Return the observations by place."""
    by_place: dict[ResultPlace, Tally] = {}
    for place, counts in observations:
        by_place[place] = by_place.get(place, Tally()) + counts
    return by_place


def at(
    host: str, device: str = "H100", driver: str = "570", torch: str = "2.13", uuid: str | None = None
) -> ResultPlace:
    """Return a place. By default a host has one device of its own."""
    return ResultPlace(
        host, (device,), driver, torch, (f"GPU-{host}",) if uuid is None else tuple(filter(None, [uuid]))
    )


def hosts(number: int, said: Tally, first: int = 1, **changes: str) -> Observations:
    """Return one observation per host."""
    return [(at(f"n{first + place}", **changes), said) for place in range(number)]


def torch(value: str) -> Cause:
    return Cause(Factor.TORCH, value)


def driver(value: str) -> Cause:
    return Cause(Factor.DRIVER, value)


def device(value: str) -> Cause:
    return Cause(Factor.DEVICE, value)


def host(value: str) -> Cause:
    return Cause(Factor.HOST, value)


def uuid(value: str) -> Cause:
    return Cause(Factor.UUID, value)


def on(night: int, said: Tally, *conditions: str, uuid: str = "GPU-n1") -> tuple[ResultPlace, Tally]:
    """Return an observation on one machine in this night, with these options."""
    options = frozenset((Factor.OPTION, each) for each in conditions)
    return replace(at("n1", uuid=uuid), rank=night, run=f"r{night}", conditions=options), said


def since(night: int) -> Cause:
    return Cause(Factor.SINCE, f"r{night}", night)


def until(night: int) -> Cause:
    return Cause(Factor.UNTIL, f"r{night}", night)


def option(value: str) -> Cause:
    return Cause(Factor.OPTION, value)


SAME = (device("H100"), driver("570"), torch("2.13"))
MIG = ResultPlace("n1", ("MIG",), "570", "2.13", ("MIG-1", "GPU-a"))

#: Name, observations, class, causes, indistinguishable causes, certainty.
SITUATIONS: list[tuple[str, Observations, CauseClass, Explanation, Explanation, Sure]] = [
    (
        "since a night",
        [on(n, RED if n > 5 else GREEN) for n in range(12)],
        CauseClass.SINCE, (since(6),), (), Sure.STRONG,
    ),
    (
        "until a night",
        [on(n, GREEN if n > 5 else RED) for n in range(12)],
        CauseClass.UNTIL, (until(5),), (), Sure.STRONG,
    ),
    (
        "since a night, of few",
        [on(0, GREEN), on(1, GREEN), on(2, RED), on(3, RED)],
        CauseClass.SINCE, (since(2),), (), Sure.WEAK,
    ),
    (
        "an option, now and then",
        [on(n, RED, "x") if n % 2 else on(n, GREEN) for n in range(12)],
        CauseClass.ONE_OPTION, (option("x"),), (), Sure.STRONG,
    ),
    (
        "an option, since a night",
        [on(n, RED, "x") if n > 5 else on(n, GREEN) for n in range(12)],
        CauseClass.ONE_OPTION, (option("x"),), (since(6),), Sure.STRONG,
    ),
    (
        "once, with an option",
        [on(0, GREEN), on(1, GREEN), on(2, RED, "x"), on(3, GREEN)],
        CauseClass.FLAKE, (), (option("x"),), Sure.ONE,
    ),
    (
        "an option that does it sometimes",
        [on(n, RED if n % 4 == 1 else GREEN, *(["x"] if n % 2 else [])) for n in range(40)],
        CauseClass.ONE_OPTION, (option("x"),), (), Sure.STRONG,
    ),
    (
        "now and then",
        [on(n, RED if n % 3 == 1 else GREEN) for n in range(12)],
        CauseClass.FLAKE, (), (), Sure.STRONG,
    ),
    (
        "runs that began at the same time have no order",
        [on(0, GREEN), on(0, GREEN), on(0, RED), on(0, RED)],
        CauseClass.FLAKE, (), (), Sure.STRONG,
    ),
    ("red everywhere", hosts(12, RED), CauseClass.EVERYWHERE, (), SAME, Sure.STRONG),
    (
        "red everywhere, and everything differs",
        [(at(f"n{n}", f"d{n}", f"r{n}", f"t{n}"), RED) for n in range(8)],
        CauseClass.EVERYWHERE, (), (), Sure.STRONG,
    ),
    ("red on two machines, the only ones", hosts(2, RED), CauseClass.EVERYWHERE, (), SAME, Sure.WEAK),
    ("one run only", hosts(1, RED), CauseClass.EVERYWHERE, (), (uuid("GPU-n1"), host("n1"), *SAME), Sure.ONE),
    (
        "one machine only, many runs",
        [(at("n1"), Tally(red=9))],
        CauseClass.EVERYWHERE, (), (uuid("GPU-n1"), host("n1"), *SAME), Sure.STRONG,
    ),
    (
        "one driver on many hosts",
        [*hosts(4, RED, driver="580"), *hosts(16, GREEN, 10)],
        CauseClass.ONE_DRIVER, (driver("580"),), (), Sure.STRONG,
    ),
    (
        "one driver on two of three hosts",
        [*hosts(2, RED, driver="580"), *hosts(1, GREEN, 10)],
        CauseClass.ONE_DRIVER, (driver("580"),), (), Sure.WEAK,
    ),
    (
        "one torch on many hosts",
        [*hosts(5, RED, torch="2.12"), *hosts(15, GREEN, 10)],
        CauseClass.ONE_TORCH, (torch("2.12"),), (), Sure.STRONG,
    ),
    (
        "one torch, tried on the same hosts",
        [(at(f"n{n}", torch=version), said) for n in range(8) for version, said in (("2.12", RED), ("2.13", GREEN))],
        CauseClass.ONE_TORCH, (torch("2.12"),), (), Sure.STRONG,
    ),
    (
        "one kind of device",
        [*hosts(5, RED, device="A10"), *hosts(15, GREEN, 10)],
        CauseClass.ONE_DEVICE, (device("A10"),), (), Sure.STRONG,
    ),
    (
        "a kind of device that only has one driver",
        [*hosts(5, RED, device="A10", driver="550"), *hosts(15, GREEN, 10)],
        CauseClass.ONE_DEVICE, (device("A10"),), (driver("550"),), Sure.STRONG,
    ),
    (
        "driver and torch always came together",
        [*hosts(5, RED, driver="580", torch="2.12"), *hosts(15, GREEN, 10)],
        CauseClass.ONE_DRIVER, (driver("580"),), (torch("2.12"),), Sure.STRONG,
    ),
    (
        "one host with two devices",
        [(at("n1", uuid=each), Tally(red=2)) for each in ("GPU-a", "GPU-b")] + [*hosts(20, GREEN, 10)],
        CauseClass.ONE_HOST, (host("n1"),), (), Sure.STRONG,
    ),
    (
        "one host, the only one with its driver",
        [(at("n1", driver="580", uuid=each), Tally(red=2)) for each in ("GPU-a", "GPU-b")] + [*hosts(20, GREEN, 10)],
        CauseClass.ONE_HOST, (host("n1"),), (driver("580"),), Sure.STRONG,
    ),
    (
        "one device of a host with several",
        [(at("n1", uuid="GPU-a"), Tally(red=3)), (at("n1", uuid="GPU-b"), Tally(green=3)), *hosts(20, GREEN, 10)],
        CauseClass.ONE_UUID, (uuid("GPU-a"),), (), Sure.STRONG,
    ),
    (
        "a device that was moved to another host",
        [(at(name, uuid="GPU-a"), Tally(red=2)) for name in ("n1", "n2")]
        + [(at(name, uuid="GPU-b"), Tally(green=2)) for name in ("n1", "n2")] + [*hosts(12, GREEN, 10)],
        CauseClass.ONE_UUID, (uuid("GPU-a"),), (), Sure.STRONG,
    ),
    (
        "a host with one device: which of them is not known",
        [(at("n1"), Tally(red=3)), *hosts(20, GREEN, 10)],
        CauseClass.ONE_UUID, (uuid("GPU-n1"),), (host("n1"),), Sure.STRONG,
    ),
    (
        "a machine without UUIDs, such as the CPU",
        [(at("n1", uuid=""), Tally(red=3)), *((at(f"n{n}", uuid=""), GREEN) for n in range(10, 30))],
        CauseClass.ONE_HOST, (host("n1"),), (), Sure.STRONG,
    ),
    (
        "red once, on one of many machines",
        [*hosts(1, RED), *hosts(20, GREEN, 10)],
        CauseClass.ONE_UUID, (uuid("GPU-n1"),), (host("n1"),), Sure.ONE,
    ),
    (
        "all instances of one GPU in MIG mode",
        [(replace(MIG, uuids=(f"MIG-{n}", "GPU-a")), Tally(red=2)) for n in range(3)]
        + [(replace(MIG, uuids=(f"MIG-{n}", "GPU-b")), Tally(green=2)) for n in range(5, 12)],
        CauseClass.ONE_UUID, (uuid("GPU-a"),), (), Sure.STRONG,
    ),
    (
        "one instance of a GPU in MIG mode",
        [(MIG, Tally(red=4))] + [(replace(MIG, uuids=(f"MIG-{n}", "GPU-a")), Tally(green=4)) for n in range(5, 10)],
        CauseClass.ONE_UUID, (uuid("MIG-1"),), (), Sure.STRONG,
    ),
    (
        "the only instance of a GPU in MIG mode",
        [(MIG, Tally(red=4))] + [(replace(MIG, uuids=(f"MIG-{n}", "GPU-b")), Tally(green=4)) for n in range(5, 10)],
        CauseClass.ONE_UUID, (uuid("MIG-1"),), (uuid("GPU-a"),), Sure.STRONG,
    ),
    (
        "a case on two devices, one of which is bad",
        [(replace(at("n1"), uuids=("GPU-a", each)), Tally(red=2)) for each in ("GPU-b", "GPU-c")]
        + [(replace(at("n1"), uuids=("GPU-b", "GPU-c")), Tally(green=8))],
        CauseClass.ONE_UUID, (uuid("GPU-a"),), (), Sure.STRONG,
    ),
    (
        "driver together with torch",
        [
            *hosts(4, RED, 1, driver="580", torch="2.12"), *hosts(4, GREEN, 10, driver="580"),
            *hosts(4, GREEN, 20, torch="2.12"), *hosts(4, GREEN, 30),
        ],
        CauseClass.MIXED, (driver("580"), torch("2.12")), (), Sure.STRONG,
    ),
    (
        "two drivers of several",
        [*hosts(3, RED, 1, driver="580"), *hosts(3, RED, 10, driver="590"), *hosts(9, GREEN, 20)],
        CauseClass.MIXED, (driver("580"), driver("590")), (), Sure.WEAK,
    ),
    (
        "two devices on two hosts, red again and again",
        [(at(name, uuid=f"GPU-{name}-bad"), Tally(red=3)) for name in ("n1", "n2")]
        + [(at(name, uuid=f"GPU-{name}-good"), Tally(green=3)) for name in ("n1", "n2", "n3")],
        CauseClass.MIXED, (uuid("GPU-n1-bad"), uuid("GPU-n2-bad")), (), Sure.WEAK,
    ),
    (
        "red here and there, each machine says always the same",
        [
            (at(f"n{n}", f"d{n % 3}", f"r{n % 5}", f"t{n % 2}"), Tally(red=2) if n in (1, 4, 8, 15, 22) else GREEN)
            for n in range(30)
        ],
        CauseClass.MIXED, (), (), Sure.WEAK,
    ),
    (
        "a flake on one machine",
        [(at("n1"), Tally(red=2, green=3)), *hosts(3, GREEN, 10)],
        CauseClass.FLAKE, (), (), Sure.STRONG,
    ),
    (
        "a flake on many machines",
        [(at(f"n{n}"), Tally(red=n % 3 == 0, green=4)) for n in range(12)],
        CauseClass.FLAKE, (), (), Sure.STRONG,
    ),
    (
        "a flake on many machines, each time on another device",
        [
            (at(f"n{n}", uuid=f"GPU-{n}-{m}"), RED if m == n % 4 and n % 3 == 0 else GREEN)
            for n in range(12)
            for m in range(4)
        ],
        CauseClass.FLAKE, (), (), Sure.WEAK,
    ),
    (
        "red once on each of two devices, and their hosts passed it on others",
        [(at(name, uuid=f"GPU-{name}-a"), RED) for name in ("n1", "n2")]
        + [(at(name, uuid=f"GPU-{name}-b"), GREEN) for name in ("n1", "n2")] + [*hosts(6, GREEN, 10)],
        CauseClass.FLAKE, (), (), Sure.WEAK,
    ),
    ("flaky in the harness's own words", [*hosts(1, FLAKY), *hosts(9, GREEN, 10)], CauseClass.FLAKE, (), (), Sure.ONE),
    ("flaky on all machines", hosts(4, FLAKY), CauseClass.FLAKE, (), (), Sure.STRONG),
    (
        "red once on a machine that also passed it",
        [(at("n1"), Tally(red=1, green=4)), *hosts(9, GREEN, 10)],
        CauseClass.FLAKE, (), (), Sure.ONE,
    ),
    (
        "red once on a device, and its host passed it on another one",
        [(at("n1", uuid="GPU-a"), RED), (at("n1", uuid="GPU-b"), Tally(green=4)), *hosts(9, GREEN, 10)],
        CauseClass.FLAKE, (), (uuid("GPU-a"),), Sure.ONE,
    ),
    (
        "often red with one driver, never without",
        [*[(at(f"n{n}", driver="580"), Tally(red=2, green=2)) for n in range(6)], *hosts(24, Tally(green=4), 10)],
        CauseClass.ONE_DRIVER, (driver("580"),), (), Sure.STRONG,
    ),
    (
        "often red on one host, never elsewhere",
        [(at("n1", uuid=f"GPU-{m}"), Tally(red=2, green=2)) for m in range(3)] + [*hosts(30, Tally(green=4), 10)],
        CauseClass.ONE_HOST, (host("n1"),), (), Sure.STRONG,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("observations", "kind", "causes", "also", "sure"),
    [each[1:] for each in SITUATIONS],
    ids=[s[0] for s in SITUATIONS],
)
def test_situations(
    observations: Observations, kind: CauseClass, causes: Explanation, also: Explanation, sure: Sure
) -> None:
    found = classify(tally(observations))
    assert found is not None
    assert (found.kind, found.causes, found.also, found.sure) == (kind, causes, tuple((each,) for each in also), sure)


def test_what_is_nowhere_red_has_no_class() -> None:
    assert classify({}) is None
    assert classify(tally(hosts(3, GREEN))) is None
    assert classify({at("n1"): Tally()}) is None


def test_an_intermittent_failure_is_said_to_be_one() -> None:
    often = [
        *[(at(f"n{n}", driver="580"), Tally(red=2, green=2)) for n in range(6)],
        *hosts(24, Tally(green=4), 10),
    ]
    found = classify(tally(often))
    assert found is not None
    assert not found.always
    assert wording.classing_text(found) == ("Red in 12 of 24 runs with driver 580, and in none of the 96 other runs.")


def test_unknown_values_explain_nothing() -> None:
    unknown = ResultPlace("n1")
    found = classify({unknown: Tally(red=2), **tally(hosts(9, GREEN, 10))})
    assert found is not None
    assert (found.kind, found.also) == (CauseClass.ONE_HOST, ())


def test_many_cases_make_each_less_sure() -> None:
    seen = tally([*hosts(3, RED, driver="580"), *hosts(20, GREEN, 10)])
    few, many = classify(seen, 1), classify(seen, 100)
    assert few is not None
    assert many is not None
    assert (few.sure, many.sure, few.chance) == (Sure.STRONG, Sure.WEAK, many.chance)


def test_repeated_runs_of_a_machine_say_nothing_more_about_its_driver() -> None:
    once = classify(tally([*hosts(2, RED, driver="580"), *hosts(5, GREEN, 10)]))
    often = classify(tally([*hosts(2, Tally(red=50), driver="580"), *hosts(5, Tally(green=50), 10)]))
    assert once is not None
    assert often is not None
    assert once.chance == often.chance == hypergeometric(7, 2, 2)


@pytest.mark.parametrize(
    ("everything", "inside", "bad", "chance"),
    [
        (10, 3, 1, 1.0),
        (10, 2, 2, 1 / 9),
        (10, 3, 3, 1 / 36),
        (10, 5, 3, 6 / 36),
        (7, 7, 4, 1.0),
        (5, 2, 3, 1.0),
        (5, 2, 0, 1.0),
    ],
)
def test_the_chance_that_bad_results_share_a_cause(everything: int, inside: int, bad: int, chance: float) -> None:
    assert hypergeometric(everything, inside, bad) == pytest.approx(chance)


# ---- cases compared with each other ----


def once_on(name: str, host_name: str = "n1") -> Classing:
    """Return a case that was bad once, on this device, and good on others of the host and elsewhere."""
    others = [(at(host_name, uuid=f"GPU-{host_name}-{n}"), GREEN) for n in range(3)]
    found = classify(tally([(at(host_name, uuid=name), RED), *others, *hosts(60, GREEN, 10)]))
    assert found is not None
    assert found.kind is CauseClass.FLAKE
    return found


def test_cases_that_were_bad_once_each_on_one_device_are_no_flakes() -> None:
    found = together({n: once_on("GPU-a") for n in range(5)} | {9: once_on("GPU-z", "n2")})
    assert [found[n].kind for n in range(5)] == 5 * [CauseClass.ONE_UUID]
    assert {(each.causes, each.sure, each.maybe_flake) for n, each in found.items() if n < 5} == {
        ((uuid("GPU-a"),), Sure.STRONG, False)
    }
    assert found[9].kind is CauseClass.FLAKE


def test_flakes_that_happen_to_meet_on_a_device_stay_flakes() -> None:
    scattered = {n: once_on(f"GPU-{n}") for n in range(60)}
    found = together(scattered | {n: once_on("GPU-0") for n in (60, 61)})
    assert {each.kind for each in found.values()} == {CauseClass.FLAKE}


def test_the_joint_chance_grows_with_the_number_of_red_cases() -> None:
    same = [once_on("GPU-a")] * 3
    chances = [joint_chance(same, tries) for tries in (3, 10, 100, 10_000)]
    assert chances == sorted(chances)
    assert joint_chance(same[:1], 1) == 1.0


# ---- properties ----

VALUES = {name: st.sampled_from([f"{name}{n}" for n in range(3)]) for name in ("host", "device", "driver", "torch")}
PLACES = st.builds(
    lambda host, device, driver, torch, chip: ResultPlace(host, (device,), driver, torch, (f"{host}-{chip}",)),
    **VALUES,
    chip=st.integers(0, 2),
)
SEEN = st.dictionaries(
    PLACES,
    st.builds(Tally, red=st.integers(0, 3), flaky=st.integers(0, 1), green=st.integers(0, 3)),
    max_size=12,
)
RANK = [Sure.ONE, Sure.WEAK, Sure.STRONG]


@given(SEEN, st.integers(1, 1000))
def test_any_observations_have_exactly_one_class(seen: dict[ResultPlace, Tally], tries: int) -> None:
    found = classify(seen, tries)
    bad = sum(each.bad for each in seen.values())
    assert (found is None) == (bad == 0)
    if found is None:
        return
    assert found.total.bad == bad
    assert 0 <= found.chance <= 1
    assert (found.sure is Sure.ONE) == (bad == 1)
    if found.causes and found.kind is not CauseClass.MIXED:
        (cause,) = found.causes
        assert not [place for place, each in seen.items() if each.bad and not cause.holds(place)]
    texts = [
        wording.classing_text(found),
        wording.advice_text(found),
    ]
    assert all(text.endswith(".") for text in texts)


@given(SEEN, st.integers(1, 1000))
def test_the_order_of_observations_does_not_matter(seen: dict[ResultPlace, Tally], tries: int) -> None:
    assert classify(dict(reversed(seen.items())), tries) == classify(seen, tries)


@given(SEEN, PLACES, st.integers(1, 1000))
def test_an_agreeing_observation_makes_no_class_less_sure(
    seen: dict[ResultPlace, Tally], place: ResultPlace, tries: int
) -> None:
    before = classify(seen, tries)
    if before is None or not before.always or (before.kind is CauseClass.MIXED and not before.together):
        return
    red = before.kind is CauseClass.EVERYWHERE or all(cause.holds(place) for cause in before.causes)
    after = classify({**seen, place: seen.get(place, Tally()) + (RED if red else GREEN)}, tries)
    assert after is not None
    assert RANK.index(after.sure) >= RANK.index(before.sure)
    assert after.kind is before.kind
    assert after.causes == before.causes
    assert after.chance <= before.chance


@given(SEEN, st.integers(1, 50))
def test_fewer_cases_make_no_class_less_sure(seen: dict[ResultPlace, Tally], tries: int) -> None:
    more, fewer = classify(seen, tries + 50), classify(seen, tries)
    if more is not None and fewer is not None and more.kind is fewer.kind:
        assert RANK.index(fewer.sure) >= RANK.index(more.sure)
