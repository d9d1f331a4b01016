"""The pages of a history in a browser: links, back, search, phones, dark; no request to elsewhere, no error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("uvicorn")

from playwright.sync_api import Browser, Dialog, Page, Route, expect

from tests.reporting.page import browser as browsers
from tests.tools.history.serving import HOSTILE, Server, served

pytestmark = [pytest.mark.acceptance, browsers.needs_chromium]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("history")) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.started() as found:
        yield found


@contextmanager
def opened(browser: Browser, server: Server, width: int = 1280, dark: bool = False) -> Iterator[Page]:
    """The front page. A request to elsewhere, an error of the console and a dialog fail the test."""
    own = f"http://127.0.0.1:{server.address[1]}"
    wrong: list[str] = []

    def judge(route: Route) -> None:
        if route.request.url.startswith(f"{own}/"):
            route.continue_()
        else:
            wrong.append(route.request.url)
            route.abort()

    def refuse(dialog: Dialog) -> None:
        wrong.append(dialog.message)
        dialog.dismiss()

    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", base_url=own
    )
    try:
        context.route("**/*", judge)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", refuse)
        page.goto("/")
        yield page
        assert wrong == []
    finally:
        context.close()


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


def test_a_filter_has_an_address_of_its_own_and_goes_with_back(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.get_by_role("link", name="Runs").click()
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(3)
        page.get_by_role("searchbox", name="Filter").fill("night1 n2")
        page.keyboard.press("Enter")
        expect(rows).to_have_count(1)
        expect(page.get_by_text("2 rows left out")).to_be_visible()
        assert page.url.endswith("/runs.html?filter=night1+n2")
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


@pytest.mark.parametrize("name", ["Last night", "Groups", "Cases", "Devices", "Runs"])
@pytest.mark.parametrize("dark", [False, True])
def test_a_page_fits_a_phone(browser: Browser, server: Server, name: str, dark: bool) -> None:
    with opened(browser, server, width=360, dark=dark) as page:
        page.get_by_role("navigation").get_by_role("link", name=name).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_keyboard_reaches_the_contents(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the contents")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
