"""The specification that a zygote is started with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from harness.configuration.context import RunContext
from harness.configuration.rootdir import RootFolder, insert_options
from harness.configuration.under import CALL_WRAPPERS
from harness.scheduling.order import Reach, read_ids

#: Set while the zygote imports and collects, and restored in every executor. OpenBLAS then starts no threads, so that
#: the process has only one. Torch then asks NVML whether CUDA is available, and does not initialise CUDA.
COLLECTION_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
#: The end of a reason to which the end of the log is appended.
LOG_FOLLOWS = "its log ends with:"
#: Variables that control how OpenMP threads wait: of the standard, of GNU's library, of LLVM's library.
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@dataclass(frozen=True, slots=True)
class ZygoteSpec:
    """The inputs for a repetition of a run's collection, and the process that the zygote belongs to.

    `args` are the arguments of the run, `collection_args` those for the collection. pytest must find the root folder
    `rootdir` and the ini file `inifile` (None: none). `parent` is the process id of the starter.
    `skip_early_exit_handlers`: see `harness.core.linux.exit_before_earlier_handlers`. `many_forks`: there is one fork
    per case, so time at the start pays for cheaper forks. `start`: with ``fork``, executors are forks of the zygote,
    which refuses if it must not be forked. With ``cold``, each executor collects the cases itself, and the zygote
    collects nothing. ``auto`` is ``fork`` if possible, else ``cold``. `under` is the name of the wrapper around each
    test's call. `variables` are set in its environment. `description`: the file for the description of the collection.
    `reach`: the files and folders that the run may select. `masked`: a cold executor sees only its own devices while it
    collects, since a test file uses a device when it is imported.
    """

    args: tuple[str, ...]
    collection_args: tuple[str, ...]
    rootdir: str
    inifile: str | None
    sys_path: tuple[str, ...]
    preload: tuple[str, ...]
    parent: int
    skip_early_exit_handlers: bool
    many_forks: bool
    start: str = "fork"
    under: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    description: str = ""
    reach: Reach = field(default_factory=Reach)
    masked: bool = False

    @classmethod
    def of(cls, context: RunContext, *, skip_early_exit_handlers: bool) -> ZygoteSpec:
        """Return the specification of a zygote that this process starts for the run of `context`."""
        return cls(
            args=context.args,
            collection_args=insert_options(context.root_args, context.overrides),
            rootdir=context.rootdir,
            inifile=context.inifile,
            sys_path=context.sys_path,
            preload=(*context.preload, *(CALL_WRAPPERS[context.under].preload if context.under else ())),
            parent=os.getpid(),
            skip_early_exit_handlers=skip_early_exit_handlers,
            many_forks=context.isolation == "case",
            start=context.start,
            under=context.under,
            variables=context.variables,
            reach=Reach.of(context.policy, read_ids(context.only)),
        )

    @property
    def root(self) -> RootFolder:
        return RootFolder(self.rootdir, self.inifile)

    def to_json(self) -> str:
        """Return the specification as one line of JSON."""
        return json.dumps(msgspec.to_builtins(self))

    @classmethod
    def from_json(cls, line: str) -> ZygoteSpec:
        return msgspec.convert(json.loads(line), cls)


def collection_overrides(has_plugin: Callable[[str], bool]) -> tuple[str, ...]:
    """Return arguments to append to those of the run, so that the collection writes no report and starts no worker.

    Only options of loaded plugins are used, since the user may have disabled any of pytest's own plugins.

    Capturing is off because all executors would share descriptors opened before the fork; executors capture themselves.
    A warning is filtered because the zygote has imported this package already, so that pytest cannot rewrite its
    asserts.
    """
    imported = "ignore:Module already imported so cannot be rewritten; harness:pytest.PytestAssertRewriteWarning"
    of_plugins = {
        "capture": ["--capture=no"],
        "faulthandler": ["-ofaulthandler_timeout=0"],
        "junitxml": ["--junitxml="],
        "xdist": ["--numprocesses=0", "--dist=no"],
        "logging": ["-olog_cli=false", "--log-file-mode=a"],
    }
    chosen = [word for name, words in of_plugins.items() if has_plugin(name) for word in words]
    return (f"-W{imported}", "--maxfail=0", *chosen)


def openmp_wait_policy(outer: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that makes waiting OpenMP threads sleep, unless the environment `outer` sets a policy.

    By default each thread spins for milliseconds at the end of every parallel loop. Executors share the processor, so
    with one executor per core, kernels on the CPU take several times as long. OpenMP reads the variable when its
    library is loaded, which happens in the zygote.
    """
    return {} if any(name in outer for name in _WAITING) else {"OMP_WAIT_POLICY": "PASSIVE"}


def executor_environment(
    outer: Mapping[str, str], visible: Mapping[str, str | None], names: Sequence[str]
) -> dict[str, str | None]:
    """Return the variables to set in an executor (None: unset), given its supervisor's environment `outer`.

    `visible` selects the devices. `names` are variables of the supervisor that the zygote does not have (xdist's).
    """
    result: dict[str, str | None] = {name: outer.get(name) for name in COLLECTION_ENVIRONMENT}
    result.update(openmp_wait_policy(outer))
    result.update({name: outer[name] for name in names if name in outer})
    result.update(visible)
    return result
