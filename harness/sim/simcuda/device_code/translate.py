"""Makes C++ for the host of preprocessed device code.

The front header (``include/simcuda_front.h``) defines almost all of CUDA's names. What is left is syntax that no header
can define: shared memory, inline assembly, and launches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

#: Comments are gone. Longer operators come first.
_TOKEN = re.compile(
    r"""
    (?P<line>^[ \t]*\#[^\n]*$)
    | (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
    | (?P<text>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    | (?P<word>[A-Za-z_]\w*)
    | (?P<number>\.?\d(?:[eEpP][+-]|[\w.']|(?<=\d)')*)
    | (?P<space>\s+)
    | (?P<sign><<<|>>>|.)
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)

#: A line with which the preprocessor says where what follows is from: a 3 stands for a header of the system.
_MARKER = re.compile(r'\s*#\s*(?:line\s+)?\d+\s+"(?:[^"\\]|\\.)*"([ \d]*)$')

_SHARED = "simcuda_shared"
_ASSEMBLY = ("asm", "__asm__", "__asm")
_OPENING = {"(": ")", "[": "]", "{": "}"}

#: The storage of arrays whose size a launch gives, which all kernels of a module have in common.
DYNAMIC = "simcuda_dynamic_shared"

#: Inline assembly that is known, without spaces: what calculates its outputs, given the operands' texts.
_KNOWN_ASSEMBLY = {
    "{cvt.rn.f16.f32%0,%1;}": "simcuda_ptx::store({0}, simcuda_ptx::half_of({1}))",
    "cvt.rn.f16.f32%0,%1;": "simcuda_ptx::store({0}, simcuda_ptx::half_of({1}))",
    "{cvt.f32.f16%0,%1;}": "simcuda_ptx::store({0}, simcuda_ptx::float_of_half({1}))",
    "cvt.f32.f16%0,%1;": "simcuda_ptx::store({0}, simcuda_ptx::float_of_half({1}))",
    "{cvt.rn.bf16.f32%0,%1;}": "simcuda_ptx::store({0}, simcuda_ptx::bfloat16_of({1}))",
    "cvt.rn.bf16.f32%0,%1;": "simcuda_ptx::store({0}, simcuda_ptx::bfloat16_of({1}))",
    "{mov.b32%0,{0,%1};}": "simcuda_ptx::store({0}, simcuda_ptx::float_of_bfloat16({1}))",
    "mov.u32%0,%laneid;": "simcuda_ptx::store({0}, simcuda_device::lane())",
    "mov.u32%0,%%laneid;": "simcuda_ptx::store({0}, simcuda_device::lane())",
    "mov.u64%0,%clock64;": "simcuda_ptx::store({0}, clock64())",
    "mov.u64%0,%%clock64;": "simcuda_ptx::store({0}, clock64())",
    "trap;": "__trap()",
    "": "__threadfence()",
}


class TranslationError(ValueError):
    """Device code that cannot be made C++ for the host: its place, and why."""


@dataclass(slots=True)
class _Token:
    kind: str
    text: str


def _tokens(source: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(source):
        yield _Token(found.lastgroup or "", found.group())


def translate(source: str, refused: list[str], *, launches: bool = False) -> str:
    """Return C++ for the host. `launches`: whether the source may launch kernels, as code for the host does.

    Inline assembly that cannot run is added to `refused`. A thread that reaches it ends its kernel.

    Raise TranslationError.
    """
    tokens = [_Token("text", token.text) if token.kind == "mark" else token for token in _tokens(source)]
    place, in_system = 0, False
    while place < len(tokens):
        token = tokens[place]
        if token.kind == "line":
            marker = _MARKER.match(token.text)
            in_system = "3" in marker[1].split() if marker else in_system
        elif in_system:
            pass
        elif token.kind == "word" and token.text == _SHARED:
            _translate_shared(tokens, place)
        elif token.text == "__noinline__" and _text_before(tokens, place) not in ("(", ","):
            token.text = "__attribute__((noinline))"
        elif token.kind == "word" and token.text in _ASSEMBLY:
            _translate_assembly(tokens, place, refused)
        elif token.text == "<<<" and _is_launch(tokens, place):
            if not launches:
                raise TranslationError("the simulated CUDA has no kernels that launch kernels (dynamic parallelism)")
            _translate_launch(tokens, place)
            place -= 1  # the arguments may have launches too
        place += 1
    return "".join(token.text for token in tokens)


def _text_before(tokens: list[_Token], place: int) -> str:
    before = _significant(tokens, place - 1, -1)
    return "" if before is None else tokens[before].text


def _is_launch(tokens: list[_Token], place: int) -> bool:
    before = _significant(tokens, place - 1, -1)
    return before is not None and (tokens[before].kind == "word" or tokens[before].text in (">", ")", ">>>"))


def _significant(tokens: list[_Token], place: int, step: int) -> int | None:
    """Return the place of the next token that is neither space nor a line of the preprocessor."""
    while 0 <= place < len(tokens):
        if tokens[place].kind not in ("space", "line"):
            return place
        place += step
    return None


def _closing(tokens: list[_Token], place: int) -> int:
    """Return the place of the bracket that closes the one at `place`."""
    waiting: list[str] = []
    for at in range(place, len(tokens)):
        text = tokens[at].text
        if tokens[at].kind != "sign":
            continue
        if text in _OPENING:
            waiting.append(_OPENING[text])
        elif waiting and text == waiting[-1]:
            waiting.pop()
            if not waiting:
                return at
    raise TranslationError(
        f"the simulated CUDA does not understand the code: a bracket {tokens[place].text!r} is not closed"
    )


def _translate_shared(tokens: list[_Token], place: int) -> None:
    """Give a variable in shared memory its storage.

    Blocks of a kernel run one after the other, and a block is one thread of the host: shared memory is a variable of
    that thread. An array without a size is the one that all kernels of the module share.
    """
    begin = place
    while begin > 0 and not (tokens[begin - 1].kind == "sign" and tokens[begin - 1].text in ";{}"):
        begin -= 1
    end = place
    while end < len(tokens) and not (tokens[end].kind == "sign" and tokens[end].text in ";="):
        end = _closing(tokens, end) + 1 if tokens[end].text in _OPENING and tokens[end].kind == "sign" else end + 1
    words = [token for token in tokens[begin:end] if token.kind == "word"]
    if not any(token.text == "extern" for token in words):
        tokens[place].text = "thread_local"
        return
    at = next((at for at in range(place, end) if tokens[at].text == "[" and tokens[at].kind == "sign"), None)
    name = _significant(tokens, at - 1, -1) if at is not None else None
    if at is None or name is None:
        raise TranslationError("the simulated CUDA has `extern __shared__` for arrays only")
    _drop_attributes(tokens, begin, end)
    for token in words:
        if token.text == "extern":
            token.text = ""
    if _in_function(tokens, begin):
        tokens[place].text = ""
        kind, bounds = _text(tokens[begin:name]).strip(), _text(tokens[at:end])
        tokens[name].text = f"(&{tokens[name].text})"
        tokens[end - 1].text += f" = reinterpret_cast<{kind} (&){bounds}>({DYNAMIC})"
    else:
        tokens[place].text = "extern __thread"
        tokens[end - 1].text += f' __asm__("{DYNAMIC}")'


def _drop_attributes(tokens: list[_Token], begin: int, end: int) -> None:
    for place in range(begin, end):
        if tokens[place].text in ("__attribute__", "alignas"):
            opening = _significant(tokens, place + 1, 1)
            last = _closing(tokens, opening) if opening is not None else place
            for token in tokens[place : last + 1]:
                token.kind, token.text = "space", " "


def _in_function(tokens: list[_Token], place: int) -> bool:
    """Return whether `place` is in a block, and not only in namespaces."""
    depth = 0
    for at in range(place - 1, -1, -1):
        if tokens[at].kind != "sign" or tokens[at].text not in "{}":
            continue
        depth += 1 if tokens[at].text == "{" else -1
        if depth <= 0:
            continue
        depth = 0
        before = [tokens[other] for other in range(max(0, at - 8), at) if tokens[other].kind not in ("space", "line")]
        if not any(token.text == "namespace" for token in before) and before[-1:] and before[-1].text != '"C"':
            return True
    return False


def _translate_assembly(tokens: list[_Token], place: int, refused: list[str]) -> None:
    """Replace inline assembly by a call, or by one that ends the kernel."""
    opening = _significant(tokens, place + 1, 1)
    while opening is not None and tokens[opening].text in ("volatile", "__volatile__", "goto", "inline"):
        opening = _significant(tokens, opening + 1, 1)
    if opening is None or tokens[opening].text != "(":
        return
    closing = _closing(tokens, opening)
    inner = tokens[opening + 1 : closing]
    parts = _split(inner, ":")
    strings = [token for token in parts[0] if token.kind not in ("space", "line")]
    if any(token.kind not in ("text", "raw") for token in strings):
        return
    after = _significant(tokens, closing + 1, 1)
    words = "".join(token.text.strip('"') for token in strings)
    if after is None or tokens[after].text != ";" or _is_label(tokens, place, words):
        return  # the name of a declaration
    program = re.sub(r"\\[nrt]|\s", "", words)
    operands = [_operand(operand) for part in parts[1:3] for operand in _split(part, ",") if _text(operand).strip()]
    known = _KNOWN_ASSEMBLY.get(program)
    if known is not None and known.count("{") <= len(operands):
        made = known.format(*operands)
    else:
        first = re.sub(r'\\.|[{}"]', " ", words).strip()
        refused.append(first)
        made = f'simcuda_device::refuse("inline PTX is not supported: {first[:60]}")'
    tokens[place].text = made
    for token in tokens[place + 1 : closing + 1]:
        token.kind, token.text = "space", "\n" * token.text.count("\n") if token.kind == "space" else ""


def _is_label(tokens: list[_Token], place: int, words: str) -> bool:
    """Return whether ``asm`` at `place` gives a declaration its name, instead of being a statement."""
    before = _text_before(tokens, place)
    if before == ")":  # a declaration's parameters, or the condition of a statement
        return re.fullmatch(r"[\w.$]+", words) is not None
    return before not in ("", ";", "{", "}", ":", "else", "do")


def _text(tokens: list[_Token]) -> str:
    return "".join(token.text for token in tokens)


def _operand(tokens: list[_Token]) -> str:
    """Return the expression of an operand, which is in brackets after its constraint."""
    text = _text(tokens)
    return text[text.index("(") :] if "(" in text else text


def _split(tokens: list[_Token], sign: str) -> list[list[_Token]]:
    """Split at a sign that is in no brackets."""
    parts: list[list[_Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.kind == "sign" and token.text in _OPENING:
            depth += 1
        elif token.kind == "sign" and token.text in _OPENING.values():
            depth -= 1
        if depth == 0 and token.kind == "sign" and token.text == sign:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _translate_launch(tokens: list[_Token], place: int) -> None:
    """Replace ``kernel<<<grid, block>>>(arguments)`` by a call of a template (``include/simcuda_launch.h``)."""
    end = _end_of_configuration(tokens, place)
    opening = _significant(tokens, end + 1, 1)
    if opening is None or tokens[opening].text != "(":
        raise TranslationError("the simulated CUDA does not understand a launch: no arguments follow `>>>`")
    closing = _closing(tokens, opening)
    begin = _begin_of_name(tokens, place)
    name = re.sub(r"\s+", " ", _text(tokens[begin:place])).strip()
    configuration = _text(tokens[place + 1 : end]).strip()
    inner = _Token("space", "")
    arguments = tokens[opening + 1 : closing]
    shown = name.replace("\\", "").replace('"', "")
    head = (
        f'simcuda_device::launch("{shown}", simcuda_device::Configuration({configuration}), '
        f"[=](auto&... simcuda_arguments) {{ {name}(simcuda_arguments...); }}"
    )
    if any(token.kind not in ("space", "line") for token in arguments):
        head += ", "
    tokens[begin : closing + 1] = [_Token("word", head), inner, *arguments, _Token("sign", ")")]


def _end_of_configuration(tokens: list[_Token], place: int) -> int:
    depth = 0
    for at in range(place + 1, len(tokens)):
        text = tokens[at].text
        if tokens[at].kind != "sign":
            continue
        depth += (text in _OPENING) - (text in _OPENING.values())
        if text == ">>>" and depth == 0:
            return at
    raise TranslationError("the simulated CUDA does not understand a launch: there is no `>>>`")


def _begin_of_name(tokens: list[_Token], place: int) -> int:
    """Return the place where the kernel's name before ``<<<`` begins: ``space::name<arguments>``."""
    at = _significant(tokens, place - 1, -1)
    while at is not None:
        if tokens[at].text in (">", ">>>"):
            at = _before_arguments(tokens, at)
        if tokens[at].text == ")":
            return _opening(tokens, at)
        before = _significant(tokens, at - 1, -1)
        if before is not None and tokens[before].text == "template":
            before = _significant(tokens, before - 1, -1)
        if before is None or tokens[before].text != ":":
            return at
        second = _significant(tokens, before - 1, -1)
        if second is None or tokens[second].text != ":":
            return at
        left = _significant(tokens, second - 1, -1)
        if left is None or (tokens[left].kind != "word" and tokens[left].text not in (">", ">>>")):
            return second  # ::name
        if tokens[left].text in ("return", "else", "do", "case"):
            return second
        at = left
    raise TranslationError("the simulated CUDA does not understand a launch: no name precedes `<<<`")


def _before_arguments(tokens: list[_Token], place: int) -> int:
    """Return the place of the name before the template's arguments that end at `place`."""
    depth = 0
    for at in range(place, -1, -1):
        if tokens[at].kind != "sign":
            continue
        depth += {">": 1, ">>>": 3, "<": -1}.get(tokens[at].text, 0)
        if depth == 0:
            name = _significant(tokens, at - 1, -1)
            if name is not None:
                return name
            break
    raise TranslationError("the simulated CUDA does not understand a launch: no name precedes the template's arguments")


def _opening(tokens: list[_Token], place: int) -> int:
    depth = 0
    for at in range(place, -1, -1):
        if tokens[at].kind == "sign":
            depth += {")": 1, "(": -1}.get(tokens[at].text, 0)
            if depth == 0:
                return at
    raise TranslationError("the simulated CUDA does not understand the code: a bracket ')' has no opening one")
