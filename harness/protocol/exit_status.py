"""Exit statuses with which an executor reports a failure that it can no longer send as a message."""

from __future__ import annotations

import signal

#: A case has closed or replaced the executor's channel, so that it cannot send anything.
EXIT_CHANNEL_GONE = 241
#: No memory was left to send a report.
EXIT_NO_MEMORY = 242
#: The device could not be made ready: its library could not be loaded, or its set-up failed.
EXIT_NO_DEVICE = 243
#: The harness's own code failed in an executor. The traceback goes over the channel.
EXIT_HARNESS_ERROR = 244
#: Ends an executor whose case exceeds its time limit. A real-time signal, which other code is unlikely to use.
WATCHDOG_SIGNAL = signal.SIGRTMAX - 1
