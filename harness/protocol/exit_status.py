"""How an executor says, by the way it ends, what it can no longer say in words."""

from __future__ import annotations

import signal

#: A case has closed or replaced the executor's channel: it can no longer say anything.
EXIT_CHANNEL_GONE = 241
#: No memory was left to send a report.
EXIT_NO_MEMORY = 242
#: The software device could not be loaded.
EXIT_NO_DEVICE = 243
#: What was to be told could not be written into the folder for temporary files.
EXIT_NOT_WRITTEN = 244
#: Ends an executor whose case is not over in time. A real-time signal, which nothing else is likely to use.
WATCHDOG_SIGNAL = signal.SIGRTMAX - 1
