"""Buffers between inaccessible pages, so that an overrun ends the process at once."""

import ctypes
import mmap

import numpy as np
import numpy.typing as npt

PAGE = mmap.PAGESIZE
CANARY = 0xC5  # fills the rest of the buffer's pages
_NO_ACCESS, _READ_WRITE, _PRIVATE_ANONYMOUS = 0, 3, 0x22

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class GuardedBuffer:
    """A buffer directly before an inaccessible page or, unless `at_end`, directly after one."""

    def __init__(self, size: int, *, alignment: int = 1, at_end: bool = True) -> None:
        usable = max(1, -(-size // PAGE)) * PAGE
        self._whole = usable + 2 * PAGE
        base = _libc.mmap(None, self._whole, _NO_ACCESS, _PRIVATE_ANONYMOUS, -1, 0)
        assert base not in (None, ctypes.c_void_p(-1).value), f"no memory for {size} bytes"
        self._base: int = base
        assert _libc.mprotect(base + PAGE, usable, _READ_WRITE) == 0
        start = (usable - size) // alignment * alignment if at_end else 0
        self.size = size
        self.address: int = base + PAGE + start
        page = np.ctypeslib.as_array((ctypes.c_uint8 * usable).from_address(base + PAGE))
        self.bytes: npt.NDArray[np.uint8] = page[start : start + size]
        self._margins = page[:start], page[start + size :]
        for margin in self._margins:
            margin[:] = CANARY

    def is_damaged(self) -> bool:
        """Return whether a call has written outside the buffer, within its pages."""
        return any(bool((margin != CANARY).any()) for margin in self._margins)

    def release(self) -> None:
        """Free the memory. Its bytes must not be read after this."""
        if self._base:
            _libc.munmap(self._base, self._whole)
            self._base = 0
