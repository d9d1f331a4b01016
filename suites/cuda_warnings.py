"""Warnings that torch's own code for CUDA raises, on a GPU as on the simulated CUDA, whatever the case does right.

Each is a mark for the cases, or the module, that cannot avoid it. A case that is about a warning does not use it.
"""

from __future__ import annotations

import pytest

#: `make_graphed_callables` rehearses on one stream, captures on another and is used on a third. It keeps the graphs of
#: the first two, and with them the nodes that accumulate gradients, which stay on the stream they were made on.
of_graphed_callables = pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")

#: A capture that is left, by an error, before any work warns when it ends.
of_empty_graphs = pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")

#: Inductor imports modules that use torch.jit, which torch has deprecated, when it is first used.
of_deprecated_scripts = pytest.mark.filterwarnings("ignore:.*torch.jit.*")

#: Inductor advises once a process to let products of matrices be less exact, where the device can compute them faster.
of_exact_products = pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
