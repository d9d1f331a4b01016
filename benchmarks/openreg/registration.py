"""The registration of OpenReg with the harness."""

from harness.backends.backend import Backend

#: Each process has its own devices, in its memory, so there is no waiting for devices and no mask.
BACKEND = Backend("openreg", hardware=False)
