"""The pages of a history in a browser: charts, links, back, search, phones, dark; no external request, no error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("uvicorn")

from playwright.sync_api import Browser, Dialog, Page, Route, expect

from harness.tools.history import site
from harness.tools.history.answers import Answers
from tests.reporting.page import browser as browsers
from tests.tools.history.serving import HOSTILE, Server, served

pytestmark = [pytest.mark.acceptance, browsers.needs_chromium]


SCHEMES: Sequence[Literal["light", "dark"]] = ("light", "dark")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("history")) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.started() as found:
        yield found


@contextmanager
def opened(
    browser: Browser,
    server: Server,
    width: int = 1280,
    dark: bool = False,
    script: bool = True,
    exported: Path | None = None,
) -> Iterator[Page]:
    """Open the front page. External requests, console errors and dialogs fail the test.

    `exported`: the folder of an export, which is opened without the server.
    """
    own = f"http://127.0.0.1:{server.address[1]}/" if exported is None else f"{exported.resolve().as_uri()}/"
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
        base_url=own,
        java_script_enabled=script,
    )
    try:
        context.route("**/*", judge)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", refuse)
        page.goto(f"{own}index.html" if exported else "/")
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


def test_charts_are_drawn_and_say_the_values_of_a_night(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        assert painted(page, "Red cases of the last 2 nights, all machines together: Red cases by night")
        page.locator(".u-over").first.hover(position={"x": 850, "y": 30})
        expect(page.get_by_text("2025-10-10: red cases 1, runs 2, red runs 1")).to_be_visible()
        page.get_by_role("link", name="Devices").click()
        page.locator("tbody a").first.click()
        assert painted(page, "Red and flaky results by night")
        page.goto("/cases.html")
        page.locator("tbody a").first.click()
        assert painted(page, "Results, duration and memory: regressed, 2 runs: Result by night")
        assert painted(page, "Seconds by night")


def test_charts_follow_the_colours_and_the_width(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        light = page.locator("canvas").first.evaluate("canvas => canvas.toDataURL()")
        page.emulate_media(color_scheme="dark")
        eventually(lambda: page.locator("canvas").first.evaluate("canvas => canvas.toDataURL()") != light)
        page.set_viewport_size({"width": 400, "height": 900})
        eventually(lambda: page.locator("canvas").first.evaluate("canvas => canvas.clientWidth") < 400)


def test_an_export_has_its_charts_without_a_server(browser: Browser, server: Server, tmp_path: Path) -> None:
    with server.store.reading() as database:
        site.export_site(Answers(database), tmp_path / "site")
    with opened(browser, server, exported=tmp_path / "site") as page:
        assert painted(page, "Red cases by night")
        page.locator("#groups a").last.click()
        assert painted(page, "Seconds by night")
        page.go_back()
        expect(page.locator("h1")).to_have_text("2025-10-10")


def test_without_a_script_the_values_are_a_table(browser: Browser, server: Server) -> None:
    with opened(browser, server, script=False) as page:
        expect(page.locator("canvas")).to_have_count(0)
        page.get_by_text("2 rows as a table").click()
        expect(page.get_by_role("cell", name="2025-10-10").first).to_be_visible()
        page.get_by_role("link", name="Runs").click()
        page.get_by_role("searchbox", name="Filter").fill("night1 n2")
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("tbody tr")).to_have_count(1)


def test_keys_lead_to_the_search_and_empty_it(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.goto("/runs.html")
        page.keyboard.press("/")
        box = page.get_by_role("searchbox", name="Filter")
        expect(box).to_be_focused()
        page.keyboard.type("n2")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.keyboard.press("Escape")
        expect(box).to_have_value("")
        expect(page.locator("tbody tr")).to_have_count(3)


def test_from_the_front_page_to_a_case_and_back(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        expect(page.locator("h1")).to_have_text("2025-10-10")
        page.locator("#groups a").first.click()
        expect(page.get_by_role("heading", name="Where it began")).to_be_visible()
        page.get_by_role("link", name="<script>").first.click()
        expect(page.locator("h1")).to_contain_text("<script>alert(1)</script>")
        page.go_back()
        expect(page.get_by_role("heading", name="Where it began")).to_be_visible()
        page.go_back()
        expect(page.locator("h1")).to_have_text("2025-10-10")


def test_a_search_has_an_address_of_its_own(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.get_by_role("searchbox").fill("alert")
        page.get_by_role("searchbox").press("Enter")
        expect(page.get_by_role("link", name=HOSTILE[:40])).to_be_visible()
        assert page.url.endswith("/search.html?q=alert")
        expect(page.get_by_role("searchbox")).to_have_value("alert")


def test_a_search_answers_while_the_user_types(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.goto("/search.html")
        page.get_by_role("searchbox").press_sequentially("alert")
        expect(page.get_by_role("link", name=HOSTILE[:40])).to_be_visible()
        expect(page.get_by_role("status")).to_contain_text("2 names")
        page.wait_for_url("**/search.html?q=alert")


def test_a_filter_has_an_address_of_its_own_and_goes_with_back(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.get_by_role("link", name="Runs").click()
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(3)
        page.wait_for_load_state()  # before that, no script listens to the box
        page.get_by_role("searchbox", name="Filter").fill("night1 n2")
        expect(rows).to_have_count(1)
        expect(page.get_by_role("status")).to_contain_text("2 rows left out")
        page.wait_for_url("**/runs.html?filter=night1%20n2")
        rows.get_by_role("link").first.click()
        page.go_back()
        expect(rows).to_have_count(1)
        page.go_back()
        expect(rows).to_have_count(3)


def test_the_keyboard_reaches_every_link_of_the_front_page(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        wanted = page.locator("a[href], button, input, [tabindex='0']").count()
        seen = set()
        for _ in range(wanted + 2):
            page.keyboard.press("Tab")
            seen.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
        assert len(seen) >= wanted


def test_runs_are_compared(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.get_by_role("link", name="Runs").click()
        page.get_by_role("link", name="night1-n1").click()
        expect(page.get_by_role("heading", name="Newly red")).to_be_visible()
        page.get_by_label("Compare with run").fill("night1-n1")
        page.get_by_role("button", name="Compare").click()
        expect(page.get_by_text("No case is newly red.")).to_be_visible()
        page.go_back()
        page.get_by_role("link", name="The report of the run").click()
        expect(page).to_have_title("the run's own page")


def test_pages_fit_a_phone(browser: Browser, server: Server) -> None:
    """One browser page is used for all of them, since loading a page takes longer than checking it."""
    widths: dict[tuple[str, str], int] = {}
    with opened(browser, server, width=360) as page:
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


def test_the_keyboard_reaches_the_contents(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the contents")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
