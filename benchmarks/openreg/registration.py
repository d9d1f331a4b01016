"""The registration of OpenReg: all that the harness needs to know of it."""

from harness.backends.backend import Backend

#: Every process has devices of its own, in the memory of the process: nobody waits for them, and no mask is needed.
BACKEND = Backend("openreg", hardware=False)
