"""`--json` prints the keys that the page about it names."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import predict_longer

from mucudnn.cli import main
from mucudnn.plans.any_plan import read_plan
from mucudnn.plans.plan import write_plan

pytestmark = pytest.mark.usefixtures("cache_path")

PAGE = Path(__file__).parents[2] / "docs/reference/json.md"
EXAMPLES = {
    title: json.loads(example)
    for title, example in re.findall(
        r"^## mucudnn ([a-z -]+)\n(?:(?!^## ).)*?^```json\n(.*?)^```", PAGE.read_text(), re.M | re.S
    )
}
GOOD = "mb4_ic8ih14_oc8_kh3_ph1"
Capture = pytest.CaptureFixture[str]


def agrees(printed: Any, described: Any) -> bool:
    """Return whether both have the same keys. Without a value, such as null or an empty list, any agree."""
    if isinstance(printed, dict) and isinstance(described, dict):
        return printed.keys() == described.keys() and all(
            agrees(printed[key], described[key]) for key in printed
        )
    if isinstance(printed, list) and isinstance(described, list):
        return not printed or not described or agrees(printed[0], described[0])
    return (
        printed is None
        or described is None
        or isinstance(printed, dict | list) == isinstance(described, dict | list)
    )


def run(capsys: Capture, *arguments: object, code: int = 0) -> Any:
    assert main([*map(str, arguments), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_each_command_prints_the_keys_that_are_described(
    tmp_path: Path, cache_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, rows = tmp_path / "a.plan", tmp_path / "rows.jsonl"
    printed = {"optimize": run(capsys, "optimize", GOOD, "--output", plan)}
    printed["optimize --sizes"] = run(capsys, "optimize", GOOD, "--sizes", "1,4")
    printed["optimize --measure-only"] = run(capsys, "optimize", GOOD, "--measure-only")
    printed["memory"] = run(capsys, "memory", "alexnet", "--batch", "8", "--memory", "2GiB")
    printed["parallel place"] = run(capsys, "parallel", "place", "alexnet", "--batch", "8")
    scaling = tmp_path / "scaling.csv"
    scaling.write_text("devices,step_ms,epochs\n1,100,10\n")
    printed["parallel project"] = run(capsys, "parallel", "project", scaling, "--speedup", "2=1.4")
    trace = tmp_path / "trace.json"
    step = {"ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)", "ts": 0, "dur": 9}
    work = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 9, "dur": 1}
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [step, work]}))
    printed["parallel causes"] = run(capsys, "parallel", "causes", trace)
    monkeypatch.setenv("MUCUDNN_LIBRARY", "host")
    printed["doctor"] = run(capsys, "doctor")
    printed["plan show"] = run(capsys, "plan", "show", plan)
    predict_longer(plan)
    printed["plan verify"] = run(capsys, "plan", "verify", plan)
    assert main(["cache", "export", "--output", str(rows)]) == 0
    capsys.readouterr()
    for name in ("info", "list"):
        printed[f"cache {name}"] = run(capsys, "cache", name)
    printed["cache import"] = run(capsys, "cache", "import", rows)
    assert run(capsys, "cache", "prune", "--older-than", "1").keys() == printed["cache import"].keys()
    assert printed.keys() == EXAMPLES.keys()
    assert [name for name in printed if not agrees(printed[name], EXAMPLES[name])] == []


def test_a_plan_that_does_not_hold_is_an_object_too(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.plan"
    run(capsys, "optimize", GOOD, "--no-run", "--output", path)
    plan = read_plan(path)
    write_plan(replace(plan, header={**plan.header, "device": "an abacus"}), path)
    printed = run(capsys, "plan", "verify", path, code=1)
    assert not printed["holds"]
    assert "the plan's device is 'an abacus'" in printed["machine"][0]
    assert agrees(printed, EXAMPLES["plan verify"])


def test_equal_parts_of_a_plan_are_one_object(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.plan"
    path.write_text(
        "mucudnn plan 1\nkernel forward 1 mb1024_ic1ih1_oc1_kh1\nchoose 1024*1:A:1:0\n"
        "option 1024*1:A:1:0\nend 1\n"
    )
    (kernel,) = run(capsys, "plan", "show", path)["kernels"]
    assert [part["times"] for part in kernel["chosen"]["parts"]] == [1024]


def test_a_cache_that_does_not_exist_is_an_object_too(cache_path: Path, capsys: Capture) -> None:
    nothing = {"schema": 1, "path": str(cache_path)}
    assert run(capsys, "cache", "list") == {**nothing, "kernels": []}
    assert agrees(run(capsys, "cache", "info"), EXAMPLES["cache info"])
