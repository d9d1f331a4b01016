"""What a case may do to interpreter, process and NumPy that it must not leave behind, each done for real."""

from __future__ import annotations

import asyncio
import builtins
import decimal
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
    """Fill the table. In a function, since pytest must not import torch."""
    import numpy as np

    @contaminates("left NumPy's treatment of errors at {'divide': 'raise', …")
    def numpy_errors() -> None:
        np.seterr(all="raise")

    @contaminates("left the warnings filters with ('ignore', None, builtins.Warning, None, 0) (…")
    def warnings_filter() -> None:
        warnings.simplefilter("ignore")

    @contaminates("left the environment variable STATE_NEW at 'now' (was absent)")
    def variable_added() -> None:
        os.environ["STATE_NEW"] = "now"

    @contaminates("left the environment variable STATE_KEPT at 'after' (was 'before')")
    def variable_changed() -> None:
        os.environ["STATE_KEPT"] = "after"

    @contaminates("removed the environment variable STATE_GONE (was 'before')")
    def variable_removed() -> None:
        del os.environ["STATE_GONE"]

    @contaminates("left the handler of SIGUSR1 at <Handlers.SIG_IGN: 1> (was <Handlers.SIG_DFL: 0>)")
    def signal_handler() -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    @contaminates("left the umask at 63 (was 18)")
    def umask() -> None:
        os.umask(0o077)

    @contaminates("left the locale at 'C' (was …")
    def locale_of_all() -> None:
        locale.setlocale(locale.LC_ALL, "C")

    @contaminates(
        "left the environment variable TZ at 'EST5' (was absent)", "left the time zone at [('EST', …", once=True
    )
    def time_zone() -> None:
        os.environ["TZ"] = "EST5"
        time.tzset()

    @contaminates("left the recursion limit at 4321 (was 1000)")
    def recursion_limit() -> None:
        sys.setrecursionlimit(4321)

    @contaminates("left sys.path with '/nowhere' (…")
    def search_path() -> None:
        sys.path.insert(0, "/nowhere")

    @contaminates("left sys.modules['colorsys'] at the module 'colorsys' of None (was the module 'colorsys' of …")
    def module_replaced() -> None:
        sys.modules["colorsys"] = types.ModuleType("colorsys")

    @contaminates("removed sys.modules['colorsys'] (was the module 'colorsys' of …")
    def module_removed() -> None:
        del sys.modules["colorsys"]

    @contaminates("left builtins.ascii at … (was builtins.ascii)")
    def builtin_replaced() -> None:
        builtins.ascii = lambda _: "patched"

    @contaminates("left builtins.handy at 1 (was absent)")
    def builtin_added() -> None:
        builtins.handy = 1  # type: ignore[attr-defined]

    @contaminates("left time.time at a unittest.mock.MagicMock (was time.time)", once=True)
    def clock() -> None:
        unittest.mock.patch("time.time").start()

    @contaminates("left the precision of decimal arithmetic at 5 (was 28)")
    def decimal_precision() -> None:
        decimal.getcontext().prec = 5

    @contaminates("left the garbage collector's being enabled at False (was True)")
    def collector_off() -> None:
        gc.disable()

    @contaminates("left the garbage collector's thresholds at [5, 5, 5] (was …")
    def collector_thresholds() -> None:
        gc.set_threshold(5, 5, 5)

    class Policy(asyncio.DefaultEventLoopPolicy):
        pass

    @contaminates("left the policy of event loops at a …", once=True)
    def event_loop_policy() -> None:
        asyncio.set_event_loop_policy(Policy())

    @contaminates("left sys.excepthook at …")
    def excepthook() -> None:
        sys.excepthook = lambda *_: None

    @contaminates("left threading.excepthook at …")
    def excepthook_of_threads() -> None:
        threading.excepthook = lambda *_: None

    @contaminates("left the profile function at … (was None)")
    def profile_function() -> None:
        sys.setprofile(lambda *_: None)

    @contaminates("left the trace function of new threads at … (was None)")
    def trace_function_of_threads() -> None:
        threading.settrace(lambda *_: None)

    @contaminates("left the level of the root logger at 10 (was 30)")
    def root_level() -> None:
        logging.getLogger().setLevel(logging.DEBUG)

    @contaminates("left the root logger's handler logging.NullHandler at … at 0 (was absent)")
    def root_handler() -> None:
        logging.getLogger().addHandler(logging.NullHandler())

    @contaminates("left the start method of multiprocessing at 'spawn' (was …")
    def start_method() -> None:
        multiprocessing.set_start_method("spawn", force=True)
