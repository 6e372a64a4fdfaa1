"""The graph API (cudnnBackend*) through ctypes, of the host engine or of NVIDIA's library."""

import ctypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

HEADER = Path(__file__).parents[2] / "native" / "abi" / "cudnn_backend.h"
# Every constant of the header, by its name without the prefix CUDNN_.
CONSTANTS = {
    name: int(value)
    for name, value in re.findall(r"^  CUDNN_(\w+) = (\d+)", HEADER.read_text(), re.MULTILINE)
}
ELEMENTS: Mapping[str, type] = {
    "HANDLE": ctypes.c_void_p,
    "BOOLEAN": ctypes.c_bool,
    "INT64": ctypes.c_int64,
    "FLOAT": ctypes.c_float,
    "DOUBLE": ctypes.c_double,
    "VOID_PTR": ctypes.c_void_p,
    "BACKEND_DESCRIPTOR": ctypes.c_void_p,
    "INT32": ctypes.c_int32,
    "CHAR": ctypes.c_char,
}  # all other types are enumerations


def ctype_of(type_: str) -> type:
    return ELEMENTS.get(type_, ctypes.c_int)


class Library:
    def __init__(self, path: str) -> None:
        self.dll = ctypes.CDLL(path)

    def last_error(self) -> str:
        text = ctypes.create_string_buffer(2048)
        self.dll.cudnnGetLastErrorString(text, ctypes.c_size_t(len(text)))
        return text.value.decode()

    def create(self, type_: str | int) -> tuple[int, ctypes.c_void_p]:
        pointer = ctypes.c_void_p()
        number = CONSTANTS[f"BACKEND_{type_}_DESCRIPTOR"] if isinstance(type_, str) else type_
        return self.dll.cudnnBackendCreateDescriptor(number, ctypes.byref(pointer)), pointer

    def set(
        self,
        descriptor: ctypes.c_void_p,
        name: str | int,
        type_: str,
        values: Sequence[object] | None,
        count: int | None = None,
    ) -> int:
        number = CONSTANTS[f"ATTR_{name}"] if isinstance(name, str) else name
        array = None if values is None else (ctype_of(type_) * max(len(values), 1))(*values)
        element_count = len(values or ()) if count is None else count
        status: int = self.dll.cudnnBackendSetAttribute(
            descriptor, number, CONSTANTS[f"TYPE_{type_}"], ctypes.c_int64(element_count), array
        )
        return status

    def get(
        self,
        descriptor: ctypes.c_void_p,
        name: str | int,
        type_: str,
        requested: int,
        room: int | None = None,
    ) -> tuple[int, int, list[object]]:
        """Call GetAttribute and return (status, count, values). Values that cuDNN does not write stay -7.

        `room` is the length of the array that is passed, by default `requested`. With 0 no array is passed.
        """
        number = CONSTANTS[f"ATTR_{name}"] if isinstance(name, str) else name
        size = max(requested, 0) if room is None else room
        array = (ctype_of(type_) * size)() if size else None
        count = ctypes.c_int64(-7)
        status = self.dll.cudnnBackendGetAttribute(
            descriptor,
            number,
            CONSTANTS[f"TYPE_{type_}"],
            ctypes.c_int64(requested),
            ctypes.byref(count),
            array,
        )
        return status, count.value, list(array or ())[: max(count.value, 0)]

    def finalize(self, descriptor: ctypes.c_void_p) -> int:
        status: int = self.dll.cudnnBackendFinalize(descriptor)
        return status
