"""Claims, by which benchmark programs that run at the same time share their cases: one measures each case."""

from __future__ import annotations

import fcntl
import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Claims:
    """Claims of cases, among the programs that write to one output file.

    A claim is a lock on one byte of a file that they share. The system releases it when the program ends,
    however it ends. A program has one claim at a time.
    """

    def __init__(self, output: Path) -> None:
        name = hashlib.sha256(str(output.resolve()).encode()).hexdigest()[:16]
        self._path = Path(tempfile.gettempdir()) / f"mucudnn-bench-{name}.claims"

    @contextmanager
    def claim(self, case: object) -> Iterator[bool]:
        """Claim a case within the block, or give False if another program has it."""
        digest = hashlib.sha256(str(case).encode()).digest()
        byte = int.from_bytes(digest[:7], "big")  # two cases share a byte once in 10^14
        with self._path.open("ab") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except OSError:
                yield False
            else:
                yield True
