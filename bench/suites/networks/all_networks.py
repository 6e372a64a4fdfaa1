"""Every network, mini-batch, number of threads and limit of the large table."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from bench.lib.record import Record
from bench.suites.networks import networks
from bench.suites.networks.networks import LIMITS, cases, measure_cases

RESUMES = networks.RESUMES
add_options = networks.add_options


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield the rows that this machine lacks."""
    return measure_cases("all_networks", cases(), LIMITS, options)
