"""The journal that drop-ins write becomes rows of the cache."""

from pathlib import Path

import pytest
from journals import PLAIN, journal

from mucudnn.costs.cache import Cache
from mucudnn.costs.journal import journal_of, rows_of
from mucudnn.costs.schema import ENUMERATION, MEASUREMENT
from mucudnn.listener import Listener

KEY = PLAIN.replace("mb4", "")


@pytest.mark.parametrize(
    ("engine", "epilogue", "api"),
    [("cudnn", "", "graph"), ("cudnn", "+bias", "graph"), ("host", "+bias", "graph"), ("host", "", "legacy")],
)
def test_a_journal_gives_measurements_and_the_candidates_that_our_engines_enumerate(
    engine: str, epilogue: str, api: str
) -> None:
    text = journal(engine, PLAIN + epilogue)
    (first_table, measured), (second_table, enumerated) = rows_of(text)
    assert (first_table, second_table) == (MEASUREMENT, ENUMERATION)
    assert measured.keys() == MEASUREMENT.columns.keys()
    assert enumerated.keys() == ENUMERATION.columns.keys()
    assert (measured["algorithm"], measured["time_ms"], measured["notes"]) == ("GEMM", 2.5, "deterministic")
    assert (enumerated["problem"], enumerated["micro_batch"]) == (KEY + epilogue, 4)
    assert f"candidates {api} {enumerated['candidates']}\n" in text


def test_a_document_with_a_foreign_header_is_skipped() -> None:
    text = journal("host", PLAIN)
    assert list(rows_of(text.replace("measured_at", "written_at"))) == []
    assert len(list(rows_of(text.replace("threads 1", "threads many") + text))) == 2


def test_the_times_of_a_race_are_marked_so_that_a_thorough_command_replaces_them() -> None:
    text = journal("host", PLAIN)
    for kind, notes in (("race", "deterministic raced"), ("thorough", "deterministic")):
        (_, measured), _ = rows_of(text.replace("threads 1\n", f"measuring {kind}\nthreads 1\n"))
        assert measured["notes"] == notes


def test_a_document_is_taken_once_it_is_written_whole(cache_path: Path) -> None:
    text = journal("host", PLAIN)
    for written, rows in ((text[: len(text) // 2], 0), (text[:-3], 0), (text, 2), (text + text[:-3], 2)):
        journal_of(cache_path).write_text(written)
        with Cache.of_user(Listener(), needed=True) as cache:
            assert len(list(cache.rows())) == rows
