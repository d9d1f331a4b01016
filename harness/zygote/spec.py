"""What a zygote is started with."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from harness.context import RunContext, tuples
from harness.rootdir import Root, inserted
from harness.under import WRAPPERS

#: Set while the zygote imports and collects, and put back in every executor: one thread in OpenBLAS's pool, so that the
#: process has one thread in all, and torch's question whether CUDA is there answered by NVML instead of by waking CUDA.
COLLECTION_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
#: What any of says how threads of OpenMP wait for each other, by the standard, GNU's library and LLVM's.
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@dataclass(frozen=True, slots=True)
class ZygoteSpec:
    """How to collect again what a run collects, and who the zygote belongs to.

    `args` are the arguments the run was started with, `collection_args` those to collect with; what is found must have
    the root folder `rootdir` and the ini file `inifile` (None: none). `parent` is the process id of the starter.
    `skip_early_exit_handlers`: see `harness.linux.exit_before_earlier_handlers`.
    `many_forks`: as many as cases, so that making them cheap is worth a moment at the start.
    `start`: ``fork`` makes executors by forking the zygote, which refuses where that must not be done; ``cold`` has
    each collect by itself, the zygote nothing; ``auto`` is the first as long as it may be, and then the second.
    `under` is the name of the wrapper round each test's call.
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

    @classmethod
    def of(cls, context: RunContext, *, skip_early_exit_handlers: bool) -> ZygoteSpec:
        """For a zygote that this process starts, for the run of `context`."""
        return cls(
            args=context.args,
            collection_args=inserted(context.told_args, context.overrides),
            rootdir=context.rootdir,
            inifile=context.inifile,
            sys_path=context.sys_path,
            preload=(*context.preload, *(WRAPPERS[context.under].preload if context.under else ())),
            parent=os.getpid(),
            skip_early_exit_handlers=skip_early_exit_handlers,
            many_forks=context.isolation == "case",
            start=context.start,
            under=context.under,
        )

    @property
    def root(self) -> Root:
        return Root(self.rootdir, self.inifile)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> ZygoteSpec:
        return cls(**tuples(json.loads(line)))


def overriding_arguments(*, xdist: bool, logging: bool) -> tuple[str, ...]:
    """Arguments that, appended to a run's own, make its collection one that writes no report and takes no worker.

    Capturing is off because descriptors opened before the fork would be shared by all executors, which capture anew.
    pytest warns that it cannot rewrite the asserts of this package, which it finds imported: the zygote is part of it.
    """
    imported = "ignore:Module already imported so cannot be rewritten; harness:pytest.PytestAssertRewriteWarning"
    arguments = [f"-W{imported}", "--capture=no", "--maxfail=0", "-ofaulthandler_timeout=0", "--junitxml="]
    if xdist:
        arguments += ["--numprocesses=0", "--dist=no"]
    if logging:
        arguments += ["-olog_cli=false", "--log-file-mode=a"]
    return tuple(arguments)


def waiting(outer: Mapping[str, str]) -> dict[str, str]:
    """The variable that has threads of OpenMP sleep while they wait, unless the environment `outer` says how they do.

    By itself each spins for milliseconds at the end of every parallel loop, in the belief that the processor is its
    process's own. Executors share it: with as many as cores, kernels on the CPU take several times as long.
    OpenMP reads it when its library is loaded, which is in the zygote.
    """
    return {} if any(name in outer for name in _WAITING) else {"OMP_WAIT_POLICY": "PASSIVE"}


def executor_environment(
    outer: Mapping[str, str], visible: Mapping[str, str | None], names: Sequence[str]
) -> dict[str, str | None]:
    """The variables to set (or, None, to unset) in an executor, given its supervisor's environment `outer`.

    `visible` binds the devices; `names` are variables of the supervisor's own that the zygote lacks (xdist's).
    """
    result: dict[str, str | None] = {name: outer.get(name) for name in COLLECTION_ENVIRONMENT}
    result.update(waiting(outer))
    result.update({name: outer[name] for name in names if name in outer})
    result.update(visible)
    return result
