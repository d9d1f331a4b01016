"""The page of a matrix in a browser: filters, folding, keyboard, phones, and hostile texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from harness.core.outcome import Outcome
from tests.fleet.matrix import runs
from tests.fleet.matrix.runs import Machine
from tests.fleet.matrix.test_page import hostile, render
from tests.reporting.page import browser as browsers
from tests.reporting.page.browser import opened
from tests.reporting.page.test_document import HOSTILE

pytestmark = [pytest.mark.acceptance, browsers.needs_chromium]

DRIVER = "suites/streams/test_s.py::test_order"
HOST = "suites/streams/test_s.py::test_disk"
FLAKE = "suites/graphs/test_g.py::test_replay"
GATED = "suites/graphs/test_g.py::test_large"
FINE = tuple(f"suites/memory/test_m.py::test_{number:03}" for number in range(250))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.started() as found:
        yield found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of eight machines with two runs each: a bad driver, a bad host, a flake, a gated case."""
    folder = tmp_path_factory.mktemp("matrix")
    for number in range(8):
        driver = "580.1" if number in (2, 3, 6) else "570.1"
        machine = Machine(f"n{number}", "H100" if number < 4 else "A10", driver)
        for run in range(2):
            outcomes = dict.fromkeys((DRIVER, HOST, FLAKE, GATED, *FINE), Outcome.PASSED)
            outcomes[DRIVER] = Outcome.FAILED if driver == "580.1" else Outcome.PASSED
            outcomes[HOST] = Outcome.CRASHED if number == 1 else Outcome.PASSED
            outcomes[FLAKE] = Outcome.TIMEOUT if number % 3 == run else Outcome.PASSED
            outcomes[GATED] = Outcome.GATED if machine.device == "A10" else Outcome.PASSED
            runs.write(
                folder / "runs" / f"{number}-{run}",
                runs.lines(machine, outcomes, t=1_760_000_000.0 + run, run_id=f"{number}-{run}"),
                machine,
            )
    found = folder / "matrix.html"
    found.write_text(render(folder / "runs"))
    return found


def rows(page: Page) -> list[str]:
    return [text.split("\n")[0] for text in page.locator("#grid .case .row").all_inner_texts()]


def test_only_cases_that_are_red_or_differ_are_shown(browser: Browser, path: Path) -> None:
    with opened(browser, path) as (page, seen):
        expect(page.locator("#hits")).to_have_text("4 of 254 cases")
        assert rows(page) == ["test_replay", "test_large", "test_order", "test_disk"]
        page.get_by_label("Cases", exact=True).select_option("red")
        assert rows(page) == ["test_replay", "test_order", "test_disk"]
        page.get_by_label("Cases", exact=True).select_option("all")
        expect(page.locator("#hits")).to_have_text("254 cases")
        assert rows(page) == [], "many rows are folded"
        assert page.evaluate("location.hash") == "#show=all"
        page.get_by_role("button", name="memory").click()
        assert len(rows(page)) == 100
        page.get_by_role("button", name="Show 100 more of 250").click()
        page.get_by_role("button", name="Show 50 more of 250").click()
        assert rows(page)[-1] == "test_249"
        expect(page.locator("#grid .case .row").nth(200)).to_be_focused()
        assert (seen.requests, seen.errors) == ([], [])


def test_filters_are_kept_in_the_address(browser: Browser, path: Path) -> None:
    with opened(browser, path) as (page, seen):
        page.get_by_role("checkbox", name="one driver").check()
        assert rows(page) == ["test_order"]
        page.get_by_role("checkbox", name="flake").check()
        page.get_by_label("Red on machine").select_option(label="n2: H100, 580.1, torch 2.13.0")
        assert rows(page) == ["test_order"]
        expect(page.locator("thead .picked")).to_have_text("n2")
        address = page.evaluate("location.hash")
        assert address == "#class=one_driver%2Cflake&machine=6"
        page.get_by_role("button", name="Clear filters").click()
        page.get_by_label("Text in name").fill("crashed happened")
        expect(page.locator("#hits")).to_have_text("1 of 254 cases")
        assert rows(page) == ["test_disk"]
        page.get_by_label("Text in name").fill("nothing like it")
        expect(page.locator("#grid")).to_have_text("No case matches. Clear a filter, or show all cases.")
        assert (seen.requests, seen.errors) == ([], [])
    with opened(browser, path, address) as (page, seen):
        assert rows(page) == ["test_order"]
        assert page.get_by_role("checkbox", name="flake").is_checked()
        assert seen.errors == []


def test_links_lead_to_the_rows(browser: Browser, path: Path) -> None:
    with opened(browser, path) as (page, seen):
        page.locator("#causes article").filter(has_text="driver 580.1").get_by_role("link").click()
        assert rows(page) == ["test_order"]
        expect(page.locator("#cases")).to_be_focused()
        page.locator("header").get_by_role("link", name="1 flake").click()
        assert rows(page) == ["test_replay"]
        page.locator("#machines").get_by_role("link", name="n1").click()
        assert rows(page) == ["test_replay", "test_disk"]
        page.go_back()
        assert rows(page) == ["test_replay"]
        assert (seen.requests, seen.errors) == ([], [])


def test_a_case_opens_and_says_its_class(browser: Browser, path: Path) -> None:
    with opened(browser, path) as (page, seen):
        row = page.locator("#grid .case .row").filter(has_text="test_order")
        row.click()
        expect(row).to_have_attribute("aria-expanded", "true")
        expect(row).to_be_focused()
        panel = page.locator("#panel")
        expect(panel).to_contain_text("Red in all 6 runs with driver 580.1, and in none of the 10 other runs.")
        expect(panel).to_contain_text("failed happened (6 runs)")
        expect(panel).to_contain_text(f"pytest {DRIVER} --seed=7")
        expect(panel).to_contain_text("failed 2 on n6, n2, n3")
        address = page.evaluate("location.hash")
        row.click()
        expect(panel).to_have_count(0)
        assert seen.errors == []
    with opened(browser, path, address) as (page, seen):
        expect(page.locator("#panel")).to_be_in_viewport()
    with opened(browser, path, f"#case={FINE[240]}") as (page, seen):
        expect(page.locator("#panel")).to_contain_text("passed 2 on all machines")
        assert seen.errors == []


def test_cells_tell_what_happened(browser: Browser, path: Path) -> None:
    with opened(browser, path) as (page, seen):
        cells = page.locator("#grid tr.case").filter(has_text="test_disk").locator("td")
        signs = [text.split("\n")[0].strip() for text in cells.locator("span[aria-hidden]").all_inner_texts()]
        assert signs == ["·", "·", "·", "·", "·", "✕", "·", "·"]
        expect(cells.nth(5).locator(".sr")).to_have_text("crashed 2")
        gated = page.locator("#grid tr.case").filter(has_text="test_large").locator("td").first
        expect(gated.locator(".sr")).to_have_text("gated: memory: wanted >=40GiB")
        assert page.locator("thead tr").nth(0).locator("th").all_inner_texts() == ["Device", "A10", "H100"]
        assert seen.errors == []


def test_keys_are_enough(browser: Browser, path: Path) -> None:
    with opened(browser, path) as (page, seen):
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("/")
        expect(page.locator("#q")).to_be_focused()
        page.keyboard.type("test_order")
        expect(page.locator("#hits")).to_have_text("1 of 254 cases")
        suite = page.locator("#grid .suite .row")
        suite.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.locator("#panel")).to_be_visible()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        expect(suite).to_have_attribute("aria-expanded", "false")
        expect(page.locator("#grid .case .row")).to_have_count(0)
        page.keyboard.press("/")
        page.keyboard.press("Escape")
        expect(page.locator("#hits")).to_have_text("4 of 254 cases")
        assert seen.errors == []


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_the_window(browser: Browser, path: Path, dark: bool) -> None:
    with opened(browser, path, width=360, dark=dark) as (page, seen):
        page.get_by_role("button", name="Fold all suites").click()
        page.get_by_role("button", name="Open all suites").click()
        page.locator("#grid .case .row").first.click()
        for width in (360, 768, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert seen.errors == []


def test_headers_stay_in_sight(browser: Browser, path: Path) -> None:
    with opened(browser, path, "#show=all&open=0,1,2", width=500) as (page, seen):
        grid = page.locator("#grid")
        grid.evaluate("(node) => node.scrollTo(120, 2000)")
        box, head = grid.bounding_box(), page.locator("thead th").first.bounding_box()
        name = page.locator("#grid tbody th").nth(60).bounding_box()
        assert box is not None
        assert head is not None
        assert name is not None
        assert abs(head["y"] - box["y"]) < 3
        assert abs(name["x"] - box["x"]) < 3
        assert seen.errors == []


def test_the_matrix_does_not_cover_the_navigation(browser: Browser, path: Path) -> None:
    with opened(browser, path, "#show=all&open=0,1,2", width=400, height=700) as (page, _):
        page.evaluate(
            "() => { document.documentElement.style.scrollBehavior = 'auto';"
            " const { top } = document.getElementById('grid').getBoundingClientRect(); scrollTo(0, scrollY + top); }"
        )
        box = page.get_by_role("navigation").bounding_box()
        assert box is not None
        point = [box["x"] + 60, box["y"] + box["height"] / 2]
        assert page.evaluate("([x, y]) => !!document.elementFromPoint(x, y).closest('nav')", point)


def test_without_scripts_the_summary_is_there(browser: Browser, path: Path) -> None:
    with opened(browser, path, script=False) as (page, _):
        expect(page.locator("#causes article")).to_have_count(3)
        expect(page.locator("#filters")).to_be_hidden()
        expect(page.locator("#holes tbody tr")).to_have_count(1)
        expect(page.get_by_text("Show in the matrix").first).to_be_hidden()


@pytest.mark.ways("text", HOSTILE)
def test_hostile_texts_do_nothing(browser: Browser, tmp_path: Path, text: str) -> None:
    found = tmp_path / "matrix.html"
    found.write_text(hostile(tmp_path / "runs", text))
    with opened(browser, found, "#show=all") as (page, seen):
        for row in page.locator("#grid .case .row").all():
            row.click()
        assert (seen.requests, seen.errors) == ([], [])
