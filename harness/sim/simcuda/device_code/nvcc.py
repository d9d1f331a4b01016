"""The ``nvcc`` of the simulated CUDA's toolkit: compiles CUDA C++ for the host, with the host's compiler.

Host and device code are one program: a kernel is a function, and a launch a call of the runtime with it. Options that
concern code for a GPU have no effect.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.atomic import write_atomically
from harness.core.errors import HarnessError
from harness.sim.simcuda.device_code import module, translate
from harness.sim.simcuda.device_code.module import DeviceCodeError
from harness.sim.simcuda.device_code.toolkit import Settings

#: Compiles what the driver has written to a file: `nvcc --simcuda-module REQUEST LIBRARY`.
_MODULE = "--simcuda-module"

#: Options with a value, by the name that the host's compiler has for them.
_PASSED_ON = {
    "-I": "-I",
    "--include-path": "-I",
    "-isystem": "-isystem",
    "--system-include": "-isystem",
    "-D": "-D",
    "--define-macro": "-D",
    "-U": "-U",
    "--undefine-macro": "-U",
    "-include": "-include",
    "--pre-include": "-include",
    "-L": "-L",
    "--library-path": "-L",
    "-l": "-l",
    "--library": "-l",
}
#: Options with lists for the host's compiler, separated by commas.
_FOR_HOST = ("-Xcompiler", "--compiler-options")
#: Options with a value that concern a GPU.
_IGNORED = (
    "-gencode",
    "--generate-code",
    "-arch",
    "--gpu-architecture",
    "-code",
    "--gpu-code",
    "-Xptxas",
    "--ptxas-options",
    "-Xcudafe",
    "-Xnvlink",
    "-maxrregcount",
    "--maxrregcount",
    "-t",
    "--threads",
    "-ccbin",
    "--compiler-bindir",
    "-diag-suppress",
    "--diag-suppress",
    "-cudart",
    "--cudart",
    "-split-compile",
    "--split-compile",
    "-Xfatbin",
    "--options-file",
)
_SOURCES = (".cu", ".cpp", ".cc", ".cxx", ".c")


@dataclass(slots=True)
class _Call:
    """A command line of nvcc. `flags`: options of the host's compiler."""

    inputs: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    libraries: list[str] = field(default_factory=list)
    output: str = ""
    dependencies: str = ""
    only_compile: bool = False
    shared: bool = False
    standard: str = "-std=gnu++17"
    version: bool = False


def main(arguments: Sequence[str]) -> int:
    """Run ``nvcc`` of the toolkit in the folder that comes first. Return the exit status."""
    toolkit, *rest = arguments
    settings = Settings.load(Path(toolkit))
    if rest[:1] == [_MODULE]:
        try:
            source = module.parse_source(Path(rest[1]).read_bytes())
            module.compile_module(source, settings, Path(rest[2]))
        except HarnessError as error:
            print(f"Simulated CUDA: a module is refused (CUDA_ERROR_NOT_SUPPORTED): {error}", file=sys.stderr)
            return 1
        return 0
    try:
        return _run(_parse(rest), settings)
    except (HarnessError, translate.TranslationError) as error:
        print(f"nvcc: {error}", file=sys.stderr)
        return 1


def _parse(arguments: Sequence[str]) -> _Call:
    call, rest = _Call(), iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            call.inputs.append(word)
        elif word in ("-c", "--compile", "-dc", "--device-c"):
            call.only_compile = True
        elif word in ("-o", "--output-file"):
            call.output = next(rest, "")
        elif word in ("-V", "--version"):
            call.version = True
        elif word in ("-shared", "--shared"):
            call.shared = True
        elif word in ("-MF", "--dependency-output"):
            call.dependencies = next(rest, "")
        elif name in ("-std", "--std"):
            call.standard = f"-std={value if equals else next(rest, '')}"
        elif name in _FOR_HOST:
            call.flags += [text.strip("'\"") for text in (value if equals else next(rest, "")).split(",")]
        elif name in _PASSED_ON:
            option, argument = _PASSED_ON[name], value if equals else next(rest, "")
            target = call.libraries if option in ("-L", "-l") else call.flags
            target += [option, argument] if option.startswith("-i") else [f"{option}{argument}"]
        elif name in _IGNORED:
            if not equals:
                next(rest, "")
        elif word[:2] in ("-I", "-D", "-U", "-g", "-f", "-W") or word.startswith("-isystem"):
            call.flags.append(word)
        elif word[:2] in ("-L", "-l"):
            call.libraries.append(word)
        elif word.startswith("-x"):
            if word == "-x":
                next(rest, "")
        elif word in ("-dlink", "--device-link"):
            raise DeviceCodeError("the simulated CUDA has no device code of several files (-dlink)")
    return call


def _run(call: _Call, settings: Settings) -> int:
    if call.version:
        print("nvcc: the simulated CUDA's compiler, which makes code for the host")
        print(f"Cuda compilation tools, release {settings.release}, V{settings.release}.0")
        return 0
    if not call.inputs:
        raise DeviceCodeError("no input files for the nvcc of the simulated CUDA")
    with tempfile.TemporaryDirectory(prefix="simcuda-nvcc-") as folder:
        objects = list(_objects(call, settings, Path(folder)))
        if not call.only_compile:
            runtime = Path(settings.runtime).parent
            command = [*settings.compiler, *(["-shared"] if call.shared else []), "-o", call.output or "a.out"]
            links = [*call.libraries, settings.runtime, f"-Wl,-rpath,{runtime}"]
            module.run_compiler([*command, *objects, *links])
    return 0


def _objects(call: _Call, settings: Settings, folder: Path) -> Iterator[str]:
    """Compile the sources, and yield all objects."""
    for number, name in enumerate(call.inputs):
        if not name.endswith(_SOURCES):
            yield name
            continue
        made = folder / f"{number}.o"
        _compile(call, settings, Path(name), made)
        if call.only_compile:
            place = Path(call.output or Path(name).with_suffix(".o").name)
            write_atomically(place, made.read_bytes())
        yield str(made)


def _compile(call: _Call, settings: Settings, source: Path, made: Path) -> None:
    own, *others = settings.includes
    includes = ["-I", own, *[word for path in others for word in ("-isystem", path)]]
    front = [] if source.suffix != ".cu" else ["-include", "simcuda_front.h"]
    command = [*settings.compiler, "-E", "-x", "c++", "-w", call.standard, *settings.flags, *includes, *call.flags]
    if call.dependencies:
        command += ["-MD", "-MF", call.dependencies, "-MT", call.output or str(made)]
    text = module.run_compiler([*command, *front, str(source)])
    if source.suffix == ".cu":
        text = translate.translate(text, [], launches=True) + _DYNAMIC
    file = made.with_suffix(".ii")
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    # A template that launches a kernel has a variable, which must be another one in each library.
    options = [*module.FLAGS, "-fno-gnu-unique", call.standard, *settings.flags]
    user = [flag for flag in call.flags if flag.startswith(("-f", "-W", "-g"))]
    module.run_compiler([*settings.compiler, *options, *user, "-x", "c++-cpp-output", "-c", "-o", str(made), str(file)])


_DYNAMIC = (
    f"\n__thread char {translate.DYNAMIC}[{module.DYNAMIC_BYTES}] "
    '__attribute__((weak, aligned(1024), visibility("hidden")));\n'
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
