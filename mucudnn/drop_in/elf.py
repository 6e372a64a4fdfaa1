"""A reader of ELF files: the libraries that a file needs, its loader, its name, and its symbols."""

import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mucudnn.errors import MucudnnError
from mucudnn.input import open_without_waiting

_SHT_RELA, _SHT_DYNSYM = 4, 11
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SONAME = 0, 1, 5, 14
_DT_RPATH, _DT_RUNPATH, _DT_AUDIT, _DT_DEPAUDIT = 15, 29, 0x6FFFFEFC, 0x6FFFFEFB
_TEXTS = (_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH, _DT_AUDIT, _DT_DEPAUDIT)
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_PAGE = 4096
_PROGRAM_HEADER, _SECTION_HEADER = 56, 64  # bytes
_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_MOST_LETTERS_A_BYTE = 8  # the most letters of all names, for each byte of the file


class NotElfError(MucudnnError):
    """The file is not a 64-bit little-endian ELF file, or is cut short."""


@dataclass(frozen=True)
class Elf:
    """A program or library, as its ELF headers describe it."""

    machine: str
    interpreter: str | None  # the loader that starts a dynamically linked program
    soname: str | None
    needed: tuple[str, ...]
    exports: frozenset[str]
    imports: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()  # the symbols that its code reaches through the loader's tables
    addresses: Mapping[str, int] = field(default_factory=dict)  # offsets of the exports, as loaded
    search_path: str = ""  # RPATH and RUNPATH: folders, separated by colons
    auditors: tuple[str, ...] = ()  # libraries that the loader runs before it loads the others


def read_elf(path: Path) -> Elf:
    """Read the headers of the ELF file at `path`. Raises NotElfError, OSError."""
    with mapped(path) as data:
        return parse_elf(data, str(path))


def parse_elf(data: mmap.mmap | bytes, name: str) -> Elf:
    """Parse the headers of an ELF file from its bytes. Raises NotElfError, whose text calls it `name`."""
    if data[:4] != b"\x7fELF":
        raise NotElfError(f"{name} is not an ELF file")
    if data[4:6] != b"\x02\x01":
        raise NotElfError(f"{name} is not a 64-bit little-endian ELF file")
    try:
        return _parse(data)
    except (struct.error, IndexError, OverflowError, ValueError):
        raise NotElfError(f"{name} is cut short or damaged") from None


class _Names:
    """The texts of a file. They may overlap, but together they cannot be much longer than the file."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data = data
        self._letters_left = _MOST_LETTERS_A_BYTE * len(data)

    def text_at(self, offset: int) -> str:
        """Return the text at an offset. Raises IndexError, ValueError."""
        end = self._data.find(b"\0", offset)
        if end < 0:
            raise IndexError
        self._letters_left -= end - offset
        if self._letters_left < 0:
            raise ValueError("the names are longer than the file")
        return self._data[offset:end].decode()


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """Map a file, which may exceed the memory, and yield its bytes; a pipe has none. Raises OSError."""
    with open(path, "rb", opener=open_without_waiting) as file:
        if os.fstat(file.fileno()).st_size == 0:  # mmap refuses an empty file
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _parse(data: mmap.mmap | bytes) -> Elf:
    (machine,) = struct.unpack_from("<H", data, 18)
    program_offset, section_offset = struct.unpack_from("<QQ", data, 32)
    program_size, programs, section_size, sections = struct.unpack_from("<HHHH", data, 54)
    if (programs and program_size != _PROGRAM_HEADER) or (sections and section_size != _SECTION_HEADER):
        raise ValueError("the headers do not have the size that the format defines")
    interpreter, names = None, _Names(data)
    loads: list[tuple[int, int, int]] = []
    dynamic: list[int] = []
    end = 0
    for i in range(programs):
        at = program_offset + i * _PROGRAM_HEADER
        kind, _, offset, address, _, in_file, in_memory, _ = struct.unpack_from("<IIQQQQQQ", data, at)
        if kind == _PT_INTERP:
            interpreter = names.text_at(offset)
        elif kind == _PT_DYNAMIC:
            dynamic.append(address)
        elif kind == _PT_LOAD:
            if (address - offset) % _PAGE or address // _PAGE * _PAGE < end:
                raise ValueError("the segments overlap, or are not aligned to pages")
            loads.append((address, offset, in_file))
            end = address + in_memory
    tags = _read_tags(data, names, loads, dynamic)
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", data, section_offset + i * _SECTION_HEADER) for i in range(sections)
    ]
    addresses: dict[str, int] = {}
    imports: set[str] = set()
    symbols: list[str] = []
    relocated: set[int] = set()
    bytes_left = len(data)  # sections may overlap, but a small file must not cost as much as a large one
    for _, kind, _, _, offset, size, link, *_ in headers:
        if kind not in (_SHT_DYNSYM, _SHT_RELA):
            continue
        bytes_left -= size
        if bytes_left < 0:
            raise ValueError("the sections are larger than the file")
        content = data[offset : offset + size]
        if kind == _SHT_RELA:
            relocated |= {symbol for (symbol,) in struct.iter_unpack("<12xI8x", content)}
            continue
        strings = headers[link][4]
        for name, info, _, section, address, _ in struct.iter_unpack("<IBBHQQ", content):
            symbols.append(names.text_at(strings + name))
            is_symbol = info & 15 in (0, 1, 2, 10) and info >> 4 in (1, 2, 10)
            if section == 0:
                imports.add(symbols[-1])
            elif section != 0xFFF1 and is_symbol:  # not the name of a version
                addresses[symbols[-1]] = address
    return Elf(
        machine=_MACHINES.get(machine, f"machine {machine}"),
        interpreter=interpreter,
        soname=next((text for tag, text in tags if tag == _DT_SONAME), None),
        needed=tuple(text for tag, text in tags if tag == _DT_NEEDED),
        exports=frozenset(addresses),
        imports=frozenset(imports - {""}),
        calls=frozenset(symbols[i] for i in relocated if 0 < i < len(symbols)),
        addresses=addresses,
        search_path=":".join(text for tag, text in tags if tag in (_DT_RPATH, _DT_RUNPATH)),
        auditors=tuple(text for tag, text in tags if tag in (_DT_AUDIT, _DT_DEPAUDIT)),
    )


def _read_tags(
    data: mmap.mmap | bytes, names: _Names, loads: list[tuple[int, int, int]], dynamic: list[int]
) -> list[tuple[int, str]]:
    """Return the (tag, text) entries of the dynamic section at the address that the loader uses.

    Section headers can describe another section. Raises ValueError if the loader might see other entries.
    """

    def place(address: int, length: int = 1) -> int:
        for first, offset, size in loads:
            if first <= address and address + length <= first + size:
                return address - first + offset
        raise ValueError("the file has no such address")

    if not dynamic:
        return []
    (address,) = dynamic
    entries: list[tuple[int, int]] = []
    while not entries or entries[-1][0] != _DT_NULL:
        entries.append(struct.unpack_from("<QQ", data, place(address, 16)))
        address += 16
    strings = dict(entries).get(_DT_STRTAB)
    if strings is None:
        return []
    return [(tag, names.text_at(place(strings + value))) for tag, value in entries if tag in _TEXTS]
