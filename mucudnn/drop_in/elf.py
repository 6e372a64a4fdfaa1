"""Reading of ELF files: the libraries that a file needs, its loader, its name, and its exported symbols."""

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mucudnn.errors import MucudnnError

_SHT_DYNAMIC, _SHT_DYNSYM = 6, 11
_DT_NEEDED, _DT_SONAME = 1, 14
_DT_AUDIT, _DT_DEPAUDIT = 0x6FFFFEFC, 0x6FFFFEFB
_PT_INTERP = 3
_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}


class NotElfError(MucudnnError):
    """The file is no 64-bit little-endian ELF file, or is cut short."""


@dataclass(frozen=True)
class Elf:
    """One program or library, as its ELF headers describe it."""

    machine: str
    interpreter: str | None  # the loader that starts a dynamically linked program
    soname: str | None
    needed: tuple[str, ...]
    exports: frozenset[str]
    auditors: tuple[str, ...] = ()  # libraries that the loader runs before it loads the others


def read_elf(path: Path) -> Elf:
    """Read the headers of the ELF file at `path`. Raises NotElfError, OSError."""
    with mapped(path) as data:
        if data[:4] != b"\x7fELF":
            raise NotElfError(f"{path} is no ELF file")
        if data[4:6] != b"\x02\x01":
            raise NotElfError(f"{path} is not a 64-bit little-endian ELF file")
        try:
            return _parse(data)
        except (struct.error, IndexError, OverflowError, ValueError):
            raise NotElfError(f"{path} is cut short or damaged") from None


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """Map a file, which may be larger than the memory, and yield its bytes. Raises OSError."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:  # mmap refuses an empty file
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _parse(data: mmap.mmap | bytes) -> Elf:
    (machine,) = struct.unpack_from("<H", data, 18)
    program_offset, section_offset = struct.unpack_from("<QQ", data, 32)
    program_size, programs, section_size, sections = struct.unpack_from("<HHHH", data, 54)
    interpreter = None
    for i in range(programs):
        kind, _, offset = struct.unpack_from("<IIQ", data, program_offset + i * program_size)
        if kind == _PT_INTERP:
            interpreter = _read_string(data, offset)
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", data, section_offset + i * section_size) for i in range(sections)
    ]
    tags: list[tuple[int, str]] = []
    exports: set[str] = set()
    for _, kind, _, _, offset, size, link, *_ in headers:
        if kind not in (_SHT_DYNAMIC, _SHT_DYNSYM):
            continue
        strings = headers[link][4]
        if kind == _SHT_DYNAMIC:
            for tag, value in struct.iter_unpack("<QQ", data[offset : offset + size]):
                if tag in (_DT_NEEDED, _DT_SONAME, _DT_AUDIT, _DT_DEPAUDIT):
                    tags.append((tag, _read_string(data, strings + value)))
        else:
            for name, info, _, section, _, _ in struct.iter_unpack("<IBBHQQ", data[offset : offset + size]):
                is_symbol = info & 15 in (0, 1, 2, 10) and info >> 4 in (1, 2, 10)
                if section not in (0, 0xFFF1) and is_symbol:  # neither undefined nor the name of a version
                    exports.add(_read_string(data, strings + name))
    return Elf(
        machine=_MACHINES.get(machine, f"machine {machine}"),
        interpreter=interpreter,
        soname=next((text for tag, text in tags if tag == _DT_SONAME), None),
        needed=tuple(text for tag, text in tags if tag == _DT_NEEDED),
        exports=frozenset(exports),
        auditors=tuple(text for tag, text in tags if tag in (_DT_AUDIT, _DT_DEPAUDIT)),
    )


def _read_string(data: mmap.mmap | bytes, offset: int) -> str:
    end = data.find(b"\0", offset)
    if end < 0:
        raise IndexError
    return data[offset:end].decode()
