import re
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest
from fake_engine import UNSUPPORTED, FakeAlgorithm, FakeEngine

from mucudnn._native import Engine, parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.modelled_costs import modelled_table
from mucudnn.measuring.runners import Exhaustive
from mucudnn.plans.decide import Limits
from mucudnn.plans.optimizer import optimize
from mucudnn.problems.kernels import Kernel
from mucudnn.promises import Promise
from mucudnn.report.gather import Report, gather
from mucudnn.report.page import render

MiB = 2**20
KERNELS = [
    Kernel(parse_descriptor("mb8_ic4ih5_oc4_kh3")[0], "forward", "net:first"),
    Kernel(parse_descriptor("mb8_ic4ih6_oc4_kh3")[0], "backward_filter", 'net:<b>"second$', 3),
]
TODAY = date(2026, 3, 4)


def report(engine: FakeEngine | None = None, **options: Any) -> Report:
    limits = options.pop("limits", Limits(workspace=2 * MiB))
    with Cache.in_memory(Path("none")) as cache:
        bench = Bench(cast(Engine, engine or FakeEngine()), cache, Listener(), Exhaustive())
        result = optimize(bench, KERNELS, "power_of_two", limits, **options)
        return gather("net", result, bench.costs(KERNELS))


def test_the_curves_are_of_all_kernels_counted() -> None:
    gathered = report()
    # LEAN takes 2 ms a sample. HUNGRY takes 1 ms and 1 MiB a sample, and 0.5 ms more for each run.
    assert gathered.undivided.at(0) == 4 * 16
    assert gathered.undivided.at(4 * 8 * MiB) == 4 * 8.5
    assert gathered.even.at(4 * 2 * MiB) == 4 * (4 * 2.5)
    assert gathered.present == 4 * 2 * MiB
    assert gathered.workspace == 2 * MiB


def test_the_page_says_what_was_measured_and_when() -> None:
    text = re.sub(r"\s+", " ", render(report(), TODAY))
    assert "2 different kernels, 4 in all: forward, backward_filter with mini-batch 8, f32, nchw." in text
    assert "Each may use 2 MiB of workspace (workspace reuse, WR)." in text
    assert "Measured on a device, a library 1.0, 1 thread." in text
    assert "Written on 4 March 2026 by mucudnn " in text
    assert "All together may use 8 MiB" in render(report(limits=Limits(total=8 * MiB)), TODAY)
    assert "Their workspace is not limited" in render(report(limits=Limits()), TODAY)


def test_the_page_of_choices_without_a_clock_says_that_times_are_modelled() -> None:
    engine = FakeEngine()
    with Cache.in_memory(Path("none")) as cache:
        bench = Bench(cast(Engine, engine), cache, Listener(), Exhaustive())
        promise, limits = Promise("strict", choice="fixed"), Limits(workspace=2 * MiB)
        result = optimize(bench, KERNELS, "power_of_two", limits, promise=promise)
        gathered = gather("net", result, modelled_table(bench, KERNELS, "power_of_two"))
    assert not engine.calls["measure"]
    assert [kernel.undivided[0].workspace for kernel in gathered.kernels] == [0, 0]
    text = re.sub(r"\s+", " ", render(gathered, TODAY))
    assert "The results promise numerics=strict, choice=fixed." in text
    assert "Nothing was measured: modelled times order the choices for a device, a library 1.0" in text
    assert "Measured on" not in text
    assert "The results promise" not in render(report(), TODAY)


def test_identical_kernels_that_differ_are_listed_with_their_kernel() -> None:
    page = render(report(limits=Limits(total=2 * MiB)), TODAY)
    assert "1 apart: 8×1 HUNGRY in 12.00 ms with 1 MiB" in page
    assert "2 apart: 1×8 LEAN in 16.00 ms with 0 B" in page
    assert "take 56.00 ms within the same total" in page
    assert " apart" not in render(report(), TODAY)


def test_the_page_holds_predictions_and_what_was_measured_of_them() -> None:
    assert ">measured</th>" in render(report(), TODAY)
    assert ">measured</th>" not in render(report(run=False), TODAY)


def test_a_division_that_was_dropped_is_named() -> None:
    engine = FakeEngine()
    engine.division_factor = 10.0
    assert "4×2 HUNGRY was slower when run whole" in render(report(engine), TODAY)


def test_where_nothing_undivided_runs_the_page_shows_the_rest() -> None:
    engine = FakeEngine(
        {
            "SMALL": FakeAlgorithm(lambda n: float(n), lambda n: n * n * MiB),
            "NONE": UNSUPPORTED,
        }
    )
    gathered = report(engine)
    assert gathered.undivided.at(gathered.present or 0) is None
    assert "<dt>Undivided</dt><dd>–</dd>" in render(gathered, TODAY)


def test_names_are_text_and_never_markup() -> None:
    text = render(report(), TODAY)
    assert "<b>" not in text
    assert "&lt;b&gt;" in text


HIDDEN = "a\u202eb\u200bc\x07d\u2028e\ufefff"
SPELLED = r"a\u202eb\u200bc\x07d\u2028e\ufefff"


def test_characters_that_a_browser_would_obey_are_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "KERNELS", [replace(KERNELS[0], name=HIDDEN)])
    gathered = replace(report(), network=HIDDEN, advice=(HIDDEN,))
    gathered = replace(
        gathered, result=replace(gathered.result, machine=replace(gathered.result.machine, device=HIDDEN))
    )
    text = render(gathered, TODAY)
    assert SPELLED in text
    assert all(line.isprintable() for line in text.splitlines() if line.strip())


def test_the_page_names_no_other_file() -> None:
    text = render(report(), TODAY)
    assert "<script" not in text
    assert set(re.findall(r"https?://[^\"' <)]*", text)) <= {"http://www.w3.org/1999/xlink"}


def test_no_id_occurs_twice_in_the_page_and_every_reference_has_one() -> None:
    text = render(report(), TODAY)
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^")]*)', text)) == set(ids)
