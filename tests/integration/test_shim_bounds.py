"""The drop-in keeps a bounded number of kernels of a program that never stops bringing new ones."""

from __future__ import annotations

import re

from clients import Case
from desk import Desk
from programs import SHIM, preload

from mucudnn._native import Problem, parse_descriptor

MANY = 4500  # more than the drop-in keeps
TINY: Problem = parse_descriptor("f32:nchw:default:mb2_ic1ih1iw1_oc1_kh1kw1")[0]


def test_new_kernels_take_the_place_of_those_used_longest_ago(desk: Desk) -> None:
    variables = {
        "LD_PRELOAD": preload(SHIM),
        "MUCUDNN_MODE": "online",
        "MUCUDNN_LIBRARY": "host",
        "MUCUDNN_CACHE": str(desk.folder / "cache.sqlite"),
        "MUCUDNN_LOG": "warning",
        "MUCUDNN_BATCH_POLICY": "undivided",  # else the machine's load decides how much is measured
    }
    environment = {**desk.host_engine, **variables}
    ran = desk.programs.run("many_kernels", Case(TINY, limit=MANY), desk.folder, environment)
    assert (ran.code, ran.stderr) == (0, "")
    grown = re.fullmatch(r"grew by (-?\d+) bytes\n", ran.stdout)
    assert grown, ran.stdout
    assert int(grown[1]) < MANY * 100


def test_a_record_lists_every_kernel_however_many_there_are(desk: Desk) -> None:
    record = desk.folder / "record"
    variables = {
        "LD_PRELOAD": preload(SHIM),
        "MUCUDNN_MODE": "record",
        "MUCUDNN_LIBRARY": "host",
        "MUCUDNN_RECORD": str(record),
    }
    environment = {**desk.host_engine, **variables}
    ran = desk.programs.run("many_kernels", Case(TINY, limit=MANY), desk.folder, environment)
    assert ran.code == 0, ran.stderr
    heights = {int(height) for height in re.findall(r"ih(\d+)", record.read_text())}
    assert heights == set(range(1, 4 * MANY + 1))
