"""A headless Chromium that records a page's requests and errors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Page, Route, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")


class Seen:
    """A page's requests other than for the file itself, and its console messages."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []


@contextmanager
def started() -> Iterator[Browser]:
    """Start the system's browser."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser,
    path: Path,
    address: str = "",
    *,
    width: int = 1280,
    height: int = 900,
    script: bool = True,
    dark: bool = False,
) -> Iterator[tuple[Page, Seen]]:
    """Open the file in a new window, and wait until it is drawn. All other requests are refused and recorded."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        java_script_enabled=script,
        permissions=["clipboard-read", "clipboard-write"],
    )
    seen = Seen()
    own = path.resolve().as_uri()

    def judge(route: Route) -> None:
        if route.request.url.partition("#")[0] == own:
            route.continue_()
        else:
            seen.requests.append(route.request.url)
            route.abort()

    def refuse(dialog: Dialog) -> None:
        seen.errors.append(dialog.message)
        dialog.dismiss()

    try:
        context.route("**/*", judge)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: seen.errors.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on("dialog", refuse)
        page.goto(own + address)
        if script:
            page.wait_for_selector("html[data-drawn]", state="attached")
        yield page, seen
    finally:
        context.close()
