"""A unittest file that was not written for the harness: it starts a thread pool when it is imported."""

# ruff: noqa: PT009

from __future__ import annotations

import os
import signal
import sys
import threading
import unittest
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from sibling import note  # type: ignore[import-not-found]

EXPECTED = {
    "TestShared::test_argv": "passed",
    "TestShared::test_crash": "crashed: SIGSEGV in call",
    "TestShared::test_expected": "waived",
    "TestShared::test_hang": "timeout: did not finish within",
    "TestShared::test_pool": "passed",
    "TestShared::test_shared": "passed",
    "TestShared::test_skipped": "skipped: not here",
    "TestShared::test_subtests": "failed: AssertionError: 1 == 1",
}
COUNTS = {"passed": 1}  # a case with subtests passes or fails in addition to them

POOL = ThreadPoolExecutor(2)
SQUARE = POOL.submit(pow, 3, 2).result()
#: torch's own tests do the same on import: they ignore unknown arguments.
OPTIONS, REST = ArgumentParser(add_help=False).parse_known_args()


class TestShared(unittest.TestCase):
    shared: ClassVar[list[int]]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.shared = [SQUARE]
        note("set-up", str(os.getpid()))

    @classmethod
    def tearDownClass(cls) -> None:
        note("torn-down", str(os.getpid()))
        super().tearDownClass()

    def test_argv(self) -> None:
        self.assertIn("-p", sys.argv)
        self.assertEqual(REST, sys.argv[1:])

    def test_crash(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    @unittest.expectedFailure
    def test_expected(self) -> None:
        self.assertEqual(self.shared, [])

    def test_hang(self) -> None:
        threading.Event().wait()

    def test_pool(self) -> None:
        """In a fork of the process that created the pool, the pool's threads are gone and this waits forever."""
        self.assertEqual(POOL.submit(pow, 2, 3).result(), 8)

    def test_shared(self) -> None:
        self.assertEqual(self.shared, [9])

    @unittest.skip("not here")
    def test_skipped(self) -> None:
        self.fail("ran")

    def test_subtests(self) -> None:
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(number, 1)


if __name__ == "__main__":
    unittest.main()
