"""Kernels are compiled once per user and appear atomically, and a compiler's error is reported."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.sim.simcuda.compiler import kernels

pytestmark = pytest.mark.acceptance  # starts compilers

KERNEL = 'extern "C" int64_t kernel(int64_t x) { return inductor_bit(x); }'
DEFINED = "static int64_t inductor_bit(int64_t x) { return c10::Half(float(x)) > 2 ? 1 : 0; }\n" + KERNEL


@pytest.fixture(autouse=True)
def fresh_store() -> Iterator[None]:
    kernels._store.cache_clear()
    yield
    kernels._store.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_kernel_is_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process of a user compiles neither the kernel nor the header."""
    library = kernels.shared_library(DEFINED)
    assert library.is_relative_to(cache)
    assert [ctypes.CDLL(str(library)).kernel(x) for x in (2, 3)] == [0, 1]
    assert not list(cache.rglob("writing-*"))

    kernels._store.cache_clear()
    monkeypatch.setattr(kernels, "_call", lambda command: pytest.fail(f"called {command}"))
    assert kernels.shared_library(DEFINED) == library


def test_an_error_of_the_compiler_is_shown_and_nothing_is_kept(cache: Path) -> None:
    with pytest.raises(kernels.KernelError, match=r"(?s)ended with status 1:.*inductor_bit"):
        kernels.shared_library(KERNEL)
    assert not list(cache.rglob("*.so"))


def test_without_a_cache_kernels_are_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(kernels, "_PREFIX", "#include <cstdint>\n")
    library = kernels.shared_library('extern "C" int64_t kernel(int64_t x) { return x + 1; }')
    assert library.is_relative_to(tmp_path)
    assert ctypes.CDLL(str(library)).kernel(1) == 2
