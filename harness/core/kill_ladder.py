"""The kill ladder for processes that use a device."""

from __future__ import annotations

import signal

#: Signals in order, each with the seconds to wait for the exit before the next signal. A process ends late after
#: SIGKILL if the driver of its device must clean up.
LADDER = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 10.0))
