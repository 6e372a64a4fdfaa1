"""`mucudnn parallel place` and `project`: tables and JSON from networks and scaling tables."""

from pathlib import Path

import pytest
from command_line import Capture, error_of, json_of, output_of

from mucudnn.problems.bundled import bundled_network

TABLE = "devices,step_ms,epochs,source\n1,100,10,measured\n8,110,10,measured\n16,125,20,given\n"
FAST = ("--device", "titanx", "--bandwidth", "150GiB", "--batch", "16")


@pytest.fixture
def scaling(tmp_path: Path) -> str:
    path = tmp_path / "scaling.csv"
    path.write_text(TABLE)
    return str(path)


def test_place_shows_what_several_devices_gain(capsys: Capture) -> None:
    content = json_of(capsys, ["parallel", "place", "googlenet", *FAST, "--json"])
    assert content["is_proven"]
    assert 1 < content["speedup"] <= 2
    assert {operation["device"] for operation in content["operations"]} == {0, 1}
    assert len(content["operations"]) == bundled_network("googlenet", 16).with_backward().turn
    printed = output_of(capsys, ["parallel", "place", "googlenet", *FAST])
    assert "modelled" in printed
    assert "optimal if operations without a branch between them stay together" in printed


def test_too_little_memory_on_the_devices_is_reported(capsys: Capture) -> None:
    assert "need at least" in error_of(
        capsys, ["parallel", "place", "googlenet", *FAST, "--memory", "1MiB"], 3
    )


def test_project_labels_every_input_and_names_the_better_strategy(scaling: str, capsys: Capture) -> None:
    printed = output_of(capsys, ["parallel", "project", scaling, "--speedup", "2=1.5"])
    assert "scaling table: given, measured; a replica on 2 devices 1.50× (given)" in printed
    assert "hybrid, by 70.5%" in printed
    content = json_of(capsys, ["parallel", "project", scaling, "--speedup", "2=1.5", "--json"])
    rows = {row["devices"]: row for row in content["projection"]}
    assert rows[16]["hybrid"] == pytest.approx(10.909, rel=1e-3)
    assert (rows[16]["replicas"], rows[16]["devices_each"], rows[8]["hybrid"]) == (8, 2, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it names none"),
        ("devices,step_ms\n1,2\n", "must name the columns devices, step_ms, epochs"),
        ("devices,step_ms,epochs\n1,1,1\n1,2,1\n", "line 3: there is a row for 1 devices already"),
        ("devices,step_ms,epochs\n1,fast,1\n", "line 2: could not convert string to float: 'fast'"),
        ("devices,step_ms,epochs\n1.5,1,1\n", "line 2: devices is 1.5, must be a whole number"),
        ("devices,step_ms,epochs\n1,nan,1\n", "line 2: a figure is not finite"),
        ("devices,step_ms,epochs\n1,-1,1\n", "line 2: step_ms is -1.0, must be above 0"),
        ("devices,step_ms,epochs,source\n1,1,1,guessed\n", "the source is 'guessed'"),
        (f"devices,step_ms,epochs\n1,1,{'1' * 200_000}\n", "is not a table: field larger than field limit"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(
    tmp_path: Path, capsys: Capture, text: str, message: str
) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    assert message in error_of(capsys, ["parallel", "project", str(path), "--speedup", "2=1.5"], 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["parallel", "place", "nosuch"], "is not a network, a file or a descriptor"),
        (
            ["parallel", "place", "googlenet", "--devices", "0"],
            "the number of devices must be from 1 to 64, not 0",
        ),
        (["parallel", "project", "TABLE"], "required: --speedup"),
        (["parallel", "project", "TABLE", "--speedup", "2"], "'2' is not a speedup of several devices"),
        (["parallel", "project", "TABLE", "--speedup", "1=2"], "'1=2' is not a speedup of several devices"),
    ],
)
def test_wrong_arguments_are_refused(
    scaling: str, capsys: Capture, arguments: list[str], message: str
) -> None:
    words = [scaling if word == "TABLE" else word for word in arguments]
    assert message in error_of(capsys, words, 2)
