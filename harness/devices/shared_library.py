"""The symbols of a shared library, read from its file. Nothing is loaded."""

from __future__ import annotations

import struct
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_DYNAMIC_SYMBOLS = 11  # SHT_DYNSYM of elf.h
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr


def has_symbol_with(library: Path, part: bytes) -> bool:
    """Return whether a dynamic symbol, defined or undefined, has `part` in its name.

    Raise OSError, and ValueError if the file is no library of this kind.
    """
    with library.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or not header.startswith(_MAGIC):
            raise ValueError("not a 64-bit ELF file")
        (start,) = struct.unpack_from("<Q", header, 0x28)
        size, count = struct.unpack_from("<HH", header, 0x3A)
        file.seek(start)
        table = file.read(size * count)
        if size < _SECTION.size or len(table) < size * count:
            raise ValueError("it has no table of sections")
        sections = [_SECTION.unpack_from(table, number * size) for number in range(count)]
        for section in sections:
            if section[1] == _DYNAMIC_SYMBOLS and section[6] < count:
                _, _, _, _, offset, length, *_ = sections[section[6]]  # the section with the names of these symbols
                file.seek(offset)
                return part in file.read(length)
    raise ValueError("it has no dynamic symbols")
