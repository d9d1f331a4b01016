"""The page in a browser: filters, links, copying, keyboard, phones, and hostile texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from harness.core.outcome import Outcome
from tests.reporting import build
from tests.reporting.page import browser as browsers
from tests.reporting.page import runs
from tests.reporting.page.browser import opened
from tests.reporting.page.test_document import HOSTILE, hostile_run

pytestmark = [pytest.mark.acceptance, browsers.needs_chromium]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.started() as found:
        yield found


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.write(tmp_path_factory.mktemp("red"), *runs.every_outcome())


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cases = [f"suites/{suite}/test_x.py::test_{number:04}" for suite in "abcde" for number in range(2000)]
    ran = [build.finish(case, devices=[f"GPU-{place % 3}"]) for place, case in enumerate(cases)]
    return runs.write(tmp_path_factory.mktemp("many"), build.run(), build.collected(*cases), *ran, build.end())


def names(page: Page) -> list[str]:
    return page.locator("#rows button.open-case").all_inner_texts()


def test_filters_are_kept_in_the_address(browser: Browser, red: Path) -> None:
    with opened(browser, red) as (page, seen):
        expect(page.locator("#hits")).to_have_text("16 cases")
        page.get_by_role("checkbox", name="crashed").check()
        page.get_by_role("checkbox", name="timeout").check()
        assert names(page) == [runs.name_of(Outcome.CRASHED), runs.name_of(Outcome.TIMEOUT)][::-1]
        page.get_by_label("Suite", exact=True).select_option("crashed")
        expect(page.locator("#hits")).to_have_text("1 of 16 cases")
        address = page.evaluate("location.hash")
        assert address == "#outcome=crashed%2Ctimeout&suite=crashed"
        page.get_by_role("button", name="Clear filters").click()
        page.get_by_label("Device", exact=True).select_option("GPU-b")
        assert names(page) == [runs.name_of(Outcome.CRASHED)]
        page.get_by_role("button", name="Clear filters").click()
        page.get_by_label("Text in name").fill("it.py waived")
        expect(page.locator("#hits")).to_have_text("1 of 16 cases")
        assert (seen.requests, seen.errors) == ([], [])
    with opened(browser, red, address) as (page, seen):
        assert names(page) == [runs.name_of(Outcome.CRASHED)]
        assert page.get_by_role("checkbox", name="timeout").is_checked()
        assert seen.errors == []


def test_links_lead_to_cases_and_sections(browser: Browser, red: Path) -> None:
    with opened(browser, red) as (page, seen):
        page.locator("#durations").get_by_role("link").first.click()
        expect(page.locator("#rows [aria-expanded=true]")).to_be_focused()
        page.locator("#gated").get_by_role("link", name="1 case").click()
        assert names(page) == [runs.name_of(Outcome.GATED)]
        page.locator("header").get_by_role("link", name="1 lost").click()
        assert names(page) == [runs.name_of(Outcome.LOST)]
        kept = page.evaluate("location.hash")
        page.get_by_role("navigation").get_by_role("link", name="Environment").click()
        expect(page.locator("#environment")).to_be_focused()
        assert page.evaluate("location.hash") == kept
        page.go_back()
        assert names(page) == [runs.name_of(Outcome.GATED)]
        assert (seen.requests, seen.errors) == ([], [])


def test_the_command_is_copied(browser: Browser, red: Path) -> None:
    command = f"pytest {runs.name_of(Outcome.CRASHED)} --seed=7"
    with opened(browser, red) as (page, seen):
        button = page.locator("article").first.locator("button.copy")
        button.click()
        expect(button).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == command
        expect(button).to_have_text("Copy the command")
        page.locator("#findings button.copy").first.click()
        expect(page.locator("#findings button.copy").first).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == "harness devices --health"
        assert seen.errors == []


def test_keys_are_enough(browser: Browser, red: Path) -> None:
    with opened(browser, red) as (page, seen):
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("/")
        expect(page.locator("#q")).to_be_focused()
        page.keyboard.type("test_flaky")
        expect(page.locator("#hits")).to_have_text("1 of 16 cases")
        row = page.locator("#rows button.open-case")
        row.focus()
        page.keyboard.press("Enter")
        expect(row).to_have_attribute("aria-expanded", "true")
        expect(row).to_be_focused()
        expect(page.locator("#panel")).to_contain_text("Attempt 2, alone")
        page.keyboard.press("Space")
        expect(row).to_have_attribute("aria-expanded", "false")
        page.keyboard.press("/")
        page.keyboard.press("Escape")
        expect(page.locator("#hits")).to_have_text("16 cases")
        assert seen.errors == []


def test_the_table_can_be_sorted_and_paged(browser: Browser, many: Path) -> None:
    with opened(browser, many) as (page, seen):
        expect(page.locator("#hits")).to_have_text("10,000 cases")
        assert len(names(page)) == 50
        expect(page.locator("#where")).to_have_text("Rows 1 to 50 of 10000")
        page.get_by_role("button", name="Next").click()
        expect(page.locator("#where")).to_have_text("Rows 51 to 100 of 10000")
        page.get_by_role("button", name="Case", exact=True).click()
        expect(page.locator("th.c-name")).to_have_attribute("aria-sort", "ascending")
        assert names(page)[0] == "suites/a/test_x.py::test_0000"
        assert seen.errors == []
    with opened(browser, many, "#case=suites%2Fe%2Ftest_x.py%3A%3Atest_1999") as (page, _):
        expect(page.locator("#rows [aria-expanded=true]")).to_have_text("suites/e/test_x.py::test_1999")


def test_the_timeline_tells_and_opens(browser: Browser, red: Path) -> None:
    with opened(browser, red) as (page, seen):
        before = page.locator("#lanes-where").inner_text()
        page.get_by_role("button", name="Zoom in").click()
        assert page.locator("#lanes-where").inner_text() != before
        page.get_by_role("button", name="Whole run").click()
        assert page.locator("#lanes-where").inner_text() == before
        page.locator("#lanes-plot rect.l-bad").last.hover(force=True)
        expect(page.locator("#lanes-told")).to_contain_text("suites/")
        page.locator("#lanes-plot rect.l-bad").last.click(force=True)
        assert "#case=" in page.evaluate("location.hash")
        assert page.locator("#memory canvas").count() == 1
        assert page.locator("#histogram canvas").count() == 1
        assert seen.errors == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_have_contrast(browser: Browser, red: Path, dark: bool) -> None:
    """The contrast is at least 4.5 to 1, as WCAG's level AA requires."""
    script = """() => {
      const light = (colour) => {
        const [r, g, b] = colour.match(/[0-9.]+/g).map((v) => v / 255)
          .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const back = (node) => {
        for (let at = node; at; at = at.parentElement) {
          const colour = getComputedStyle(at).backgroundColor;
          if (!/, 0\\)$/.test(colour)) return colour;
        }
        return "rgb(255, 255, 255)";
      };
      const bad = [];
      for (const node of document.querySelectorAll("body *:not(script):not(option)")) {
        if (![...node.childNodes].some((each) => each.nodeType === 3 && each.data.trim()) || node.disabled) continue;
        if (!node.checkVisibility() || node.closest("svg")) continue;
        const [a, b] = [light(getComputedStyle(node).color), light(back(node))].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(`${node.tagName} ${node.className} ${(a + 0.05) / (b + 0.05)}`);
      }
      return [...new Set(bad)];
    }"""
    with opened(browser, red, dark=dark) as (page, _):
        assert page.evaluate(script) == []


def test_every_control_has_a_name(browser: Browser, red: Path) -> None:
    with opened(browser, red) as (page, _):
        for role in ("button", "link", "checkbox", "combobox", "searchbox", "region", "img"):
            for node in page.get_by_role(role).all():
                name = node.evaluate(
                    "n => n.ariaLabel || n.innerText || [...(n.labels || [])].map(l => l.innerText).join()"
                )
                assert name.strip() or node.get_attribute("aria-labelledby"), node.evaluate("n => n.outerHTML")
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
        assert len(ids) == len({*ids})


@pytest.mark.parametrize("address", ["", "#case=suites%2Fcrashed%2Ftest_it.py%3A%3Atest_crashed"])
def test_a_phone_scrolls_in_one_direction(browser: Browser, red: Path, address: str) -> None:
    with opened(browser, red, address, width=375, height=800) as (page, _):
        assert page.evaluate("document.documentElement.scrollWidth") == 375


def test_without_scripts_the_verdict_can_be_read(browser: Browser, red: Path) -> None:
    with opened(browser, red, script=False) as (page, _):
        expect(page.get_by_role("heading", level=1)).to_have_text("Red")
        expect(page.locator("article").first).to_contain_text("crashed happened")
        expect(page.locator("#environment")).to_contain_text("2.13.0")
        expect(page.locator("#browser")).to_be_hidden()
        assert page.locator("button:visible").count() == 0


@pytest.mark.ways("text", [*HOSTILE, "x" * 1_000_000], ids=lambda text: ascii(text[:20]))
def test_hostile_texts_do_nothing(browser: Browser, tmp_path: Path, text: str) -> None:
    path = runs.write(tmp_path, *hostile_run(text))
    with opened(browser, path) as (page, seen):
        for button in page.locator("#rows button.open-case").all():
            button.click()
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        page.get_by_label("Text in name").fill(text[:100])
        expect(page.locator("#hits")).not_to_have_text("")
        assert page.title() == "Red: conformance run"
        assert page.locator("main script, main img:not([role]), main iframe, main object").count() == 0
        for width in (1280, 375):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") == width
        assert (seen.requests, seen.errors) == ([], [])


def test_a_name_cannot_turn_its_direction(browser: Browser, tmp_path: Path) -> None:
    path = runs.write(tmp_path, *hostile_run("\u202egnp.exe"))
    with opened(browser, path) as (page, _):
        expect(page.locator("article h3").first).to_contain_text("U+202Egnp.exe")
        expect(page.locator("#rows button.open-case").first).to_contain_text("U+202Egnp.exe")
