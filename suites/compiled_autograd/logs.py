"""Messages from compiled autograd's logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from suites import _torch_private_compiled as private


class _Keeps(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


@contextmanager
def logged(artifact: str) -> Iterator[list[str]]:
    """Yield the messages of one of the compiler's logs, `compiled_autograd` or `compiled_autograd_verbose`.

    The log is enabled within the block, and all loggers are restored at its end.
    """
    messages: list[str] = []
    with private.log_switched_on(artifact) as logger:
        handler = _Keeps(messages)
        logger.addHandler(handler)
        try:
            yield messages
        finally:
            logger.removeHandler(handler)
