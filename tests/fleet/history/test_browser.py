"""The pages of a history in a browser: charts, links, back, filter, phones, dark; no external request, no error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Dialog, Locator, Page, Route, expect

from harness.fleet.answers import Answers
from harness.fleet.pages import export_site
from tests.fleet.history import nights
from tests.reporting.page import browser as browsers

pytestmark = [pytest.mark.acceptance, browsers.needs_chromium]


SCHEMES: Sequence[Literal["light", "dark"]] = ("light", "dark")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the pages of three runs: a case with hostile texts is red in the second one."""
    folder = tmp_path_factory.mktemp("history")
    runs = nights.hostile(folder)
    (runs[1] / "report.html").write_text("<!doctype html><title>the run's own page</title>")
    with nights.history(folder, runs).reading() as database:
        export_site(Answers(database), folder / "site")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.started() as found:
        yield found


@contextmanager
def opened(
    browser: Browser, exported: Path, width: int = 1280, dark: bool = False, script: bool = True
) -> Iterator[Page]:
    """Open the front page. External requests, console errors and dialogs fail the test."""
    own = f"{exported.resolve().as_uri()}/"
    wrong: list[str] = []

    def judge(route: Route) -> None:
        if route.request.url.startswith(own):
            route.continue_()
        else:
            wrong.append(route.request.url)
            route.abort()

    def refuse(dialog: Dialog) -> None:
        wrong.append(dialog.message)
        dialog.dismiss()

    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if dark else "light",
        base_url=f"{own}site/",
        java_script_enabled=script,
    )
    try:
        context.route("**/*", judge)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", refuse)
        page.goto(f"{own}site/index.html")
        yield page
        assert wrong == []
    finally:
        context.close()


def painted(page: Page, name: str) -> bool:
    """Return whether the chart with this accessible name has a painted pixel."""
    script = """host => {
        const canvas = host.querySelector("canvas");
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        return data.some((value) => value > 0);
    }"""
    found: bool = page.get_by_role("img", name=name).first.evaluate(script)
    return found


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition. `Page.wait_for_function` does not work: the pages forbid evaluating texts."""
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_charts_are_drawn_and_say_the_values_of_a_night(browser: Browser, exported: Path) -> None:
    with opened(browser, exported) as page:
        assert painted(page, "Red cases of the last 2 nights, all machines together: Red cases by night")
        page.locator(".u-over").first.hover(position={"x": 850, "y": 30})
        expect(page.get_by_text("2025-10-10: red cases 1, runs 2, red runs 1")).to_be_visible()
        page.get_by_role("link", name="Devices").click()
        page.locator("tbody a").first.click()
        assert painted(page, "Red and flaky results by night")
        page.get_by_role("link", name="Cases").click()
        page.locator("tbody a").first.click()
        assert painted(page, "Results, duration and memory: regressed, 2 runs: Result by night")
        assert painted(page, "Seconds by night")


def test_charts_follow_the_colours_and_the_width(browser: Browser, exported: Path) -> None:
    with opened(browser, exported) as page:
        light = page.locator("canvas").first.evaluate("canvas => canvas.toDataURL()")
        page.emulate_media(color_scheme="dark")
        eventually(lambda: page.locator("canvas").first.evaluate("canvas => canvas.toDataURL()") != light)
        page.set_viewport_size({"width": 400, "height": 900})
        eventually(lambda: page.locator("canvas").first.evaluate("canvas => canvas.clientWidth") < 400)


def test_without_a_script_the_values_are_a_table(browser: Browser, exported: Path) -> None:
    with opened(browser, exported, script=False) as page:
        expect(page.locator("canvas")).to_have_count(0)
        page.get_by_text("2 rows as a table").click()
        expect(page.get_by_role("cell", name="2025-10-10").first).to_be_visible()
        page.get_by_role("link", name="Runs").click()
        expect(page.locator("tbody tr")).to_have_count(3)
        expect(page.get_by_role("searchbox")).to_have_count(0)


def test_from_the_front_page_to_a_case_and_back(browser: Browser, exported: Path) -> None:
    with opened(browser, exported) as page:
        expect(page.locator("h1")).to_have_text("2025-10-10")
        page.locator("#groups a").first.click()
        expect(page.get_by_role("heading", name="Where it began")).to_be_visible()
        page.get_by_role("link", name="<script>").first.click()
        expect(page.locator("h1")).to_contain_text("<script>alert(1)</script>")
        page.go_back()
        expect(page.get_by_role("heading", name="Where it began")).to_be_visible()
        page.go_back()
        expect(page.locator("h1")).to_have_text("2025-10-10")


def test_the_keyboard_reaches_every_link_of_the_front_page(browser: Browser, exported: Path) -> None:
    with opened(browser, exported) as page:
        wanted = page.locator("a[href], button, input, [tabindex='0']").count()
        seen = set()
        for _ in range(wanted + 2):
            page.keyboard.press("Tab")
            seen.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
        assert len(seen) >= wanted


def test_pages_fit_a_phone(browser: Browser, exported: Path) -> None:
    """One browser page is used for all of them, since loading a page takes longer than checking it."""
    widths: dict[tuple[str, str], int] = {}
    with opened(browser, exported, width=360) as page:
        for name in ("Last night", "Groups", "Cases", "Devices", "Runs"):
            page.get_by_role("navigation").get_by_role("link", name=name).click()
            expect(page.locator("h1")).to_be_visible()
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme)
                widths[name, scheme] = page.evaluate("document.documentElement.scrollWidth")
            kind = name.lower()
            if page.locator(f"tbody a[href^='{kind}/']").count():
                page.locator(f"tbody a[href^='{kind}/']").first.click()
                expect(page.locator("h1")).to_be_visible()
                widths[f"one of {kind}", ""] = page.evaluate("document.documentElement.scrollWidth")
    assert {name for name, _ in widths} >= {f"one of {kind}" for kind in ("groups", "cases", "devices", "runs")}
    assert {where: width for where, width in widths.items() if width > 360} == {}


def test_the_keyboard_reaches_the_contents(browser: Browser, exported: Path) -> None:
    with opened(browser, exported) as page:
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the contents")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()


def shown(page: Page) -> Locator:
    return page.locator("tbody tr:visible")


def test_a_filter_has_an_address_of_its_own_and_goes_with_back(browser: Browser, exported: Path) -> None:
    with opened(browser, exported) as page:
        page.get_by_role("link", name="Runs").click()
        expect(shown(page)).to_have_count(3)
        page.get_by_role("searchbox", name="Filter").fill("NIGHT1 n2")
        expect(shown(page)).to_have_count(1)
        expect(page.get_by_role("status")).to_contain_text("2 rows left out")
        assert page.url.endswith("/runs.html#filter=NIGHT1%20n2")
        shown(page).get_by_role("link").first.click()
        expect(page.get_by_role("heading", name="New since")).to_be_visible()
        page.go_back()
        expect(shown(page)).to_have_count(1)
        expect(page.get_by_role("searchbox", name="Filter")).to_have_value("NIGHT1 n2")


def test_keys_lead_to_the_filter_and_empty_it(browser: Browser, exported: Path) -> None:
    with opened(browser, exported) as page:
        page.get_by_role("link", name="Runs").click()
        page.wait_for_url("**/runs.html")  # a click does not wait for the next page
        page.keyboard.press("/")
        box = page.get_by_role("searchbox", name="Filter")
        expect(box).to_be_focused()
        page.keyboard.type("n2")
        expect(shown(page)).to_have_count(1)
        page.keyboard.press("Escape")
        expect(box).to_have_value("")
        expect(shown(page)).to_have_count(3)


def test_a_run_leads_to_its_own_report(browser: Browser, exported: Path) -> None:
    with opened(browser, exported) as page:
        page.get_by_role("link", name="Runs").click()
        page.get_by_role("link", name="night1-n1").click()
        expect(page.get_by_role("heading", name="Newly red")).to_be_visible()
        page.get_by_role("link", name="The report of the run").click()
        expect(page).to_have_title("the run's own page")
