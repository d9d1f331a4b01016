"""More changes to the interpreter, threads and libraries that a case must restore. Each row makes a real change."""

from __future__ import annotations

import decimal
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from typing import Any

from tests.checks.state_table import contaminates


def enter_rows() -> None:
    """Fill the table. It is a function, since pytest must not import torch."""
    import numpy as np

    torch: Any = importlib.import_module("torch")

    @contaminates("did not restore the thread switch interval (now 0.5, was …")
    def switch_interval() -> None:
        sys.setswitchinterval(0.5)

    @contaminates("did not restore sys.get_int_max_str_digits() (now 5000, was …")
    def digits() -> None:
        sys.set_int_max_str_digits(5000)

    @contaminates("did not restore the dlopen flags (now …")
    def dlopen_flags() -> None:
        sys.setdlopenflags(sys.getdlopenflags() | os.RTLD_GLOBAL)

    @contaminates("did not restore the garbage collector's debug flags (now …")
    def gc_debug() -> None:
        gc.set_debug(gc.DEBUG_UNCOLLECTABLE)

    @contaminates("did not restore the garbage collector's callbacks (…")
    def gc_callback() -> None:
        gc.callbacks.append(lambda *_: None)

    @contaminates("did not restore the profile function of new threads (now …")
    def thread_profile() -> None:
        threading.setprofile(lambda *_: None)

    @contaminates("did not restore sys.path_hooks (…")
    def path_hook() -> None:
        sys.path_hooks.append(lambda _: None)  # type: ignore[arg-type,return-value]

    @contaminates("did not restore the default socket timeout (now 7.0, was None)")
    def socket_timeout() -> None:
        socket.setdefaulttimeout(7.0)

    @contaminates("did not restore the stack size of new threads (now 1048576, was …")
    def stack_size() -> None:
        threading.stack_size(1 << 20)

    @contaminates("did not restore the level of logging.disable() (now …")
    def logging_disabled() -> None:
        logging.disable(logging.ERROR)

    @contaminates("did not restore the filters of the root logger (…", once=True)
    def root_filter() -> None:
        logging.getLogger().addFilter(lambda _: True)

    @contaminates("did not restore the logger class (now …")
    def logger_class() -> None:
        logging.setLoggerClass(type("OtherLogger", (logging.Logger,), {}))

    @contaminates("did not restore the log record factory (now …")
    def record_factory() -> None:
        logging.setLogRecordFactory(type("OtherRecord", (logging.LogRecord,), {}))

    @contaminates("did not restore the traps of the decimal context (…", once=True)
    def decimal_traps() -> None:
        decimal.getcontext().traps[decimal.Inexact] = True

    @contaminates("did not restore the scheduling policy (now …", once=True)
    def scheduling_policy() -> None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    @contaminates("did not restore the timer of the process's time (now True, was False)")
    def virtual_timer() -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 1000.0)

    @contaminates("did not restore the hooks of asynchronous generators (…")
    def asyncgen_hooks() -> None:
        sys.set_asyncgen_hooks(firstiter=lambda _: None)

    @contaminates("did not restore sys.get_coroutine_origin_tracking_depth() (now 3, was 0)")
    def coroutine_origins() -> None:
        sys.set_coroutine_origin_tracking_depth(3)

    @contaminates("did not restore the safe globals of torch.load (…", once=True)
    def safe_globals() -> None:
        torch.serialization.add_safe_globals([threading.Barrier])

    @contaminates("did not restore numpy.geterrcall() (now …")
    def numpy_error_call() -> None:
        np.seterrcall(lambda *_: None)

    @contaminates("did not restore the print options of NumPy (now …")
    def numpy_print_options() -> None:
        np.set_printoptions(precision=3)
