"""Cases that change the state of Python, its libraries or the process."""

from __future__ import annotations

import builtins
import decimal
import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import time
import types
import unittest.mock
from typing import Any

import numpy as np

EXPECTED = {
    "test_before": "passed",
    "test_variable_added": "contaminated: did not restore the environment variable STATE_NEW (now 'now', was absent)",
    "test_after_variable": "passed",
    "test_variable_removed": "contaminated: did not restore the environment variable PROBE_DIR (now absent, was ",
    "test_signal_handler": "contaminated: did not restore the handler of SIGUSR1 (now <Handlers.SIG_IGN: 1>, was ",
    "test_after_signal": "passed",
    "test_module_replaced": "contaminated: did not restore sys.modules['decimal'] (now the module 'decimal' of None",
    "test_module_removed": "contaminated: did not restore sys.modules['decimal'] (now absent, was the module 'decimal'",
    "test_builtin_replaced": "contaminated: did not restore builtins.ascii (now ",
    "test_clock_patched": "contaminated: did not restore time.time (now a unittest.mock.MagicMock, was time.time)",
    "test_level_of_logging": "contaminated: did not restore the level of the root logger (now 10, was 30)",
    "test_handler_of_logging": "contaminated: did not restore the root log handler logging.NullHandler at ",
    "test_excepthook": "contaminated: did not restore sys.excepthook (now ",
    "test_excepthook_of_threads": "contaminated: did not restore threading.excepthook (now ",
    "test_search_path": "contaminated: did not restore sys.path (added '/nowhere'",
    "test_recursion_limit": "contaminated: did not restore the recursion limit (now 4321, was ",
    "test_umask": "contaminated: did not restore the umask (now '0o77', was ",
    "test_locale": "contaminated: did not restore the locale (now 'C', was ",
    "test_collector_off": "contaminated: did not restore gc.isenabled() (now False, was True)",
    "test_trace_function": "contaminated: did not restore the profile function (now ",
    "test_decimal_precision": "contaminated: did not restore the precision of the decimal context (now 5, was 28)",
    "test_numpy_errors": "contaminated: did not restore numpy.geterr() (now {'divide': 'raise'",
    "test_working_folder": "contaminated: did not restore the working folder (now '/', was ",
    "test_several": "contaminated: did not restore the umask (now '0o77', was ",
    "test_last": "passed",
}
NOTES = {"test_several": "also contaminated: did not restore the recursion limit (now 4321, was "}


def test_before() -> None:
    random.seed(3)


def test_variable_added() -> None:
    os.environ["STATE_NEW"] = "now"


def test_after_variable() -> None:
    assert "STATE_NEW" not in os.environ


def test_variable_removed() -> None:
    del os.environ["PROBE_DIR"]


def test_signal_handler() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def test_after_signal() -> None:
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    assert os.environ["PROBE_DIR"]


def test_module_replaced() -> None:
    sys.modules["decimal"] = types.ModuleType("decimal")


def test_module_removed() -> None:
    del sys.modules["decimal"]


def test_builtin_replaced() -> None:
    names: Any = builtins
    names.ascii = lambda _: "patched"


def test_clock_patched() -> None:
    unittest.mock.patch("time.time").start()


def test_level_of_logging() -> None:
    logging.getLogger().setLevel(logging.DEBUG)


def test_handler_of_logging() -> None:
    logging.getLogger().addHandler(logging.NullHandler())


def test_excepthook() -> None:
    sys.excepthook = lambda *_: None


def test_excepthook_of_threads() -> None:
    threading.excepthook = lambda *_: None


def test_search_path() -> None:
    sys.path.insert(0, "/nowhere")


def test_recursion_limit() -> None:
    sys.setrecursionlimit(4321)


def test_umask() -> None:
    os.umask(0o077)


def test_locale() -> None:
    locale.setlocale(locale.LC_ALL, "C")


def test_collector_off() -> None:
    gc.disable()


def test_trace_function() -> None:
    sys.setprofile(lambda *_: None)


def test_decimal_precision() -> None:
    decimal.getcontext().prec = 5


def test_numpy_errors() -> None:
    np.seterr(all="raise")


def test_working_folder() -> None:
    os.chdir("/")


def test_several() -> None:
    sys.setrecursionlimit(4321)
    os.umask(0o077)


def test_last() -> None:
    assert isinstance(time.time(), float)
    assert ascii("a") == "'a'"
    assert gc.isenabled()
