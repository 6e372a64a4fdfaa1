"""Odd arguments, variables and files end in one clear sentence, which has no raw bytes of theirs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import Capture, failure_of, output_of

import mucudnn
from mucudnn.cli import main
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import Machine, Measurement
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.measuring.described_device import described_device, read_properties
from mucudnn.plans.any_plan import read_plan
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.plan import Plan, write_plan
from mucudnn.problems.network import Network
from mucudnn.problems.sources import Flags, read_kernels

pytestmark = pytest.mark.usefixtures("cache_path")

GOOD = "mb2_ic4ih8_oc4_kh3"
PLAN = Path(__file__).parent.parent / "data" / "plan-1.plan"


def only_error(arguments: list[str], capsys: Capture) -> str:
    """Run a command that fails. Return its only line."""
    code, line = failure_of(capsys, *arguments)
    assert code in (1, 2)
    return line


def test_a_descriptor_with_bytes_that_are_not_text_is_refused(capsys: Capture) -> None:
    assert "is not text" in only_error(["optimize", os.fsdecode(b"mb2_ic4ih8\xff")], capsys)


def test_a_descriptor_may_be_longer_than_a_file_name(capsys: Capture) -> None:
    line = only_error(["optimize", f'mb2_ic4ih8_oc4_kx3n"{"a" * 300}"'], capsys)
    assert "File name too long" not in line
    assert "kx3" in line
    assert main(["optimize", f'{GOOD}n"{"a" * 300}"', "--no-run"]) == 0


def test_a_name_that_is_neither_file_nor_network_may_be_long(capsys: Capture) -> None:
    assert "is not a network, a file or a descriptor" in only_error(["optimize", "x" * 300], capsys)


def test_a_device_instead_of_a_file_is_named(capsys: Capture) -> None:
    assert "'/dev/null' is a device or a pipe" in only_error(["optimize", "/dev/null"], capsys)


@pytest.mark.parametrize("variable", ["MUCUDNN_THREADS", "MUCUDNN_WORKSPACE_LIMIT"])
def test_a_variable_of_many_digits_is_named(
    variable: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "9" * 5000)
    line = only_error(["optimize", GOOD], capsys)
    assert line.startswith(f"mucudnn: {variable}: ")
    assert len(line) < 200


@pytest.mark.parametrize("flag", ["--batch", "--threads", "--workspace"])
def test_a_flag_of_many_digits_is_named(flag: str, capsys: Capture) -> None:
    line = only_error(["optimize", GOOD, flag, "9" * 5000], capsys)
    assert flag in line
    assert len(line) < 2200


DEVICE = {"deviceName": "a", "deviceVer": 900, "multiProcessorCount": 1}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({**DEVICE, "deviceName": "two\nlines"}),
        json.dumps({**DEVICE, "deviceVer": float("inf")}),
        '{"a": ' * 100_000,
        json.dumps(DEVICE).replace("900", "9" * 5000),
        json.dumps({**DEVICE, "multiProcessorCount": -1}),
        "[]",
    ],
)
def test_properties_that_describe_no_device_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="does not describe a device"):
        described_device(text)


def test_a_missing_property_is_named() -> None:
    reason = "it is {}: object missing required field `deviceName`"
    with pytest.raises(UsageError, match=f"a device: {reason}; `mucudnn doctor"):
        described_device("{}")


def test_a_byte_order_mark_of_a_list_or_a_description_is_skipped(tmp_path: Path) -> None:
    network, device = tmp_path / "a.txt", tmp_path / "a.json"
    network.write_text(GOOD, "utf-8-sig")
    assert read_kernels(str(network), Flags(), ("forward",)) == read_kernels(GOOD, Flags(), ("forward",))
    device.write_text(json.dumps(DEVICE), "utf-8-sig")
    assert described_device(read_properties(str(device))).startswith("a, compute capability 9.0")


@pytest.mark.parametrize("read", [read_plan, Network.read, MemoryPlan.read])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xef\xbb\xbfmucudnn", "begins with a byte-order mark: save it as UTF-8 without one"),
        (b"mucudnn plan 1\ndevice \xc3", "is cut short"),
        (b"mucudnn plan 1\n\xff\xfe\n", "is not text"),
    ],
    ids=["byte-order mark", "cut inside a character", "no text"],
)
def test_a_plan_or_a_network_is_whole_text_without_a_byte_order_mark(
    content: bytes, message: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(MucudnnError, match=message):
        read(file)


def test_all_sizes_of_a_huge_mini_batch_are_refused(capsys: Capture) -> None:
    line = only_error(["optimize", "mb2000000000_ic1ih1_oc1_kh1", "--batch-policy", "all"], capsys)
    assert "the policy 'all' has too many sizes for a mini-batch of 2000000000" in line


def test_exact_without_a_total_is_refused(capsys: Capture) -> None:
    line = only_error(["optimize", GOOD, "--exact"], capsys)
    assert "--exact" in line
    assert "--total-workspace" in line


def test_a_cache_that_is_a_pipe_does_not_block(cache_path: Path, capsys: Capture) -> None:
    os.mkfifo(cache_path)
    assert "is not a mucudnn cache" in only_error(["cache", "list"], capsys)
    assert "is not a mucudnn cache" in only_error(["optimize", GOOD], capsys)
    other = cache_path.with_name("other")
    os.mkfifo(other)
    assert "is not a mucudnn cache" in only_error(["optimize", GOOD, "--replay", str(other)], capsys)


def test_a_plan_that_is_a_pipe_is_read_once(capsys: Capture) -> None:
    reading, writing = os.pipe()
    os.write(writing, PLAN.read_bytes())
    os.close(writing)
    assert main(["plan", "show", f"/dev/fd/{reading}"]) == 0
    os.close(reading)
    assert "forward" in capsys.readouterr().out


def test_a_plan_that_the_program_could_not_read_again_is_refused(capsys: Capture) -> None:
    reading, writing = os.pipe()
    os.write(writing, PLAN.read_bytes())
    os.close(writing)
    line = only_error(["run", "--plan", f"/dev/fd/{reading}", "--", "true"], capsys)
    os.close(reading)
    assert line.endswith("cannot be read again by the program: give a file")


def test_a_pipe_that_takes_an_outputs_place_does_not_block(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = (
        "import sys; from pathlib import Path; from mucudnn.cli.outputs import PLAN\n"
        "Path.is_file = lambda path: True  # as it was when the command looked\n"
        "PLAN.parse(sys.argv[1])"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(pipe)], timeout=60, check=False)
    assert ended.returncode == 0


def test_an_export_without_rows_or_header_is_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")  # no process writes to it
    for name in ("empty", "pipe"):
        assert f"{name} is empty" in only_error(["cache", "import", str(tmp_path / name)], capsys)


EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m"


def test_control_characters_of_a_plan_are_printed_as_text(tmp_path: Path, capsys: Capture) -> None:
    plan = read_plan(PLAN)
    file = tmp_path / "a.plan"
    write_plan(Plan({**plan.header, "device": f"an {EVIL}array"}, plan.kernels), file)
    assert main(["plan", "show", str(file)]) == 0
    assert main(["plan", "verify", str(file)]) == 1
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert not set(text) & set("\x1b\x07\x9b")
        assert r"an \x1b]0;title\x07\x1b[2J\x9b31marray" in text


def test_cells_of_a_cache_are_printed_as_text(cache_path: Path, capsys: Capture) -> None:
    (kernel,) = read_kernels(GOOD, Flags(), ("forward",))
    with Cache.open(cache_path) as cache:
        measured = Measurement(1, "ALGORITHM", "CUDNN_STATUS_SUCCESS", 0, "", 1.0, 0.0)
        cache.add(Machine("host", f"an {EVIL}array", "[/red][bold]", 1), kernel, measured)
    assert main(["cache", "info"]) == 0
    text = output_of(capsys, ["cache", "list"])
    assert not set(text) & set("\x1b\x07\x9b")
    assert "[/red][bold]" in text


@pytest.mark.parametrize("limit", [64, "64"])
def test_a_small_workspace_without_a_unit_is_refused(limit: int | str) -> None:
    x, w = np.ones((2, 4, 8, 8), np.float32), np.ones((4, 4, 3, 3), np.float32)
    with pytest.raises(UsageError, match=r"'64' has no unit: write 64MiB"):
        mucudnn.convolution_forward(x, w, workspace=limit)
    mucudnn.convolution_forward(x, w, workspace="64B")
