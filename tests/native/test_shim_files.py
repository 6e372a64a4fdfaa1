"""The drop-in never stops a program for a file: full disks, locks, links and pipes are warnings."""

from __future__ import annotations

import fcntl
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from reference import PASSES
from shim_cases import case, run_under_shim
from shim_journal import journal_in
from shim_modes import run_online

SMALL = "f32:nchw:default:mb6_ic4ih10_oc6_kh3_ph1"
MAGIC = "mucudnn plan 1\n"  # the first line of a document in the journal


def test_a_record_stays_whole_where_it_cannot_be_written_and_the_warning_says_why(tmp_path: Path) -> None:
    record = tmp_path / "network.txt"
    recording = {"MUCUDNN_MODE": "record", "MUCUDNN_RECORD": str(record), "MUCUDNN_LOG": "warning"}
    run_under_shim([case(SMALL, pass_) for pass_ in PASSES], tmp_path, **recording)
    before = record.read_text()
    other = case("f16:nhwc:tf32:g2mb3_ic4id5ih6iw7_oc4_kd3kh3kw3", "forward")
    results = run_under_shim([other], tmp_path, LARGEST_FILE=str(len(before)), **recording)
    assert results.stderr == f"mucudnn: not recorded: '{record}' cannot be written: File too large\n"
    assert record.read_text() == before
    assert [file.name for file in tmp_path.iterdir() if "network" in file.name] == ["network.txt"]


def test_processes_that_end_at_the_same_time_all_add_to_the_record(tmp_path: Path) -> None:
    recording = {"MUCUDNN_MODE": "record", "MUCUDNN_RECORD": str(tmp_path / "network.txt")}
    folders = [tmp_path / str(number) for number in range(6)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda folder: run_under_shim([case(SMALL, "forward")], folder, **recording), folders))
    assert "# forward*6\n" in (tmp_path / "network.txt").read_text()


def test_a_record_keeps_its_permissions_and_a_new_one_is_for_its_user_alone(tmp_path: Path) -> None:
    record = tmp_path / "network.txt"
    recording = {"MUCUDNN_MODE": "record", "MUCUDNN_RECORD": str(record)}
    run_under_shim([case(SMALL, "forward")], tmp_path, **recording)
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    record.chmod(0o644)
    run_under_shim([case(SMALL, "forward")], tmp_path, **recording)
    assert (stat.S_IMODE(record.stat().st_mode), "forward*2" in record.read_text()) == (0o644, True)


def test_a_record_and_a_journal_that_are_links_are_one_warning_and_their_targets_stay(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("")
    record = tmp_path / "network.txt"
    record.symlink_to(precious)
    journal_in(tmp_path).symlink_to(precious)
    convolution = case(SMALL, "forward")
    recorded = run_under_shim([convolution], tmp_path, MUCUDNN_MODE="record", MUCUDNN_RECORD=str(record))
    assert [line for line in recorded.warnings if "not recorded" in line] == [
        f"mucudnn: not recorded: '{record}' cannot be opened: it is a symbolic link, which is not followed"
    ]
    results = run_online(tmp_path, convolution, convolution, MUCUDNN_LOG="warning")
    assert results.warnings == [
        f"mucudnn: measurements are neither read nor kept: '{journal_in(tmp_path)}' is a symbolic link"
    ]
    assert precious.read_text() == ""


def test_a_plans_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    plan = tmp_path / "sent.plan"
    hostile = "\x1b]0;title\x07\x7f\x9b2J\tcafé"
    plan.write_text(f"mucudnn plan 1\ndevice {hostile}\nend 0\n", encoding="utf-8")
    results = run_under_shim(
        [case(SMALL, "forward")], tmp_path, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan), MUCUDNN_LOG="warning"
    )
    [warning] = results.warnings
    assert r"its device is '\x1b]0;title\x07\x7f\xc2\x9b2J\x09café', here it is '" in warning


def test_a_file_of_a_terabyte_is_a_warning_and_is_not_read(tmp_path: Path) -> None:
    plan = tmp_path / "huge.plan"
    for file in (plan, journal_in(tmp_path)):
        file.touch()
        os.truncate(file, 1 << 40)
    convolution = case(SMALL, "forward")
    planned = run_under_shim(
        [convolution], tmp_path, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan), MUCUDNN_LOG="warning"
    )
    [warning] = planned.warnings
    assert f"'{plan}' cannot be read: File too large; calls are passed on" in warning
    [warning] = run_online(tmp_path, convolution, MUCUDNN_LOG="warning").warnings
    assert warning.startswith("mucudnn: earlier measurements are not known: ")
    assert warning.endswith(" cannot be read: File too large")


def test_a_folder_of_the_cache_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "folder").symlink_to(tmp_path / "disk")
    cache = {"MUCUDNN_CACHE": str(tmp_path / "folder" / "cache.sqlite"), "MUCUDNN_LOG": "warning"}
    assert run_online(tmp_path, case(SMALL, "forward"), **cache).warnings == []
    assert journal_in(tmp_path / "disk").read_text().startswith(MAGIC)


def test_a_pipe_in_place_of_a_plan_a_journal_or_a_record_is_a_warning_and_nobody_waits_for_it(
    tmp_path: Path,
) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    os.mkfifo(journal_in(tmp_path))
    convolution = case(SMALL, "forward")
    planned = run_under_shim(
        [convolution], tmp_path, MUCUDNN_MODE="plan", MUCUDNN_PLAN=pipe, MUCUDNN_LOG="warning"
    )
    assert planned.warnings == [
        f"mucudnn: the plan '{pipe}' is not followed: '{pipe}' cannot be read: it is not a regular file; "
        "calls are passed on"
    ]
    recording = {"MUCUDNN_MODE": "record", "MUCUDNN_RECORD": pipe, "MUCUDNN_LOG": "warning"}
    assert run_under_shim([convolution], tmp_path, **recording).warnings == [
        f"mucudnn: not recorded: '{pipe}' cannot be opened: it is not a regular file"
    ]
    results = run_online(tmp_path, convolution, convolution, MUCUDNN_LOG="warning")
    assert [line.split(": ")[1] for line in results.warnings] == [
        "earlier measurements are not known",
        "measurements are not kept",
    ]


def test_a_journal_that_stays_locked_is_waited_for_once_and_the_program_goes_on(tmp_path: Path) -> None:
    cases = [case(SMALL, pass_) for pass_ in PASSES]
    journal = journal_in(tmp_path)
    with journal.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        results = run_online(tmp_path, *cases, MUCUDNN_LOG="warning")
        assert results.warnings == [
            f"mucudnn: waiting for another process, which has locked '{journal}'",
            f"mucudnn: measurements are not kept: '{journal}' stays locked by another process",
        ]
    assert [facts["statuses"] for facts in results.facts] == [[0]] * 3
    assert journal.read_text() == ""


def test_a_journal_on_a_full_disk_ends_with_a_whole_document(tmp_path: Path) -> None:
    run_online(tmp_path, case(SMALL, "forward"))
    journal = journal_in(tmp_path)
    before = journal.read_text()
    cases = [case(SMALL, pass_) for pass_ in PASSES]
    results = run_online(tmp_path, *cases, LARGEST_FILE=str(len(before) + 100), MUCUDNN_LOG="warning")
    assert results.warnings == [
        f"mucudnn: measurements are not kept: '{journal}' cannot be written: File too large"
    ]
    assert journal.read_text() == before
