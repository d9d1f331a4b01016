"""The ``nvcc`` of the simulated CUDA's toolkit: compiles CUDA C++ for the host, with the host's compiler."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.core.errors import HarnessError
from harness.sim.simcuda.device_code import module
from harness.sim.simcuda.device_code.toolkit import Settings

#: Compiles what the driver has written to a file: `nvcc --simcuda-module REQUEST LIBRARY`.
_MODULE = "--simcuda-module"


def main(arguments: Sequence[str]) -> int:
    """Run ``nvcc`` of the toolkit in the folder that comes first. Return the exit status."""
    toolkit, *rest = arguments
    settings = Settings.load(Path(toolkit))
    try:
        if rest[:1] == [_MODULE]:
            source = module.parse_source(Path(rest[1]).read_bytes())
            module.compile_module(source, settings, Path(rest[2]))
            return 0
    except HarnessError as error:
        print(f"Simulated CUDA: a module is refused (CUDA_ERROR_NOT_SUPPORTED): {error}", file=sys.stderr)
        return 1
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
