"""A conformance test harness for GPUs, their drivers and PyTorch.

The import of this package imports neither torch nor CUDA.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("gpu-conformance-harness")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
