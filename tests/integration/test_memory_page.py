"""The figures of docs/memory.md are those of its commands."""

import re
from pathlib import Path

import pytest
from command_line import Capture, json_of

PAGE = (Path(__file__).parents[2] / "docs" / "memory.md").read_text("utf-8")
COMMAND = re.search(r"For `mucudnn (memory vgg16-2014 [^`]*)`", PAGE)
ROWS = re.findall(r"^\| (`[^`]*`|none) \| [^|]* \| ([\d.]+) \| ([\d.]+) GiB \|$", PAGE, re.MULTILINE)

pytestmark = pytest.mark.usefixtures("cache_path")


def test_the_page_has_a_row_for_each_way_to_plan() -> None:
    assert len(ROWS) == 6


@pytest.mark.parametrize(("flags", "time", "least"), ROWS)
def test_a_row_has_the_figures_of_its_command(capsys: Capture, flags: str, time: str, least: str) -> None:
    assert COMMAND is not None
    more = [] if flags == "none" else flags.strip("`").split()
    plan = json_of(capsys, [*COMMAND[1].split(), *more, "--json"])
    places = len(time.partition(".")[2])
    assert f"{plan['time_ms'] / plan['unlimited_ms']:.{places}f}" == time
    assert f"{plan['floor'] / 2**30:.3g}" == least
