"""Warnings that torch's own code for CUDA issues in correct programs, on GPUs and on the simulated CUDA.

Each is a mark for cases or modules that cannot avoid the warning. A case that checks a warning does not use its mark.
"""

from __future__ import annotations

import pytest

#: `make_graphed_callables` warms up on one stream, captures on another and is used on a third. It keeps the graphs of
#: the first two, and with them their AccumulateGrad nodes, which stay on their original streams.
of_graphed_callables = pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")

#: A capture that an exception ends before any work warns at its end.
of_empty_graphs = pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")

#: Inductor imports modules that use the deprecated torch.jit when it is first used.
of_deprecated_scripts = pytest.mark.filterwarnings("ignore:.*torch.jit.*")

#: Inductor suggests, once per process, less exact matrix products if the device can compute them faster.
of_exact_products = pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
