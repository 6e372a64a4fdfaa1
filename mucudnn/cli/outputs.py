"""Files that commands write. An existing file is replaced only by a file of the same kind."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mucudnn.cli.options import parse_path
from mucudnn.errors import UsageError
from mucudnn.input import open_without_waiting
from mucudnn.output.files import NewFile
from mucudnn.report import check_installed

_READ = 65536  # the bytes at the beginning of a file that show its kind


class Kind(NamedTuple):
    """A kind of file, recognised by a file's first bytes. Optional packages draw some."""

    name: str
    recognise: Callable[[bytes], bool]
    is_drawn: bool = False

    def parse(self, text: str) -> Path:
        """Parse the path of such a file, to write it. Raises UsageError, MissingExtraError.

        The checks come before the measurements, so that no long run ends with an error.
        """
        file = NewFile(parse_path(text))
        if file.is_dir():
            raise UsageError(f"'{text}' is a folder, not a file to write")
        if not file.parent.is_dir():
            raise UsageError(f"'{text}' cannot be written: there is no folder '{file.parent}'")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise UsageError(f"'{text}' cannot be written: the file, or its folder, is read-only")
        if self.is_drawn:
            check_installed()
        self._check(file)
        return file

    def _check(self, file: Path) -> None:
        """Raise UsageError for a file of another kind. An empty file and a device pass as any kind."""
        if not file.is_file():
            return
        try:
            with open(file, "rb", opener=open_without_waiting) as opened:
                start = opened.read(_READ)
        except OSError as error:
            raise UsageError(
                f"'{file}' cannot be read, to see whether it is a {self.name}: {error.strerror}"
            ) from None
        if start and not self.recognise(start):
            raise UsageError(f"'{file}' exists but is not a {self.name}: give another name, or remove it")


PLAN = Kind("plan", lambda start: start.startswith(b"mucudnn plan "))
MEMORY_PLAN = Kind("memory plan", lambda start: b'"kind": "mucudnn memory plan"' in start)
PAGE = Kind("page of mucudnn", lambda start: b"mucudnn</title>" in start, is_drawn=True)
ROWS = Kind("export of a cache", lambda start: start.startswith(b'{"kind": "header"'))
CONVOLUTIONS = Kind(
    "record of convolutions", lambda start: start.startswith(b"# Convolutions that a program")
)
DEVICE = Kind("description of a device", lambda start: b'"deviceName"' in start)
