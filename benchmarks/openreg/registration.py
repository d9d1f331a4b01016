"""The registration of OpenReg: all that the harness needs to know of it."""

from harness.backends.backend import Backend

#: Every process starts daemons of its own, so nobody waits for these devices, and no mask is needed.
BACKEND = Backend("openreg", modules=("openreg_module",), hardware=False)
