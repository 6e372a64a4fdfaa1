"""The environment variables that this version reads. The command line overrides them.

The table of the settings is in native/core/options.cpp, because the drop-in reads it too.
"""

import os
from dataclasses import dataclass
from typing import Any

from mucudnn import _native
from mucudnn.errors import UsageError, raised_here
from mucudnn.input import expanded


def parse_threads(text: str) -> int:
    """Return the number of threads that a text gives, 1 to 1024. Raises UsageError."""
    try:
        return _native.parse_threads(text)
    except raised_here(ValueError) as error:
        raise UsageError(str(error)) from None


@dataclass(frozen=True)
class Setting:
    """One environment variable, and its value where it is unset."""

    variable: str
    default: Any = None
    default_text: str = "none"  # the default as the help text shows it
    is_path: bool = False

    @property
    def meaning(self) -> str:
        """The sentence about the variable in `mucudnn --help`."""
        return _native.settings()[self.variable]

    def read(self) -> Any:
        """Return the variable's value, or the default if it is unset or empty.

        A path may have bytes that are not text, and `~` for a home. Raises UsageError, which names the
        variable.
        """
        text = os.environ.get(self.variable)
        if not text:
            return self.default
        try:
            if self.is_path:
                text = expanded(text)
            # The parser takes only text, and returns a path unchanged.
            value = _native.parse_setting(self.variable, text.encode(errors="backslashreplace").decode())
        except raised_here(ValueError) as error:
            raise UsageError(f"{self.variable}: {error}") from None
        return text if self.is_path else value


# The drop-in has another default for the limit: the workspace of the program's own algorithm.
WORKSPACE_LIMIT = Setting(
    "MUCUDNN_WORKSPACE_LIMIT", 64 * 2**20, "64MiB; under `mucudnn run` what the program's own choice takes"
)
BATCH_POLICY = Setting("MUCUDNN_BATCH_POLICY", "power_of_two", "power_of_two")
CACHE = Setting("MUCUDNN_CACHE", None, "mucudnn/cache.sqlite in the user's cache folder", is_path=True)
LIBRARY = Setting("MUCUDNN_LIBRARY", None, "cuDNN if it works, else host", is_path=True)
THREADS = Setting(
    "MUCUDNN_THREADS", None, "all cores in a command, as many as PyTorch in mucudnn.torch, else 1"
)
MODE = Setting("MUCUDNN_MODE", "off", "off; `mucudnn run` sets it")
PLAN = Setting("MUCUDNN_PLAN", is_path=True)
RECORD = Setting("MUCUDNN_RECORD", None, "none; `mucudnn run --record` sets it", is_path=True)
NUMERICS = Setting("MUCUDNN_NUMERICS", "fast", "fast")
BATCH_INVARIANT = Setting("MUCUDNN_BATCH_INVARIANT", "0", "0")
MEASURING = Setting("MUCUDNN_MEASURING", "race", "race")
BUDGET = Setting("MUCUDNN_BUDGET", "none", "none; a program with mucudnn.torch paces itself")
REMEASURE = Setting("MUCUDNN_REMEASURE", "0", "0")
KEPT_FILTERS = Setting("MUCUDNN_KEPT_FILTERS", 2**30, "1GiB")
LOG = Setting("MUCUDNN_LOG", "summary", "summary")

LISTED = (
    WORKSPACE_LIMIT, CACHE, LIBRARY, THREADS, NUMERICS, BATCH_INVARIANT, REMEASURE, BUDGET, KEPT_FILTERS, LOG,
)  # fmt: skip
SETTINGS = (*LISTED, BATCH_POLICY, MODE, PLAN, RECORD, MEASURING)  # flags of commands set the rest
