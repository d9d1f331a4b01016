"""What the PTX of a module says about its kernels and variables. PTX ISA, "State Spaces, Types, and Variables"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?([^{;]*)\{")
_FUNCTION = re.compile(r"\.func\s+(?:\([^)]*\)\s*)?([\w$]+)\s*(?:\([^)]*\))?[^{;]*\{")
_SHARED = re.compile(r"\.shared\s+(?:\.align\s+\d+\s+)?\.[bsuf](\d+)\s+([\w$]+)(?:\[(\d+)\])?\s*;")
_VARIABLE = re.compile(
    r"^\s*(?:\.visible\s+|\.weak\s+)*\.(?:global|const)\s+[^;={]*?\.[bsuf]\d+\s+([\w$]+)", re.MULTILINE
)
_THREADS = re.compile(r"\.maxntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")
_WORD = re.compile(r"[\w$]+")
_ASSEMBLY = re.compile(r"// begin inline asm\n(.*?)// end inline asm", re.DOTALL)

#: Instructions that no thread of the host can run, and the names of what they do.
_UNSUPPORTED = (
    (re.compile(r"\b(?:wmma|mma|wgmma|tcgen05)\."), "matrix operations of tensor cores"),
    (re.compile(r"%envreg"), "cooperative groups across the grid"),
    (re.compile(r"\b(?:barrier|mapa)\.cluster\b"), "clusters of blocks"),
    (re.compile(r"\b(?:tex|tld4|suld|sust|txq)\."), "textures and surfaces"),
    (re.compile(r"\bcp\.async|\bmbarrier\."), "asynchronous copies within a kernel"),
    (re.compile(r"\bcudaLaunchDevice|\bcudaGetParameterBuffer"), "a kernel that launches kernels"),
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: its lowered name, the most threads of a block, and the static bytes of shared memory.

    `unsupported`: what in it cannot run on the host; empty if nothing is known. `assembly`: its inline assembly.
    `written`: by parameter, a bit for each of its first 64 words that is an address to which the kernel may write.
    """

    name: str
    threads: int
    shared: int
    unsupported: str
    assembly: tuple[str, ...]
    written: tuple[int, ...]


def find_variables(ptx: str) -> list[str]:
    """Return the lowered names of a module's variables, without those that the compiler has made."""
    outside = "".join(_outside(ptx))
    made = ("$", "__unnamed", "_ZZ", "_ZT", "_ZG", "_ZSt", "_ZN4cuda", "_ZN34")
    return [name for name in dict.fromkeys(_VARIABLE.findall(outside)) if not name.startswith(made)]


def find_kernels(ptx: str) -> list[Kernel]:
    """Return the kernels of a module."""
    functions = {found[1]: _body(ptx, found.end() - 1) for found in _FUNCTION.finditer(ptx)}
    shared = {name: int(bits) // 8 * int(count or 1) for bits, name, count in _SHARED.findall("".join(_outside(ptx)))}
    return [_kernel(found, ptx, functions, shared) for found in _ENTRY.finditer(ptx)]


def _kernel(found: re.Match[str], ptx: str, functions: dict[str, str], shared: dict[str, int]) -> Kernel:
    body = _body(ptx, found.end() - 1)
    texts, waiting = {found[1]: body}, [body]
    while waiting:
        for name in set(_WORD.findall(waiting.pop())) & functions.keys() - texts.keys():
            texts[name] = functions[name]
            waiting.append(functions[name])
    whole = "\n".join(texts.values())
    words = set(_WORD.findall(whole))
    own = sum(int(bits) // 8 * int(count or 1) for bits, _, count in _SHARED.findall(whole))
    threads = _THREADS.search(found[3])
    most = 1024
    if threads:
        most = int(threads[1]) * int(threads[2] or 1) * int(threads[3] or 1)
    parameters = len([part for part in (found[2] or "").split(",") if part.strip()])
    return Kernel(
        name=found[1],
        threads=most,
        shared=own + sum(size for name, size in shared.items() if name in words),
        unsupported=", ".join(what for pattern, what in _UNSUPPORTED if pattern.search(whole)),
        assembly=tuple(_ASSEMBLY.findall(whole)),
        written=_written(found[1], body, parameters, calls=len(texts) > 1),
    )


def _body(ptx: str, opening: int) -> str:
    """Return the text between the bracket at `opening` and the one that closes it."""
    depth = 0
    for found in re.compile(r"[{}]").finditer(ptx, opening):
        depth += 1 if found.group() == "{" else -1
        if depth == 0:
            return ptx[opening + 1 : found.start()]
    return ptx[opening + 1 :]


def _outside(ptx: str) -> Iterator[str]:
    """Yield the text that is in no function."""
    place = 0
    for found in re.finditer(r"\.(?:entry|func)\b", ptx):
        if found.start() < place:
            continue
        yield ptx[place : found.start()]
        opening, end = ptx.find("{", found.start()), ptx.find(";", found.start())
        declared = opening < 0 or 0 <= end < opening
        place = end + 1 if declared else opening + len(_body(ptx, opening)) + 2
    yield ptx[place:]


_INSTRUCTION = re.compile(r"(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+([^;]*);")
_REGISTER = re.compile(r"%\w+")


#: A word of a parameter: the parameter, and the word's number; None for any word.
_Origin = tuple[int, int | None]
_ALL = (1 << 64) - 1


def _written(name: str, body: str, count: int, *, calls: bool) -> tuple[int, ...]:
    """Return the words of the parameters from which addresses are calculated that are stored to, or leave the kernel.

    A value that is loaded from memory comes from no parameter.
    """
    if calls:
        return (_ALL,) * count
    parameter = re.compile(rf"{re.escape(name)}_param_(\d+)(?:\+(\d+))?")
    origins: dict[str, set[_Origin]] = {}

    def origins_of(part: str) -> set[_Origin]:
        found: set[_Origin] = {(int(number), int(offset or 0) // 8) for number, offset in parameter.findall(part)}
        for register in _REGISTER.findall(part):
            found |= origins.get(register, set())
        return found

    instructions = [found.groups() for found in _INSTRUCTION.finditer(re.sub(r"//[^\n]*", "", body))]
    written: set[_Origin] = set()
    changed = True
    while changed:
        changed = False
        for operation, operands in instructions:
            first, _, rest = operands.partition(",")
            if operation.startswith(("st.", "red.", "atom.", "call")):
                written |= origins_of(operands)  # an address that is stored may be used anywhere
                continue
            if operation.startswith(("ld.", "ldu.")) and not operation.startswith("ld.param"):
                continue
            sources = origins_of(rest)
            if operation.startswith("mov") and parameter.search(rest):  # the parameter's own address
                sources = {(number, None) for number, _ in sources}
            for register in _REGISTER.findall(first):
                known = origins.setdefault(register, set())
                if not sources <= known:
                    known |= sources
                    changed = True
    masks = [0] * count
    for number, word in written:
        if number < count:
            masks[number] |= _ALL if word is None else 1 << min(word, 63)
    return tuple(masks)
