"""Compiles the source of a module, as the simulated NVRTC has kept it, to a library that the driver loads.

The kernels of a module have C++ names: those that the program has asked NVRTC for, or what their lowered names mean. A
table in the library leads from the lowered name to the function (``include/simcuda_entries.h``).
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.atomic import write_atomically
from harness.core.errors import HarnessError
from harness.sim.simcuda.device_code import ptx, translate
from harness.sim.simcuda.device_code.toolkit import Settings

#: The semantics are those of a GPU: no contraction of a product and a sum, integers that wrap, memory of any type. A
#: function touches each page of its stack, so that one that needs too much reaches the end of the stack, and nothing
#: beyond it.
FLAGS = (
    "-O2",
    "-g0",
    "-w",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fstack-clash-protection",
)
#: Modules have functions of equal names, which must not replace each other.
_LOCAL = ("-fvisibility=hidden", "-fno-gnu-unique", "-Wl,-Bsymbolic")
DYNAMIC_BYTES = 227 << 10
_ARCHITECTURE = re.compile(r"(?:compute|sm)_(\d+)")
#: Options of NVRTC with a value, which the host's compiler understands by these names.
_OPTIONS = {
    "--include-path": "-I",
    "-I": "-I",
    "--define-macro": "-D",
    "-D": "-D",
    "--undefine-macro": "-U",
    "-U": "-U",
    "--pre-include": "-include",
    "-include": "-include",
}


class DeviceCodeError(HarnessError):
    """Device code that cannot be compiled for the host."""


@dataclass(slots=True)
class Source:
    """What the simulated NVRTC has kept of a program (``csrc/include/simcuda_image.h``).

    `expressions`: by lowered name, the name that the program has asked for.
    """

    text: str = ""
    name: str = "module.cu"
    headers: dict[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    expressions: dict[str, str] = field(default_factory=dict)
    ptx: str = ""


def parse_source(content: bytes) -> Source:
    """Return the fields of a file that the driver has written. Raise DeviceCodeError if it is damaged."""
    source, last = Source(), ""
    for key, value in _fields(content):
        match key:
            case "source":
                source.text = value
            case "name":
                source.name = value
            case "ptx":
                source.ptx = value
            case "option":
                source.options.append(value)
            case "header-name" | "expression":
                last = value
            case "header":
                source.headers[last] = value
            case "lowered":
                source.expressions[value] = last
    return source


def _fields(content: bytes) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(content):
        end = content.find(b"\n", place)
        key, _, length = content[place:end].partition(b" ")
        if end < 0 or not length.isdigit() or end + 1 + int(length) >= len(content):
            raise DeviceCodeError("the simulated CUDA cannot read the source of a module: it is damaged")
        value = content[end + 1 : end + 1 + int(length)]
        yield key.decode("ascii", "replace"), value.decode("utf-8", "surrogateescape")
        place = end + 2 + int(length)


def compile_module(source: Source, settings: Settings, library: Path) -> None:
    """Compile a module to a shared library. Raise DeviceCodeError with the reason, in one line."""
    kernels = ptx.find_kernels(source.ptx)
    with tempfile.TemporaryDirectory(prefix="simcuda-module-") as name:
        folder = Path(name)
        options = _host_options(source.options)
        text = _preprocess(source, settings, options, folder)
        try:
            refused: list[str] = []
            body = translate.translate(text, refused)
            code = body + _tables(source, kernels, refused)
            file, work = folder / "module.ii", folder / "module.so"
            file.write_text(code, encoding="utf-8", errors="surrogateescape")
            standard = [option for option in options if option.startswith("-std=")]
            command = [
                *settings.compiler,
                *FLAGS,
                *_LOCAL,
                *standard,
                *settings.flags,
                "-x",
                "c++-cpp-output",
                str(file),
            ]
            run_compiler([*command, "-x", "none", "-shared", "-o", str(work), settings.runtime])
        except (translate.TranslationError, DeviceCodeError) as error:
            named = ", ".join(f"{kernel.name} uses {kernel.unsupported}" for kernel in kernels if kernel.unsupported)
            raise DeviceCodeError(named or str(error)) from None
        write_atomically(library, work.read_bytes(), 0o700)


def run_compiler(command: Sequence[str]) -> str:
    """Run the host's compiler, and return its output. Raise DeviceCodeError with its first error."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="surrogateescape", check=False
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line or "undefined" in line]
        if os.environ.get("SIMCUDA_TRACE"):
            raise DeviceCodeError(f"the simulated CUDA: {shlex.join(command)}\n{done.stderr}")
        first = (errors or done.stderr.splitlines() or [f"status {done.returncode}"])[0]
        raise DeviceCodeError(
            f"the host's C++ compiler does not accept the code for the simulated CUDA: {first.strip()}"
        )
    return done.stdout


def _host_options(options: Sequence[str]) -> list[str]:
    """Return the options of NVRTC that concern C++, as the host's compiler has them."""
    made, standard, architecture = [], "gnu++17", "900"
    rest = iter(options)
    for option in rest:
        name, equals, value = option.partition("=")
        if option.startswith(("-I", "-D", "-U")) and len(option) > 2:
            made.append(option)
        elif name in _OPTIONS:
            made += [_OPTIONS[name], value if equals else next(rest, "")]
        elif name in ("--std", "-std"):
            # The front header needs C++17, and a later standard has whatever an earlier one has.
            asked = (value if equals else next(rest, "")).removeprefix("c++").removeprefix("gnu++")
            standard = "gnu++20" if asked == "20" else "gnu++17"
        elif name in ("--gpu-architecture", "-arch"):
            found = _ARCHITECTURE.search(value if equals else next(rest, ""))
            architecture = f"{found[1]}0" if found else architecture
    return [*made, f"-std={standard}", f"-DSIMCUDA_ARCHITECTURE={architecture}"]


def _preprocess(source: Source, settings: Settings, options: Sequence[str], folder: Path) -> str:
    file = folder / "module.cu"
    name = json.dumps(source.name, ensure_ascii=False)
    file.write_text(f"#line 1 {name}\n{source.text}\n", encoding="utf-8", errors="surrogateescape")
    headers = folder / "headers"
    for header, text in source.headers.items():
        place = (headers / header).resolve()
        if not place.is_relative_to(headers.resolve()):
            raise DeviceCodeError(f"the simulated CUDA refuses the header {header!r}, which leads out of its folder")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8", errors="surrogateescape")
    own, *others = settings.includes
    includes = ["-I", own, "-I", str(headers), *[word for path in others for word in ("-isystem", path)]]
    command = [*settings.compiler, "-E", "-x", "c++", "-w", "-DSIMCUDA_RTC", *includes, *options]
    return run_compiler([*command, "-include", "simcuda_front.h", str(file)])


def _tables(source: Source, kernels: Sequence[ptx.Kernel], refused: Sequence[str]) -> str:
    rows = []
    for kernel in kernels:
        reason = kernel.unsupported or next((text for text in refused if _has_assembly(kernel, text)), "")
        if reason and not kernel.unsupported:
            reason = f"inline PTX is not supported: {reason}"
        why = json.dumps(reason) if reason else "nullptr"
        numbers = f"{kernel.threads}, 32, {kernel.shared}"
        chosen = ", ".join([_function(kernel.name, source.expressions), *[f"{mask:#x}ull" for mask in kernel.written]])
        rows.append(f"simcuda_device::Kernel<{chosen}>::make({json.dumps(kernel.name)}, {numbers}, {why})")
    variables = [
        f"simcuda_device::variable({json.dumps(name)}, {expression})"
        for name in ptx.find_variables(source.ptx)
        if (expression := _variable(name, source))
    ]
    return "\n".join(
        (
            "",
            f"static const SimcudaKernel simcuda_kernels[] = {{{', '.join([*rows, '{}'])}}};",
            f"static const SimcudaVariable simcuda_variables[] = {{{', '.join([*variables, '{}'])}}};",
            f"__thread char {translate.DYNAMIC}[{DYNAMIC_BYTES}] __attribute__((aligned(1024)));",
            'extern "C" __attribute__((visibility("default"))) const SimcudaModule simcuda_module;',
            "const SimcudaModule simcuda_module = "
            f"{{simcuda_kernels, {len(rows)}, simcuda_variables, {len(variables)}}};",
            "",
        )
    )


def _has_assembly(kernel: ptx.Kernel, program: str) -> bool:
    """Return whether a kernel has this inline assembly, whose operands NVRTC has replaced by registers."""
    words = re.findall(r"[a-z][\w.:]*", program)
    return any(set(words) <= set(re.findall(r"[a-z][\w.:]*", text)) for text in kernel.assembly)


def _function(lowered: str, expressions: Mapping[str, str]) -> str:
    """Return a C++ expression for the kernel of this lowered name."""
    if lowered in expressions:
        return f"&{expressions[lowered].lstrip('& ')}"
    name = _demangle(lowered)
    if name == lowered:
        return f"&{name}"
    opening = _begin_of_parameters(name)
    parameters, called = name[opening:], name[:opening]
    if called.endswith(">"):  # only the name of a template's instance has a result
        called = called.partition(" ")[2]
    return f"static_cast<void (*){parameters}>(&{called})"


def _variable(lowered: str, source: Source) -> str:
    """Return a C++ expression for a variable; an empty text for one that no program can ask for.

    PTX also has the constants of classes, of which some have no memory on the host.
    """
    if lowered in source.expressions:
        return source.expressions[lowered].lstrip("& ")
    name = _demangle(lowered)
    last = re.escape(name.rpartition("::")[2])
    declared = re.compile(rf"\b__(?:device|constant|managed)__\b[^;(){{}}]*\b{last}\b")
    texts = (source.text, *source.headers.values())
    return name if "<" not in name and any(declared.search(text) for text in texts) else ""


def _begin_of_parameters(name: str) -> int:
    depth = 0
    for place in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[place], 0)
        if depth == 0:
            return place
    raise DeviceCodeError(f"the simulated CUDA does not understand the kernel's name {name!r}")


def _demangle(name: str) -> str:
    if not name.startswith("_Z"):  # names of types are demangled too: `f` is float
        return name
    demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    text = demangle(name.encode(), None, None, ctypes.byref(status))
    if status.value or not text:
        return name
    demangled = ctypes.string_at(text).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(text))
    return demangled.replace("(anonymous namespace)::", "")
