import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, find_chromium
from command_line import Capture, error_of
from programs import is_missing

from mucudnn.cli import main
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import SUCCESS, Machine, Measurement
from mucudnn.extras import install_command
from mucudnn.measuring.modelled_device import find_device
from mucudnn.plans.memory.costs import model_costs
from mucudnn.plans.memory.planning import MemoryOptions, plan_network
from mucudnn.problems.bundled import bundled_network
from mucudnn.problems.kernels import PASSES
from mucudnn.problems.policies import micro_batch_sizes
from mucudnn.problems.sources import Flags, read_kernels
from mucudnn.report.memory_page import write_page

pytestmark = pytest.mark.usefixtures("cache_path")

MiB = 2**20
MACHINE = Machine("host", "a device", "a library 1.0", 1)
# The relative speed, and the workspace of a sample relative to its input and output.
ALGORITHMS = {
    "IMPLICIT_GEMM": (1.0, 0),
    "GEMM": (1.3, 2),
    "WINOGRAD_NONFUSED": (1.9, 3),
    "FFT_TILING": (2.1, 5),
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of ResNet-50 in all passes. The times and workspaces in its cache are formulas."""
    folder = tmp_path_factory.mktemp("report")
    with Cache.open(folder / "cache.sqlite") as cache:
        for kernel in read_kernels("resnet50", Flags(batch=64), PASSES):
            problem = kernel.problem
            sample_ms, sample = problem.flops / 64 / 5e7, (problem.x_elements + problem.y_elements) // 16
            for size in micro_batch_sizes("power_of_two", 64):
                for name, (speed, factor) in ALGORITHMS.items():
                    time_ms = sample_ms * (0.1 * factor + size / speed)
                    row = Measurement(size, name, SUCCESS, size * factor * sample, "", time_ms, 0.0)
                    cache.add(MACHINE, kernel, row)
    written = folder / "report.html"
    arguments = ["optimize", "resnet50", "--replay", str(folder / "cache.sqlite")]
    assert main([*arguments, "--total-workspace", "512MiB", "--page", str(written)]) == 0
    return written


@pytest.fixture(scope="module")
def memory_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of a memory plan."""
    written = tmp_path_factory.mktemp("memory") / "memory.html"
    arguments = ["memory", "alexnet", "--batch", "128", "--device", "titanx", "--memory", "840MiB"]
    assert main([*arguments, "--page", str(written)]) == 0
    return written


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = find_chromium()
    if chromium is None:
        is_missing("needs Chromium, to look at the page: Debian's chromium")
    with Browser(chromium, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("kind", ["page", "memory_page"])
def test_a_browser_shows_the_page_without_errors_requests_or_sideways_scrolling(
    kind: str, request: pytest.FixtureRequest, browser: Browser, width: int, dark: bool
) -> None:
    page: Path = request.getfixturevalue(kind)
    browser.open(page, width=width, dark=dark)
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [page.absolute().as_uri()]
    assert browser.evaluate("document.documentElement.clientWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    light_text = browser.evaluate("getComputedStyle(document.body).color.match(/[0-9]+/)[0] > 128")
    assert light_text is dark


@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_shows_every_cell_of_the_tables_with_its_name(
    page: Path, browser: Browser, width: int
) -> None:
    browser.open(page, width=width)
    cells = "[...document.querySelectorAll('tbody th, tbody td')]"
    assert browser.evaluate(f"{cells}.every(cell => cell.getClientRects().length)")
    assert browser.evaluate(f"Math.max(...{cells}.map(cell => cell.getBoundingClientRect().right))") <= width
    clipped = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth)"
    assert browser.evaluate(f"{clipped}.length") == 0
    figures = "[...document.querySelectorAll('tbody td.number')]"
    assert browser.evaluate(f"{figures}.every(cell => getComputedStyle(cell, '::before').content.length > 4)")


@pytest.mark.parametrize("width", [1280, 375])
def test_every_plot_is_drawn_and_named(page: Path, browser: Browser, width: int) -> None:
    browser.open(page, width=width)
    shown = (
        "[...document.querySelectorAll('figure svg[role=img]')].filter(svg => svg.getClientRects().length)"
    )
    kernels = len(read_kernels("resnet50", Flags(batch=64), PASSES))
    assert browser.evaluate(f"{shown}.length") == 1 + kernels
    assert browser.evaluate(f"{shown}.every(svg => svg.ariaLabel)")
    assert browser.evaluate(f"Math.min(...{shown}.map(svg => svg.getBoundingClientRect().width))") > 250
    texts = "[...document.querySelectorAll('.drawing text')]"
    assert browser.evaluate(f"Math.min(...{texts}.map(text => text.getBoundingClientRect().height))") > 8
    # Lines take their colour from a variable of the page; an unknown variable would give `none`.
    stroke = f"getComputedStyle({shown}[0].querySelector('path[style*=\"--divided\"]')).stroke"
    assert browser.evaluate(stroke) == "rgb(11, 98, 196)"


def test_the_page_says_what_more_memory_would_buy(page: Path, browser: Browser) -> None:
    browser.open(page, width=1280)
    text = browser.evaluate("document.body.innerText")
    assert "All together may use 512 MiB of workspace (workspace division, WD). Measured on a device" in text
    assert "MiB more would save" in text
    for heading in ("What memory buys", "Chosen micro-batches", "Machine"):
        assert heading in text
    assert "IMPLICIT_GEMM" in text
    assert browser.evaluate("[...document.querySelectorAll('table')].every(table => table.caption)")


def test_pointing_at_a_step_shows_its_name(memory_page: Path, browser: Browser) -> None:
    browser.open(memory_page, width=1280)
    titles = browser.evaluate("[...document.querySelectorAll('svg title')].map(title => title.textContent)")
    assert any(re.fullmatch(r"conv1: [\d.]+ MiB in memory", title) for title in titles)


def test_a_recorded_step_is_drawn_beside_its_plan(tmp_path: Path) -> None:
    network = bundled_network("alexnet", 16).with_backward()
    plan = plan_network(network, model_costs(network, find_device("h200")), MemoryOptions(2**40))
    write_page(plan, tmp_path / "page.html", recorded=plan.simulate())
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "during the recorded step, whose peak was" in text
    assert "</svg>recorded step</li>" in text
    write_page(plan, tmp_path / "page.html")
    assert "recorded step" not in (tmp_path / "page.html").read_text("utf-8")


def test_the_page_of_a_large_network_is_light(page: Path) -> None:
    assert page.stat().st_size < 3 * MiB


def test_the_page_shows_what_was_measured(tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "page.html"
    arguments = ["optimize", "mb4_ic8ih14_oc8_kh3_ph1", "--workspace", "1MiB", "--page", str(page)]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("Measuring ")
    assert captured.out.splitlines()[-1] == f"Next: open {page} in a browser"
    assert "measured" in page.read_text()
    assert error_of(capsys, arguments, 0) == f"Wrote {page}\n"


def test_a_page_on_a_full_disk_is_reported_in_one_line(capsys: Capture) -> None:
    assert main(["optimize", "mb2_ic4ih8_oc4_kh3", "--no-run", "--page", "/dev/full"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "mucudnn: the page /dev/full cannot be written: No space left on device"
    )


def test_without_matplotlib_the_command_says_what_to_install(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mucudnn.report.find_spec", lambda name: None if name == "matplotlib" else object())
    assert main(["optimize", "mb2_ic4ih8_oc4_kh3", "--page", "page.html"]) == 1
    assert capsys.readouterr().err == f"mucudnn: matplotlib not installed: {install_command('report')}\n"
