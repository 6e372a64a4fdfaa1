"""Processes that measure into one cache at once lose no row and measure nothing twice."""

import argparse
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from cached_rows import times_in
from command_line import Capture, error_of
from recorder import Recorder

from mucudnn.cli import devices, main
from mucudnn.costs import claims as claiming
from mucudnn.costs.cache import Cache
from mucudnn.costs.claims import Claims, Patience
from mucudnn.costs.records import Machine
from mucudnn.costs.schema import COMPARISON
from mucudnn.listener import Listener

pytestmark = pytest.mark.usefixtures("cache_path")

NETWORK = "\n".join(f"ic4ih{size}_oc4_kh3" for size in range(8, 16))


@pytest.fixture
def network(tmp_path: Path) -> str:
    file = tmp_path / "network.txt"
    file.write_text(NETWORK)
    return str(file)


def test_eight_processes_measure_everything_once(network: str, cache_path: Path) -> None:
    command = [sys.executable, "-m", "mucudnn", "optimize", network, "--batch", "4", "--json"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    results = [json.loads(process.communicate()[0]) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    with Cache.read_only(cache_path) as cache:
        measured, compared = len(times_in(cache)), len(cache.select(COMPARISON))
    assert compared >= 8  # if a division misses its prediction, other candidates run whole too
    assert sum(result["new_measurements"] for result in results) == measured + compared
    # All processes took the same decisions, because all used the same measurements.
    assert len({json.dumps({**result, "new_measurements": 0}) for result in results}) == 1


def test_a_claim_belongs_to_one_process_until_it_ends_in_any_way(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    script = (
        "import signal, sys; from pathlib import Path; from mucudnn.costs.claims import Claims\n"
        "with Claims(Path(sys.argv[1])).claim('a kernel'):\n"
        "    print('mine', flush=True)\n    signal.pause()"
    )
    owner = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "mine\n"
    claims = Claims(path)
    with claims.claim("a kernel") as ours:
        assert not ours
    with claims.claim("another kernel") as ours:
        assert ours
    owner.send_signal(signal.SIGKILL)
    with claims.claim("a kernel", Patience("it works")) as ours:
        assert ours
    owner.communicate()
    claims.close()


def test_a_process_that_makes_no_progress_is_not_waited_for(
    cache_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "PATIENCE_SECONDS", 1.5)
    listener = Recorder()
    with Cache.open(cache_path) as owner, Cache.open(cache_path, listener=listener) as other:
        held = owner.claimed("a", str)
        assert next(held) == "a"
        assert list(other.claimed("ab", str)) == ["b", "a"]
        held.close()
    assert listener.messages == [
        "Waiting for another process: it is to a",
        "Going on without it: nothing has changed for 2 s",
    ]


def test_kernels_that_others_measure_come_last(cache_path: Path) -> None:
    with Cache.open(cache_path) as cache, Cache.open(cache_path) as other_cache:
        own, others = cache.claimed("abc", str), other_cache.claimed("abc", str)
        assert [next(others), next(own), next(others)] == ["a", "b", "c"]
        others.close()
        assert list(own) == ["c", "a"]


def test_the_kernels_of_a_network_are_spread_over_devices(
    network: str, cache_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["benchmark", network, "--batch", "4", "--devices", "0,1"]) == 0
    captured = capfd.readouterr()
    assert {line.partition(":")[0] for line in captured.err.splitlines()} <= {"Device 0", "Device 1"}
    *_, kept, next_command = captured.out.splitlines()
    with Cache.read_only(cache_path) as cache:
        count, [machine] = len(times_in(cache)), cache.machines()
    assert kept == f"{count} new measurements on {machine}, kept in {cache_path}"
    assert next_command == f"Next: mucudnn optimize {network} --batch 4"
    assert main(["benchmark", network, "--batch", "4"]) == 0
    assert "0 new measurements" in capfd.readouterr().out


def test_each_devices_process_sees_that_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-abc,7")
    here = Machine("host", "a device", "a library", 1)
    seen = []

    def measured(arguments: object, listener: Listener) -> tuple[Machine, int]:
        listener.message("hello")
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return here, 3

    def in_place(device: str, arguments: argparse.Namespace) -> tuple[BaseProcess, Connection]:
        receiver, sender = multiprocessing.Pipe(duplex=False)
        with monkeypatch.context() as patch:
            patch.setenv(
                "CUDA_VISIBLE_DEVICES", ""
            )  # restored afterwards, because this simulates another process
            devices._work(sender, device, arguments)
        process = multiprocessing.get_context("spawn").Process(target=print)
        process.start()
        return process, receiver

    monkeypatch.setattr(devices, "_measure", measured)
    monkeypatch.setattr(devices, "_start", in_place)
    assert devices.measure_on_devices(argparse.Namespace(), ("2", "1", "GPU-def")) == {here: 9}
    assert seen == ["7", "GPU-abc", "GPU-def"]


@pytest.mark.parametrize(
    ("devices", "visible", "code", "part"),
    [
        ("0,0", None, 2, "given twice"),
        ("one", None, 2, "'one' is not a device"),
        ("", None, 2, "'' is not a device"),
        ("0,1", "3", 4, "there is no device 1: CUDA_VISIBLE_DEVICES is 3"),
    ],
)
def test_missing_devices_are_named(
    devices: str, visible: str | None, code: int, part: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (line,) = error_of(capsys, ["benchmark", "ic4ih8_oc4_kh3", "--devices", devices], code).splitlines()
    assert part in line


def test_a_failure_in_a_devices_process_is_reported_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "ic4ih8_oc4_kh3", "--devices", "0,1", "--engine", "cudnn"]) == 4
    (line,) = capfd.readouterr().err.splitlines()
    assert "no cuDNN device" in line


def ignores_interrupts(process: int) -> bool:
    (ignored,) = re.findall(r"^SigIgn:\s*(\w+)", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return bool(int(ignored, 16) >> (signal.SIGINT - 1) & 1)


def test_an_interrupt_of_all_devices_processes_is_reported_in_one_line(cache_path: Path) -> None:
    command = [sys.executable, "-m", "mucudnn", "benchmark", "vgg16", "--batch", "2", "--devices", "0,1"]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stderr is not None
    running.stderr.readline()  # one process is about to measure, the other may still start
    while ignores_interrupts(running.pid):  # a child inherits this
        time.sleep(0.001)
    os.killpg(running.pid, signal.SIGINT)  # Ctrl+C in a terminal does the same
    out, error = running.communicate()
    assert (running.returncode, out) == (130, "")
    *_, last = (line for line in error.splitlines() if not line.startswith("Device"))
    assert last == f"mucudnn: interrupted: what was measured is kept in {cache_path}"
    assert "Traceback" not in error


def test_a_killed_devices_process_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    start = devices._start

    def killed(device: str, arguments: argparse.Namespace) -> tuple[BaseProcess, Connection]:
        process, receiver = start(device, arguments)
        process.kill()
        return process, receiver

    monkeypatch.setattr(devices, "_start", killed)
    assert main(["benchmark", "ic4ih8_oc4_kh3", "--devices", "0"]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line == "mucudnn: a measuring process was killed; the cache keeps what it had measured"
