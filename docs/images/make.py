"""Makes the picture of the README from a real run of small cases: ``python docs/images/make.py``.

``report.png`` is the top of ``report.html``. It needs the package with its extra ``test``, and Chromium.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent

CASES = """
import ctypes
import os
import threading

import pytest
import torch

KEPT = []


def test_sum_of_a_product(device):
    a = torch.ones(64, 64, device=device)
    assert (a @ a).sum() == 64**3


def test_reads_address_zero():
    ctypes.string_at(0)


@pytest.mark.timeout(1)
def test_waits_for_ever():
    threading.Event().wait()


def test_keeps_a_tensor():
    KEPT.append(torch.ones(1 << 20))


def test_changes_the_default_dtype():
    torch.set_default_dtype(torch.float64)


@pytest.mark.requires(device="cuda", memory=">=12GiB")
def test_needs_a_gpu(device):
    torch.empty(12 << 30, dtype=torch.uint8, device=device)
"""


def run(folder: Path) -> None:
    """Run the cases. The run directory is ``folder/results/demo``."""
    suite = folder / "suites" / "demo"
    suite.mkdir(parents=True)
    folder.joinpath("pyproject.toml").write_text('[tool.pytest.ini_options]\nharness_suites = ["suites"]\n')
    suite.joinpath("test_demo.py").write_text(CASES)
    words = ["-m", "pytest", "suites", "-n0", "--seed=1", "--progress=off", "--results-dir=results/demo"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode != 1:
        raise SystemExit(f"the run ended with {done.returncode}, and should be red (1):\n{done.stdout}")


def page(report: Path, path: Path) -> None:
    """The top of the report as a picture."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("no Chromium is installed: apt-get install chromium")
    with sync_playwright() as playwright:
        window = playwright.chromium.launch(
            executable_path=browser, args=["--no-sandbox"] if os.geteuid() == 0 else []
        ).new_page(viewport={"width": 1180, "height": 728})
        window.goto(report.as_uri())
        window.screenshot(path=path)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        folder = Path(name) / "project"
        folder.mkdir()
        run(folder)
        page(folder / "results" / "demo" / "report.html", HERE / "report.png")
    picture = HERE / "report.png"
    print(f"wrote {picture} ({picture.stat().st_size / 1e3:.0f} kB)")


if __name__ == "__main__":
    main()
