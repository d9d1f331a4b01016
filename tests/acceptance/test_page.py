"""report.html of real runs: written at the end, equal to the command's output, and complete in a browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from harness.reporting.page import report
from tests.acceptance.conftest import MakeProject
from tests.reporting.page import browser as browsers


@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_the_page_of_a_run_follows_from_its_run_directory(make_project: MakeProject, spread: str) -> None:
    result = make_project("verdicts").run(spread)
    path = result.run_dir / report.FILE_NAME
    written = path.read_bytes()
    assert report.write_html_report(result.run_dir).read_bytes() == written


def test_a_mistake_in_the_page_takes_nothing_from_the_verdict(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/one/test_one.py", "def test_fails(): assert 1 == 2\n")
    project.write(
        "conftest.py",
        "from harness.reporting.page import document\n"
        "def render(*_, **__): raise ValueError('no page')\n"
        "document.render_report = render\n",
    )
    result = project.run("-n0")
    assert (result.status, result.counts) == (1, {"failed": 1}), result.tail()
    assert "report.html was not written, an error of the harness: ValueError('no page') in " in result.terminal
    assert "1 case: 1 failed" in result.terminal
    assert not (result.run_dir / report.FILE_NAME).exists()


@pytest.mark.nightly  # per change: tests/reporting/page/test_browser.py
@browsers.needs_chromium
def test_a_run_of_misbehaving_cases_in_a_browser(make_project: MakeProject) -> None:
    result = make_project("verdicts", "deaths", "noise").run("-n2")
    verdicts = result.verdicts
    ledger = result.ledger
    with (
        browsers.started() as browser,
        browsers.opened(browser, result.run_dir / report.FILE_NAME) as (page, seen),
    ):
        expect(page.get_by_role("heading", level=1)).to_have_text("Red")
        expect(page.locator("#hits")).to_have_text(f"{len(verdicts)} cases")
        for outcome, number in ledger.counts.items():
            page.locator("header").get_by_role("link", name=f"{number} {outcome}", exact=True).click()
            expect(page.locator("#hits")).to_have_text(f"{number} of {len(verdicts)} cases")
        first = page.locator("article").first
        expect(first.locator("code").first).to_contain_text("--isolation=case")
        assert page.locator("#lanes-plot rect.l-bad").count() > 0
        assert (seen.requests, seen.errors) == ([], [])
