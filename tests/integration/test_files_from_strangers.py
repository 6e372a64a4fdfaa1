"""No file can name a library that is then opened, wherever in the file the name stands."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from programs import library_that_leaves_a_trace, run

import mucudnn
from mucudnn.cli import main
from mucudnn.costs.journal import journal_of
from mucudnn.errors import UsageError
from mucudnn.plans.any_plan import read_plan
from mucudnn.plans.plan import Plan, write_plan

DATA = Path(__file__).parents[1] / "data"
PROGRAM = Path(__file__).parents[2] / "examples" / "one_convolution.py"
GOOD = "mb4_ic8ih14_oc8_kh3_ph1"


@pytest.fixture
def library(tmp_path: Path, cache_path: Path) -> Iterator[Path]:
    """Yield a library that must not be opened: its constructor leaves a trace."""
    library, trace = library_that_leaves_a_trace(tmp_path)
    yield library
    assert not trace.exists()


def plans_that_name(library: Path) -> Iterator[Plan]:
    """Yield plans whose header has the library's path. A path is not the name of an algorithm."""
    path = library.with_name("good.plan")
    assert main(["optimize", GOOD, "--no-run", "--output", str(path)]) == 0
    plan = read_plan(path)
    for name in (*plan.header, "MUCUDNN_LIBRARY", "cudart"):
        yield replace(plan, header={**plan.header, name: str(library)})


def test_no_text_of_a_plan_is_opened(library: Path) -> None:
    path = library.with_name("some.plan")
    x, w = np.ones((4, 8, 14, 14), np.float32), np.ones((8, 8, 3, 3), np.float32)
    for plan in plans_that_name(library):
        write_plan(plan, path)
        assert main(["plan", "show", str(path)]) == 0
        assert main(["plan", "verify", "--no-run", str(path)]) in (0, 1, 2)
        with suppress(UsageError):  # a plan of another machine
            mucudnn.convolution_forward(x, w, padding=1, plan=plan)


def test_no_text_of_a_plan_or_journal_is_opened_under_mucudnn_run(library: Path, cache_path: Path) -> None:
    path = library.with_name("some.plan")
    write_plan(list(plans_that_name(library))[1], path)
    text = path.read_text()
    assert str(library) in text
    journal_of(cache_path).write_text(text)
    command = (
        sys.executable,
        "-m",
        "mucudnn",
        "run",
        "--plan",
        path,
        "--online",
        "--",
        sys.executable,
        PROGRAM,
    )
    ended = run(*command, MUCUDNN_LIBRARY="host", MUCUDNN_BATCH_POLICY="undivided")
    assert ended.returncode == 0, ended.stderr


def test_no_text_of_an_export_or_a_cache_is_opened(library: Path, cache_path: Path) -> None:
    file = library.with_name("rows.jsonl")
    header, *rows = map(json.loads, (DATA / "rows-4.jsonl").read_text().splitlines())
    for name in ("engine", "device", "library", "notes", "algorithm"):
        changed = [{**row, name: str(library)} if name in row else row for row in rows]
        file.write_text("\n".join(map(json.dumps, (header, *changed))))
        assert main(["cache", "import", str(file)]) in (0, 1)
        for command in (["cache", "list"], ["cache", "info"], ["cache", "export"]):
            assert main(command) in (0, 1)
        network = ["optimize", GOOD, "--replay", str(cache_path)]
        assert main(network) in (1, 2)  # the cache has other kernels


def test_no_name_in_a_list_of_convolutions_is_opened(library: Path) -> None:
    file = library.with_name("network.txt")
    file.write_text(f'{GOOD}n"{library}"\n')
    assert main(["optimize", str(file), "--no-run"]) == 0
