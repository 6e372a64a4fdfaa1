"""The harnesses of the parsers that Python code calls.

Each gives a text or the bytes of a file to one parser and checks the parser's promises. A parser refuses with
an error that names the fault, and raises no other exception. A value that is written as text can be parsed
again, and is equal. Two parsers of one grammar accept the same texts. A harness returns
whether its parser accepted the input.
"""

import json
import mmap
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from cached_rows import key_of

from mucudnn import _native, sizes
from mucudnn.costs.exchange import format_rows, parse_rows
from mucudnn.costs.journal import _decode, _is_forgotten, rows_of
from mucudnn.costs.rows import CacheRows
from mucudnn.costs.schema import KINDS, MEASUREMENT, Kind, Row
from mucudnn.drop_in.elf import NotElfError, parse_elf
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.measuring.described_device import described_device
from mucudnn.plans.devices.spatial_plan import SpatialPlan
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.memory.training_step import count_resident
from mucudnn.plans.plan import Plan
from mucudnn.problems.descriptor import problem_key, short_text
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.problems.network import Network
from mucudnn.problems.sources import Flags, _read_lines_of

Check = Callable[[bytes], bool]


def check_sizes(data: bytes) -> bool:
    """Compare the parser of the command line with that of the drop-in."""
    text = text_of(data)
    if not text or "\0" in text:  # neither arguments nor variables hold such a text
        return False
    size = value_of(sizes.parse_size, text)
    assert size == value_of(_native.parse_size, text)
    try:
        limit = sizes.parse_limit(text)
    except UsageError:
        assert value_of(read_limit, text) is ValueError
        return size is not ValueError
    # The drop-in treats the largest limit as no limit.
    assert value_of(read_limit, text) == (None if limit == 2**63 - 1 else limit)
    assert sizes.parse_limit(sizes.spell_limit(limit)) == limit
    assert sizes.format_size(limit)
    return True


def check_settings(data: bytes) -> bool:
    """Read a text as each setting of the environment."""
    text = text_of(data)
    if not text or "\0" in text:
        return False
    values = [value_of(partial(_native.parse_setting, variable), text) for variable in _native.settings()]
    return any(value is not ValueError for value in values)


def check_descriptors(data: bytes) -> bool:
    """Read a file of descriptors, and each problem's short text."""
    try:
        read = _read_lines_of(text_of(data), "a file", Flags())
    except UsageError as error:
        check_message(error)
        return False
    for problem, _, count in read:
        assert count >= 1
        for text in (str(problem), short_text(problem)):
            again, name, number = _native.parse_descriptor(text)
            assert (again, name, number) == (problem, "", 1), text
        at_one = problem.replace(mini_batch=1)
        for text in (problem_key(problem), short_text(problem, mini_batch=False)):
            assert _native.parse_descriptor(text)[0] == at_one, text
    return True


def check_network(data: bytes) -> bool:
    """Read a network, ask it about its memory, and write it."""
    try:
        network = Network.parse(text_of(data))
    except MucudnnError as error:
        check_message(error)
        return False
    written = str(network)
    assert Network.parse(written) == network
    assert str(Network.parse(written)) == written
    assert min(count_resident(network, 1, {}), default=0) >= 0
    network.kernels()
    for tensor in network.saved:
        assert network.tensor(tensor.name) == tensor
    return True


def check_plan(data: bytes) -> bool:
    """Read a plan, and write it."""
    try:
        plan = Plan.parse(text_of(data))
    except ValueError as error:
        check_message(error)
        return False
    written = str(plan)
    again = Plan.parse(written)
    assert str(again) == written
    assert again.digest == plan.digest
    # A kernel that a journal lists without a choice is dropped, and the options are sorted.
    assert {k.kernel: k.answers for k in again.kernels} == {k.kernel: k.answers for k in plan.kernels}
    assert again.header == plan.header
    plan._repr_html_()
    return True


def check_journal(data: bytes) -> bool:
    """Take a journal into a cache, and leave documents out of it."""
    rows = list(rows_of(_decode(data)))
    check_rows_in_cache(rows)
    _is_forgotten(data, lambda header: header.get("threads") == "1")
    return bool(rows)


def check_rows(data: bytes) -> bool:
    """Read exported rows, take them into a cache, and write them."""
    try:
        rows = list(parse_rows(text_of(data).splitlines(keepends=True), "a file"))
    except MucudnnError as error:
        check_message(error)
        return False
    assert list(parse_rows(format_rows(rows), "a file")) == rows
    check_rows_in_cache(rows)
    return True


def check_cells(data: bytes) -> bool:
    """Change cells of a row in a cache to values of any type of sqlite, and let the cache read the row."""
    try:
        number, changes = json.loads(text_of(data))
        kind = KINDS[number]
        values = {name: DAMAGES.get(value, value) if isinstance(value, str) else value
                  for name, value in changes.items()}  # fmt: skip
    except (ValueError, TypeError, IndexError, AttributeError, RecursionError):
        return False
    if any(isinstance(value, list | dict | bool) for value in values.values()):
        return False
    row = {**USUAL[kind.name], **{name: v for name, v in values.items() if name in kind.columns}}
    try:
        checked = kind.checked(row)
    except ValueError as error:
        check_message(error)
        return False
    check_rows_in_cache([(kind, checked)])
    return True


def check_device(data: bytes) -> bool:
    """Read the description of a device, whose identity becomes part of plans and cache rows."""
    try:
        device = described_device(text_of(data))
    except UsageError as error:
        check_message(error)
        return False
    header = {"device": device}
    assert Plan.parse(str(Plan(header))).header == header
    check_rows_in_cache([(MEASUREMENT, MEASUREMENT.checked({**USUAL["measurement"], "device": device}))])
    return True


def check_elf(data: bytes) -> bool:
    """Read the headers of a program or a library."""
    if not data:  # it cannot be mapped
        return False
    with mmap.mmap(-1, len(data)) as memory:
        memory.write(data)
        try:
            parse_elf(memory, "a file")
        except NotElfError as error:
            check_message(error)
            return False
    return True


def check_memory_plan(data: bytes) -> bool:
    """Read a memory plan, and write it."""
    try:
        plan = MemoryPlan.parse(text_of(data))
    except MucudnnError as error:
        check_message(error)
        return False
    written = str(plan)
    assert MemoryPlan.parse(written) == plan
    assert str(MemoryPlan.parse(written)) == written
    return True


def check_spatial_plan(data: bytes) -> bool:
    """Read a spatial plan, which divides a model's samples over several devices, and write it."""
    try:
        plan = SpatialPlan.parse(text_of(data))
    except MucudnnError as error:
        check_message(error)
        return False
    assert SpatialPlan.parse(str(plan)) == plan
    return True


HARNESSES: dict[str, Check] = {
    "sizes": check_sizes,
    "settings": check_settings,
    "descriptors": check_descriptors,
    "network": check_network,
    "plan": check_plan,
    "memory_plan": check_memory_plan,
    "spatial_plan": check_spatial_plan,
    "journal": check_journal,
    "rows": check_rows,
    "cells": check_cells,
    "device": check_device,
    "elf": check_elf,
}


def text_of(data: bytes) -> str:
    """Return the text that a file with this content has."""
    return data.decode(errors="replace")


def value_of(parse: Callable[[str], Any], text: str) -> Any:
    """Return the value that a parser gives, or the type ValueError if it refuses the text."""
    try:
        return parse(text)
    except ValueError as error:
        check_message(error)
        return ValueError


def read_limit(text: str) -> Any:
    """Read a limit as the drop-in does."""
    return _native.parse_setting("MUCUDNN_WORKSPACE_LIMIT", text)


def check_message(error: Exception) -> None:
    """Check that a message can be printed: any text that is Unicode."""
    str(error).encode()


def check_rows_in_cache(rows: list[Row]) -> None:
    """Check that an empty cache takes rows and gives them back."""
    if rows:
        _take_and_give_back(tuple((kind, tuple(row.items())) for kind, row in rows))


@lru_cache(maxsize=50_000)  # most inputs have the rows of another one
def _take_and_give_back(items: tuple[tuple[Kind, tuple[tuple[str, Any], ...]], ...]) -> None:
    rows = [(kind, dict(row)) for kind, row in items]
    cache = _cache()
    try:
        cache.merge(rows)
        kept = {(kind, *key_of(kind, row)): row for kind, row in cache.rows()}
    finally:
        cache.query("DELETE FROM rows")
    for kind, row in rows:
        stored = kept[kind, *key_of(kind, row)]
        assert stored.keys() == row.keys()


@lru_cache(maxsize=1)
def _cache() -> CacheRows:
    """Return a cache in memory, which all inputs share: opening it takes longer than most of them."""
    return CacheRows(Path("memory"))


# A JSON text cannot name these cells of sqlite.
DAMAGES = {"BLOB": b"\xff\0", "NAN": float("nan"), "INFINITY": float("inf"), "SURROGATE": "\udcff"}


@lru_cache(maxsize=1)
def _usual() -> dict[str, dict[str, Any]]:
    kernel = Kernel(_native.parse_descriptor("mb8_ic4ih5_oc4_kh3")[0], PASSES[0])
    rows = {}
    for kind in KINDS:
        row: dict[str, Any] = {"device": "a device", "library": "a library", "engine": "host", "threads": 1}
        for name, column in kind.columns.items():
            row.setdefault(name, "" if column is str else 1)
        row |= {
            "problem": str(kernel.problem),
            "pass": kernel.pass_,
            "measured_at": "2026-01-01T00:00:00+00:00",
        }
        rows[kind.name] = row
    return rows


USUAL = _usual()
