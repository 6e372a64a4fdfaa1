"""AlexNet's time against workspace, as `mucudnn optimize` measures it at each limit."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator

from bench.lib.plots import DIVIDED, LIMITS, NETWORK, UNDIVIDED
from bench.lib.record import Record


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Run AlexNet at each limit: the chosen configurations and the best undivided algorithms, interleaved."""
    for limit in LIMITS:
        command = [sys.executable, "-m", "mucudnn", "optimize", NETWORK, "--workspace", f"{limit}MiB"]
        command += ["--engine", "host", "--threads", "1", "--inference", "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        total = json.loads(done.stdout)["total"]
        details = {"workspace": total["workspace"]}
        yield Record("workspace", f"{limit} MiB", UNDIVIDED, total["undivided_ms"], "ms")
        yield Record("workspace", f"{limit} MiB", DIVIDED, total["divided_ms"], "ms", details)
