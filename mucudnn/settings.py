"""The environment variables that this version reads, in one table. The command line overrides them."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mucudnn.errors import UsageError
from mucudnn.problems.policies import parse_policy
from mucudnn.sizes import parse_limit


def _parse_path(text: str) -> str:
    if not text:
        raise UsageError("a path cannot be empty")
    return text


def _parse_library(text: str) -> str:
    if text != "host" and not os.path.isabs(text):
        raise UsageError(f"'{text}' is neither 'host' nor the absolute path of a library")
    return text


def _parse_one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise UsageError(f"'{text}' is not one of: {', '.join(names)}")
        return text

    return parse


def parse_threads(text: str) -> int:
    """Return the number of threads that a text gives, 1 to 1024. Raises UsageError."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1024:
        raise UsageError(f"'{text}' is not a number of threads from 1 to 1024")
    return int(text)


@dataclass(frozen=True)
class Setting:
    """One environment variable: its meaning, the parser of its text, and its default."""

    variable: str
    meaning: str
    parse: Callable[[str], Any]
    default: Any

    def read(self) -> Any:
        """Return the variable's value, or the default if it is unset or empty.

        Raises UsageError that names the variable.
        """
        text = os.environ.get(self.variable)
        if not text:
            return self.default
        try:
            return self.parse(text)
        except UsageError as error:
            raise UsageError(f"{self.variable}: {error}") from None


WORKSPACE_LIMIT = Setting(
    "MUCUDNN_WORKSPACE_LIMIT", "the most workspace that one kernel may use", parse_limit, 64 * 2**20
)
BATCH_POLICY = Setting("MUCUDNN_BATCH_POLICY", "micro-batch sizes to measure", parse_policy, "power_of_two")
CACHE = Setting("MUCUDNN_CACHE", "file that keeps the measurements", _parse_path, None)
LIBRARY = Setting("MUCUDNN_LIBRARY", "library to compute with: a path, or 'host'", _parse_library, None)
THREADS = Setting("MUCUDNN_THREADS", "threads of the host engine", parse_threads, 1)
MODE = Setting(
    "MUCUDNN_MODE",
    "what the drop-in does with calls: off (passes them on), record, plan or online",
    _parse_one_of("off", "record", "plan", "online"),
    "off",
)
PLAN = Setting("MUCUDNN_PLAN", "plan that the drop-in follows", _parse_path, None)
RECORD = Setting("MUCUDNN_RECORD", "file that the drop-in records convolutions in", _parse_path, None)
NUMERICS = Setting(
    "MUCUDNN_NUMERICS",
    "caller, or strict: the drop-in takes neither FFT nor Winograd",
    _parse_one_of("caller", "strict"),
    "caller",
)
LOG = Setting(
    "MUCUDNN_LOG",
    "messages under `mucudnn run`: off, warning, info or debug",
    _parse_one_of("off", "warning", "info", "debug"),
    "warning",
)

# The drop-in reads all these variables, too: native/core/options.cpp.
SETTINGS = (
    WORKSPACE_LIMIT, BATCH_POLICY, CACHE, LIBRARY, THREADS, MODE, PLAN, RECORD, NUMERICS, LOG,
)  # fmt: skip
