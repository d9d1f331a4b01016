"""A fixture with which the interpreter makes a file when it drops this module, which was imported before the fork."""

import os
from collections.abc import Callable

import pytest


class Witness:
    file = ""

    def __del__(self, opens: Callable[[str, int], int] = os.open, how: int = os.O_CREAT | os.O_WRONLY) -> None:
        if self.file:
            opens(self.file, how)


WITNESS = Witness()


@pytest.fixture
def witness(request: pytest.FixtureRequest) -> None:
    WITNESS.file = os.path.join(os.environ["PROBE_DIR"], request.node.name)
