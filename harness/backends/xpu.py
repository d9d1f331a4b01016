"""Intel GPUs, through ``torch.xpu``.

Written from the documentation, and never run on such a GPU: torch's page on ``torch.xpu``
(https://docs.pytorch.org/docs/stable/xpu.html), and the page of Level Zero on environment variables
(https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html#environment-variables), which describes
``ZE_AFFINITY_MASK``: a list of devices, or of sub-devices such as ``0.1``.
"""

from __future__ import annotations

from harness.backends.backend import Backend

BACKEND = Backend(
    kind="xpu",
    noun="Intel GPUs",
    label="xpu (Intel GPU)",
    no_gpu="the device is an Intel GPU",
    mask="ZE_AFFINITY_MASK",
    variables=("ZE_FLAT_DEVICE_HIERARCHY", "ONEAPI_DEVICE_SELECTOR"),
    implied={"accelerator": True, "silicon": True},
)
