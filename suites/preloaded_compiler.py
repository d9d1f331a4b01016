"""Imports torch's compiler before executors are forked; otherwise each executor would take two seconds for it.

All executors then share its objects, and a garbage collection after a case does not traverse them.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings

#: The modules that a first compilation imports, apart from those that they import in turn. A release of torch may lack
#: some.
MODULES = (
    "torch._dynamo.compiled_autograd",
    "torch._dynamo.backends.inductor",
    "torch._functorch.aot_autograd",
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.cpp",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.triton",
    "torch._inductor.codegen.wrapper",
    "torch._inductor.cudagraph_trees",
    "torch.export._trace",
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch itself uses names that it deprecates
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)

# Inductor's keys of compiled code: hashes of its own files and of Triton's; the second hashes 300 MB. torch keeps both.
with contextlib.suppress(ImportError, AttributeError):
    importlib.import_module("torch._inductor.codecache").torch_key()
for place in ("triton.runtime.cache", "triton.compiler.compiler"):  # the second is for Triton up to 3.4
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module(place).triton_key()
        break
