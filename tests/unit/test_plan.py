import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mucudnn._native import parse_descriptor
from mucudnn.errors import ArgumentTypeError, MucudnnError, NewerFileError
from mucudnn.plans.any_plan import read_plan
from mucudnn.plans.plan import Plan, PlanKernel, write_plan
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration

WHOLE = Configuration((MicroConfiguration(8, "LEAN", 8.5, 0),))
HALVES = Configuration((MicroConfiguration(4, "HUNGRY", 2.25, 4096),) * 2)


def kernel(text: str = "mb8_ic4ih5_oc4_kh3", pass_: str = "forward") -> PlanKernel:
    return PlanKernel(Kernel(parse_descriptor(text)[0], pass_), 2, HALVES, (WHOLE, HALVES))


PLAN = Plan({"device": "a device", "workspace_limit": "none"}, (kernel(),))


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "network.plan"
    write_plan(PLAN, path)
    assert read_plan(path) == PLAN
    assert list(tmp_path.iterdir()) == [path]


class OtherPath(os.PathLike[str]):
    """A path that is neither a str nor a pathlib.Path."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return self.path


@pytest.mark.parametrize("kind", [str, Path, OtherPath])
def test_a_path_may_be_of_any_kind(kind: Callable[[str], os.PathLike[str]], tmp_path: Path) -> None:
    path = kind(str(tmp_path / "network.plan"))
    write_plan(PLAN, path)
    assert read_plan(path) == PLAN


@pytest.mark.parametrize("path", [None, 3, b"a.plan", ["a.plan"], PLAN])
def test_a_value_that_is_not_a_path_is_named(path: object) -> None:
    for call in (lambda: write_plan(PLAN, path), lambda: read_plan(path)):
        with pytest.raises(ArgumentTypeError, match=r"path is .*, not the path of a plan"):
            call()


def test_an_object_that_is_not_a_plan_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match=r"plan is 'a\.plan', not a Plan"):
        write_plan("a.plan", tmp_path / "network.plan")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["", ".", "/", "no/such/folder/a.plan", "a" * 300, "a\0b"])
def test_a_path_that_cannot_be_used_is_a_readable_error(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (lambda: write_plan(PLAN, path), lambda: read_plan(path)):
        with pytest.raises(MucudnnError):
            call()


def test_only_equal_plans_have_equal_digests() -> None:
    again = Plan.parse(str(PLAN))
    assert again.digest == PLAN.digest
    assert replace(again, header={**PLAN.header, "device": "another"}).digest != PLAN.digest


def test_an_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "network.plan"
    lines = str(PLAN).splitlines()
    lines[3] = lines[3].replace("kh3", "kh0")
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(MucudnnError, match=r"network.plan: line 4: .*0") as caught:
        read_plan(path)
    assert caught.value.exit_code == 1


def test_times_whose_sum_overflows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.plan"
    path.write_text(str(PLAN).replace("2*4:HUNGRY:2.25", "2*4:HUNGRY:1e308"))
    with pytest.raises(
        MucudnnError, match=r"net\.plan: time_ms of .* is 1e\+308, must be at least 0 and below 2\^63"
    ):
        read_plan(path)


def test_a_plan_of_a_newer_version_is_refused_by_version(tmp_path: Path) -> None:
    path = tmp_path / "network.plan"
    path.write_text(str(PLAN).replace("mucudnn plan 1", "mucudnn plan 2", 1))
    with pytest.raises(NewerFileError, match="version 2") as caught:
        read_plan(path)
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("content", [b"", b"something else\n", b"\xff\xfe"])
def test_a_file_of_another_kind_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(MucudnnError, match="file"):
        read_plan(path)


def test_a_plan_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(MucudnnError, match="cannot be written"):
        write_plan(PLAN, tmp_path / "missing" / "network.plan")
    with pytest.raises(MucudnnError, match="cannot be written"):
        write_plan(PLAN, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_of_version_1_is_read() -> None:
    """Read a file that stays as it is when the format changes."""
    plan = read_plan(Path(__file__).parent.parent / "data" / "plan-1.plan")
    assert plan.header["device"] == "a device"
    assert plan.header["workspace_limit"] == "2097152"
    forward, gradient, wide = plan.kernels
    assert str(forward.problem) == "f32:nchw:default:g1mb8_ic4ih5iw5_oc4oh3ow3_kh3kw3_sh1sw1_ph0pw0_dh0dw0"
    assert [(p.micro_batch, p.algorithm, p.time_ms) for p in forward.chosen.parts] == [(2, "HUNGRY", 2.5)] * 4
    assert forward.chosen in forward.desirable
    assert forward.desirable[1].parts == (MicroConfiguration(1, "HUNGRY.tile=2", 1.75, 2**19),) * 8
    assert (forward.shares, forward.groups) == ((), None)
    assert (gradient.pass_, gradient.count) == ("backward_filter", 3)
    assert [(count, str(share)) for count, share in gradient.shares] == [(1, "8*1 HUNGRY"), (2, "1*8 LEAN")]
    assert wide.groups is not None
    assert str(wide.groups) == "2*2 (4*2 HUNGRY)"


def test_a_notebook_shows_a_plan_as_a_table() -> None:
    plan = read_plan(Path(__file__).parent.parent / "data" / "plan-1.plan")
    odd = Plan({"device": "<b>a & b"}, plan.kernels)
    text = odd._repr_html_()
    assert "device &lt;b&gt;a &amp; b" in text
    assert text.count("<tr>") == 1 + len(plan.kernels) + 2  # a row for each share
    assert "<td>2×2 channels (4×2 HUNGRY)</td><td>5</td><td>1 MiB</td>" in text
    assert "<td>4×2 HUNGRY</td><td>10</td><td>2 MiB</td>" in text
