"""The page about reliability names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = [
    line.strip("| ").split(" | ")
    for line in (ROOT / "docs/reliability.md").read_text().splitlines()
    if re.match(r"\| (?!promise|parser)[^-]", line)
]


def test_each_promise_names_tests_that_exist() -> None:
    assert len(ROWS) >= 20
    for promise, tests, *_ in ROWS:
        files = re.findall(r"`([^`]+)`", tests)
        assert files, promise
        assert [file for file in files if not (ROOT / "tests" / file).exists()] == [], promise
