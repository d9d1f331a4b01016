"""Changes to the interpreter, the process and NumPy that a case must restore. Each row makes a real change."""

from __future__ import annotations

import asyncio
import builtins
import decimal
import faulthandler
import gc
import locale
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
import unittest.mock
import warnings

from tests.checks.state_table import contaminates


def enter_rows() -> None:
    """Fill the table. It is a function, since pytest must not import torch."""
    import numpy as np

    @contaminates("did not restore numpy.geterr() (now {'divide': 'raise', …")
    def numpy_errors() -> None:
        np.seterr(all="raise")

    @contaminates("did not restore the warnings filters (added ('ignore', None, builtins.Warning, None, 0); now …")
    def warnings_filter() -> None:
        warnings.simplefilter("ignore")

    @contaminates("did not restore the environment variable STATE_NEW (now 'now', was absent)")
    def variable_added() -> None:
        os.environ["STATE_NEW"] = "now"

    @contaminates("did not restore the environment variable STATE_KEPT (now 'after', was 'before')")
    def variable_changed() -> None:
        os.environ["STATE_KEPT"] = "after"

    @contaminates("did not restore the environment variable STATE_GONE (now absent, was 'before')")
    def variable_removed() -> None:
        del os.environ["STATE_GONE"]

    @contaminates("did not restore the handler of SIGUSR1 (now <Handlers.SIG_IGN: 1>, was <Handlers.SIG_DFL: 0>)")
    def signal_handler() -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    @contaminates("did not restore the signals that C code handles (added 'SIGUSR2 caught'; now 1 entry, was 0)")
    def signal_handler_of_c() -> None:
        faulthandler.register(signal.SIGUSR2)

    @contaminates("did not restore the environment variable PYTHONHASHSEED (now '1', was …")
    def seed_of_hashes() -> None:
        os.environ["PYTHONHASHSEED"] = "1"

    @contaminates("did not restore the umask (now '0o77', was '0o22')")
    def umask() -> None:
        os.umask(0o077)

    @contaminates("did not restore the locale (now 'C', was …")
    def locale_of_all() -> None:
        locale.setlocale(locale.LC_ALL, "C")

    @contaminates(
        "did not restore the environment variable TZ (now 'EST5', was absent)",
        "did not restore the time zone (now [('EST', …",
        once=True,
    )
    def time_zone() -> None:
        os.environ["TZ"] = "EST5"
        time.tzset()

    @contaminates("did not restore the recursion limit (now 4321, was 1000)")
    def recursion_limit() -> None:
        sys.setrecursionlimit(4321)

    @contaminates("did not restore sys.path (added '/nowhere'; now …")
    def search_path() -> None:
        sys.path.insert(0, "/nowhere")

    @contaminates(
        "did not restore sys.modules['colorsys'] (now the module 'colorsys' of None, was the module 'colorsys' of …"
    )
    def module_replaced() -> None:
        sys.modules["colorsys"] = types.ModuleType("colorsys")

    @contaminates("did not restore sys.modules['colorsys'] (now absent, was the module 'colorsys' of …")
    def module_removed() -> None:
        del sys.modules["colorsys"]

    @contaminates("did not restore builtins.ascii (now …, was builtins.ascii)")
    def builtin_replaced() -> None:
        builtins.ascii = lambda _: "patched"

    @contaminates("did not restore builtins.handy (now 1, was absent)")
    def builtin_added() -> None:
        builtins.handy = 1  # type: ignore[attr-defined]

    @contaminates("did not restore time.time (now a unittest.mock.MagicMock, was time.time)", once=True)
    def clock() -> None:
        unittest.mock.patch("time.time").start()

    @contaminates("did not restore the precision of the decimal context (now 5, was 28)")
    def decimal_precision() -> None:
        decimal.getcontext().prec = 5

    @contaminates("did not restore gc.isenabled() (now False, was True)")
    def collector_off() -> None:
        gc.disable()

    @contaminates("did not restore the garbage collector's thresholds (now [5, 5, 5], was …")
    def collector_thresholds() -> None:
        gc.set_threshold(5, 5, 5)

    class Policy(asyncio.DefaultEventLoopPolicy):
        pass

    @contaminates("did not restore the asyncio event loop policy (now a …", once=True)
    def event_loop_policy() -> None:
        asyncio.set_event_loop_policy(Policy())

    @contaminates("did not restore sys.excepthook (now …")
    def excepthook() -> None:
        sys.excepthook = lambda *_: None

    @contaminates("did not restore threading.excepthook (now …")
    def excepthook_of_threads() -> None:
        threading.excepthook = lambda *_: None

    @contaminates("did not restore the profile function (now …, was None)")
    def profile_function() -> None:
        sys.setprofile(lambda *_: None)

    @contaminates("did not restore the trace function of new threads (now …, was None)")
    def trace_function_of_threads() -> None:
        threading.settrace(lambda *_: None)

    @contaminates("did not restore the level of the root logger (now 10, was 30)")
    def root_level() -> None:
        logging.getLogger().setLevel(logging.DEBUG)

    @contaminates("did not restore the root log handler logging.NullHandler at … (now 0, was absent)")
    def root_handler() -> None:
        logging.getLogger().addHandler(logging.NullHandler())

    @contaminates("did not restore the multiprocessing start method (now 'spawn', was …")
    def start_method() -> None:
        multiprocessing.set_start_method("spawn", force=True)
