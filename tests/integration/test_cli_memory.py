"""`mucudnn memory` plans a training step, and says what does not fit."""

import json
import re
from pathlib import Path

import pytest
from command_line import Capture, error_of, json_of, output_of

import mucudnn
from mucudnn.cli import main
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.problems.bundled import bundled_network
from tests.unit.networks import TRAINING

pytestmark = pytest.mark.usefixtures("cache_path")

ALEXNET = ["memory", "alexnet", "--batch", "128", "--device", "titanx"]


def test_the_table_has_the_figures_and_the_tensors(capsys: Capture) -> None:
    text = output_of(capsys, [*ALEXNET, "--memory", "840MiB"])
    assert text.startswith("alexnet, mini-batch 128, on titanx, policy joint (kernels modelled, ")
    assert re.search(r"allowed +840 MiB", text)
    assert re.search(r"floor +\d+ MiB", text)
    assert re.search(r"offload: \d+ of 13 saved tensors", text)


def test_the_table_says_whether_recorded_times_calibrated_the_model(capsys: Capture) -> None:
    t4 = ["memory", "alexnet", "--batch", "32", "--device", "t4"]
    calibrated = "calibrated on records of Tesla T4"
    assert f"(kernels {calibrated}, steps modelled, " in output_of(capsys, [*t4, "--memory", "840MiB"])
    assert f" {calibrated}" in output_of(capsys, t4)
    assert calibrated not in output_of(capsys, [*t4, "--dtype", "f16"]), "NCHW was recorded in f32 alone"
    assert f"on t4, {calibrated} (" in output_of(capsys, ["parallel", "place", *t4[1:]])


def test_the_table_says_how_near_the_plan_is_to_the_best(capsys: Capture) -> None:
    text = output_of(capsys, [*ALEXNET, "--memory", "840MiB"])
    less, least = re.search(r"within ([\d.]+)% of .* at least ([\d.]+) ms", text).groups()  # type: ignore[union-attr]
    step = re.search(r"training step +([\d.]+) ms", text)
    assert step is not None
    assert float(less) == pytest.approx(100 * (1 - float(least) / float(step[1])), abs=0.2)


def test_json_has_the_figures_of_the_plan(capsys: Capture) -> None:
    result = json_of(capsys, [*ALEXNET, "--memory", "840MiB", "--json"])
    assert (result["schema"], result["network"], result["batch"]) == (1, "alexnet", 128)
    assert (result["device"], result["costs"], result["policy"]) == ("titanx", "modelled", "joint")
    assert result["floor"] <= result["peak"] <= result["memory"] == 840 * 2**20
    assert result["unlimited_ms"] <= result["time_ms"]
    assert {tuple(tensor) for tensor in result["tensors"]} == {("name", "bytes", "choice")}
    assert len(result["kernels"]) == 14  # 5 convolutions, one of 2 passes
    assert result["kernels"][0]["chosen"]["parts"]


def test_memory_below_the_floor_exits_with_3_and_the_floor(capsys: Capture) -> None:
    error = error_of(capsys, [*ALEXNET, "--memory", "1MiB"], 3)
    floor = re.search(r"its floor is (\d+) bytes", error)
    assert floor is not None
    assert main([*ALEXNET, "--memory", floor[1]]) == 0
    assert main([*ALEXNET, "--memory", str(int(floor[1]) - 1)]) == 3


def test_the_plan_is_written_and_read(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "alexnet.plan"
    assert main([*ALEXNET, "--memory", "840MiB", "--output", str(path), "--json"]) == 0
    plan, result = MemoryPlan.read(path), json.loads(capsys.readouterr().out)
    assert (plan.peak, plan.floor, plan.time_ms) == (result["peak"], result["floor"], result["time_ms"])
    assert plan.simulate().time_ms == pytest.approx(plan.time_ms)
    assert mucudnn.read_plan(path) == plan
    assert main(["plan", "show", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == result
    assert main(["plan", "show", str(path)]) == 0
    assert "without a limit, undivided" in capsys.readouterr().out
    path.write_text("other text")
    written = [*ALEXNET, "--memory", "840MiB", "--output", str(path)]
    assert "exists but is not a memory plan" in error_of(capsys, written, 2)


def test_a_network_file_can_be_planned(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "small.network"
    TRAINING.write(path)
    assert main(["memory", str(path), "--memory", "1GiB"]) == 0
    assert capsys.readouterr().out.startswith("small, mini-batch 2, on h200")
    assert main(["memory", str(path), "--memory", "1GiB", "--batch", "4"]) == 2
    assert "--batch is for bundled networks" in capsys.readouterr().err


def test_policies_and_means_can_be_chosen(capsys: Capture) -> None:
    times = {}
    for flags in ("--policy=all --no-divide", "--no-recompute", "--no-offload", ""):
        result = json_of(capsys, [*ALEXNET, "--memory", "840MiB", "--json", *flags.split()])
        times[flags] = result["time_ms"]
        choices = {tensor["choice"] for tensor in result["tensors"]}
        assert flags != "--no-recompute" or "recompute" not in choices
        assert flags != "--no-offload" or "offload" not in choices
    assert min(times.values()) == pytest.approx(times[""], rel=0.01)


def test_costs_can_be_measured_on_this_machine(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "small.network"
    TRAINING.write(path)
    assert main(["memory", str(path), "--memory", "1GiB", "--device", "measured"]) == 0
    assert "(kernels measured, steps modelled, link modelled)" in capsys.readouterr().out
    assert main(["memory", str(path), "--memory", "1GiB", "--device", "measured", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["costs"] == "measured"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vgg17", "--memory", "1GiB"], "did you mean vgg16"),
        (["vgg16", "--memory", "12 gigs"], "'12 gigs' is not a size"),
        (["vgg16", "--memory=-1"], "'-1' is not a size"),
        (["vgg16", "--memory", "1GiB", "--bandwidth", "0"], "a bandwidth must be above 0"),
        (["vgg16", "--memory", "1GiB", "--policy", "best"], "there is no 'best'"),
        (
            ["alexnet", "--memory", "1GiB", "--policy=all", "--no-offload"],
            "offloads by its own rules: omit",
        ),
    ],
)
def test_invalid_input_exits_with_2(arguments: list[str], message: str, capsys: Capture) -> None:
    assert message in error_of(capsys, ["memory", *arguments], 2)


def test_hidden_characters_of_a_networks_name_are_spelled_on_its_page(
    tmp_path: Path, capsys: Capture
) -> None:
    file, page = tmp_path / "a\u202eb\u200bc", tmp_path / "page.html"
    bundled_network("alexnet", 2).write(file)
    assert main(["memory", str(file), "--memory", "12GiB", "--page", str(page)]) == 0
    for text in (page.read_text(), capsys.readouterr().out):
        assert r"a\u202eb\u200bc" in text
        assert not set(text) & set("\u202e\u200b")


def test_the_page_shows_the_peak_and_the_limit(tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "alexnet.html"
    assert main([*ALEXNET, "--memory", "840MiB", "--page", str(page)]) == 0
    text = page.read_text()
    assert "<title>alexnet within 840 MiB · mucudnn</title>" in text
    assert text.count("peak ") >= 2  # for wide and for narrow screens
    assert "allowed 840 MiB" in text
    assert re.search(r"<title>conv1.backward: \d+ MiB in memory</title>", text)
    assert not re.search(r'(src|href)="(?!#|data:)', text)  # it loads no other file


def test_without_memory_the_table_says_which_batches_fit(capsys: Capture) -> None:
    result = json_of(capsys, ["memory", "alexnet", "--device", "rtx4090", "--optimizer", "adamw", "--json"])
    largest, planned = result["largest"], result["largest_with_plan"]
    assert 0 < largest < planned
    rows = {row["batch"]: row for row in result["rows"]}
    assert rows[largest]["peak"] <= rows[largest]["memory"]
    assert rows[largest]["planned_ms"] == rows[largest]["time_ms"]
    above = max(rows)
    assert largest < above <= planned
    assert rows[above]["floor"] <= rows[above]["memory"] < rows[above]["peak"]
    assert rows[above]["planned_ms"] >= rows[above]["time_ms"]


def test_adafactor_takes_less_than_adam(capsys: Capture) -> None:
    command = ["memory", "alexnet", "--batch", "128", "--list-devices", "--json", "--optimizer"]
    adafactor, adam = (json_of(capsys, [*command, name])["rows"] for name in ("adafactor", "adam"))
    assert adafactor[0]["peak"] < adam[0]["peak"]


def test_devices_are_compared_for_a_batch(capsys: Capture) -> None:
    text = output_of(capsys, ["memory", "alexnet", "--batch", "4000", "--list-devices"])
    assert re.search(r"titanx +12 GiB .*(with a plan|no) +modelled\n", text)
    assert re.search(r"h200 +131 GiB .*yes +modelled\n", text)


def test_flags_of_a_plan_need_the_memory(capsys: Capture) -> None:
    assert "--output is for a plan: give --memory" in error_of(
        capsys, ["memory", "alexnet", "--output", "x.plan"], 2
    )
    assert "give it without --memory" in error_of(capsys, [*ALEXNET, "--memory=1GiB", "--optimizer=sgd"], 2)
