"""The text form of networks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import PROBLEM, networks, odd_names, trainable

from mucudnn._native import Problem
from mucudnn.errors import ArgumentTypeError, MucudnnError, NewerFileError, UsageError
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.network import Network
from mucudnn.problems.steps import Step, Tensor

VOLUME = Problem(
    mini_batch=2, in_channels=4, out_channels=4, input=(4, 4, 4), kernel=(3, 3, 3), padding=1, groups=2
)

NETWORK = Network(
    (
        Tensor("image", (2, 3, 8, 8), kind="input"),
        Tensor("conv.weight", (4, 3, 3, 3), kind="parameter"),
        Tensor("conv", (2, 4, 8, 8)),
        Tensor("relu", (2, 4, 8, 8), in_place_of="conv"),
        Tensor("the mean", (), "f64", "output"),
    ),
    (
        Step(
            "conv",
            ("image", "conv.weight"),
            ("conv",),
            ("image", "conv.weight"),
            (Kernel(PROBLEM, "forward"),),
        ),
        Step("relu", ("conv",), ("relu",), ("relu",)),
        Step("mean", ("relu",), ("the mean",), flops=512),
        Step("relu.backward", ("relu",), backward_of="relu"),
    ),
)
TEXT = """\
mucudnn network 1
tensor image f32[2,3,8,8] input
tensor conv.weight f32[4,3,3,3] parameter
tensor conv f32[2,4,8,8]
tensor relu f32[2,4,8,8] in_place_of conv
tensor "the mean" f64[] output
step conv reads image conv.weight writes conv saves image conv.weight
kernel forward 1 f32:nchw:default:g1mb2_ic3ih8iw8_oc4oh8ow8_kh3kw3_sh1sw1_ph1pw1_dh0dw0
step relu reads conv writes relu saves relu
step mean reads relu writes "the mean" flops 512
step relu.backward backward_of relu reads relu
end 4
"""


def test_a_network_reads_like_this() -> None:
    assert str(NETWORK) == TEXT


def test_it_reads_back() -> None:
    assert Network.parse(TEXT) == NETWORK


def test_an_empty_network_has_a_text_too() -> None:
    assert str(Network()) == "mucudnn network 1\nend 0\n"
    assert Network.parse(str(Network())) == Network()


def test_kernels_keep_their_count_and_take_the_name_of_their_step() -> None:
    step = Step("s", kernels=(Kernel(VOLUME, "backward_data", "other", 3), Kernel(PROBLEM, "forward")))
    read = Network.parse(str(Network((), (step,)))).steps[0].kernels
    assert [(k.problem, k.pass_, k.name, k.count) for k in read] == [
        (VOLUME, "backward_data", "s", 3),
        (PROBLEM, "forward", "s", 1),
    ]


@given(networks(odd_names))
def test_any_network_reads_back_as_the_same(network: Network) -> None:
    text = str(network)
    read = Network.parse(text)
    assert read == network
    assert str(read) == text
    kernels = [[(k.name, k.count) for k in step.kernels] for step in read.steps]
    assert kernels == [[(k.name, k.count) for k in step.kernels] for step in network.steps]
    assert len(text.splitlines()) == 2 + len(network.tensors) + len(kernels) + sum(map(len, kernels))


@given(trainable())
def test_a_training_step_reads_back_as_the_same(network: Network) -> None:
    training = network.with_backward()
    assert Network.parse(str(training)) == training


def test_comments_empty_lines_and_spaces_are_skipped() -> None:
    lines = [
        f"  {line.replace(' ', '   ')} \r\n# a comment\n\n"
        for line in TEXT.splitlines()
        if "mean" not in line
    ]
    lines[0] = "# made by hand\n\n" + TEXT.splitlines()[0] + "\n"
    text = "".join(lines).replace("end   4", "end 3")
    assert len(Network.parse(text).steps) == 3


def test_a_tensor_may_stand_directly_before_its_first_step() -> None:
    text = "mucudnn network 1\ntensor a f32[1]\nstep s writes a\ntensor b f32[1]\nstep t writes b\nend 2\n"
    assert [tensor.name for tensor in Network.parse(text).tensors] == ["a", "b"]


@given(st.integers(0, len(TEXT) - 2))
def test_a_truncated_network_is_refused(length: int) -> None:
    with pytest.raises(UsageError, match=r"line [0-9]+: "):
        Network.parse(TEXT[:length])


@given(st.data())
def test_a_damaged_network_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(TEXT) - 1))
    damaged = TEXT[:at] + data.draw(st.characters(max_codepoint=300)) + TEXT[at + 1 :]
    try:
        Network.parse(damaged)
    except (UsageError, NewerFileError):
        return


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mucudnn network 1", "something else", "line 1: this is not a mucudnn network"),
        ("network 1", "network 0", "line 1: this is not a mucudnn network"),
        ("network 1", "network one", "line 1: this is not a mucudnn network"),
        ("input", "entry", "line 2: tensor 'image' is of the kind 'entry'"),
        ("f32[2,3,8,8]", "2x3x8x8", "line 2: '2x3x8x8' is not a data type with sizes"),
        ("f32[2,3,8,8]", "f32[2,-3]", "line 2: "),
        ("f32[2,3,8,8]", "f31[2]", "line 2: tensor 'image' has the data type 'f31'"),
        ("image f32[2,3,8,8] input", "image", "line 2: a tensor has the form: tensor NAME TYPE"),
        ("parameter", "parameter 7", "line 3: a tensor has the form: tensor NAME TYPE"),
        ("of conv", "of conv image", "line 5: one value follows 'in_place_of', not 2"),
        ("tensor relu", "tensor conv", "line 5: two tensors have the name 'conv'"),
        ('"the mean" f64', '"the mean f64', "line 6: '\"the mean f64.*' has a quote that is not closed"),
        ('"the mean" f64', '"the mean"f64', "line 6: '\"the mean\"f64.*' has a quote"),
        ('"the mean" f64', '"\\q" f64', "line 6: .* is not a name in quotes, written as in JSON"),
        ("step conv ", "step ", "line 7: a step has the form: step NAME"),
        (
            "step mean reads relu",
            "step mean reads picture",
            "line 10: step 'mean' names 'picture', which is not a tensor",
        ),
        ("writes conv", "writes conv writes", "line 7: 'writes' is given twice"),
        ("kernel forward", "kernel sideways", "line 8: step 'conv' has a kernel in the pass 'sideways'"),
        ("forward 1 ", "forward x ", "line 8: 'x' is not a count"),
        ("forward 1 f", "forward f", "line 8: a kernel has the form: kernel PASS COUNT DESCRIPTOR"),
        ("ic3", "ic0", "line 8: the number of input channels"),
        (
            "reads conv writes relu",
            "writes relu reads relu",
            "line 9: step 'relu' reads 'relu' before a step",
        ),
        ("flops 512", "flops many", "line 10: 'many' is not a number of flops"),
        ("step mean", "kernel forward\nstep mean", "line 10: a kernel has the form"),
        ("step mean", "edge a b\nstep mean", "line 10: 'edge' is not an entry of a network"),
        (
            "step conv reads image",
            "kernel forward 1 mb1\nstep conv reads image",
            "line 7: the kernel does not fol",
        ),
        ("end 4", "end 5", "line 12: the network should have 5 steps, it has 4"),
        ("end 4\n", "end 4\nmore\n", "line 13: there is text after the end"),
        (' writes "the mean"', "", "line 12: no step writes tensor 'the mean', of the kind output"),
        ("end 4\n", "", "line 12: the text stops before the end of the network"),
    ],
)
def test_a_broken_network_is_refused_by_line(old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Network.parse(TEXT.replace(old, new, 1))


def test_a_network_of_a_newer_version_is_told_from_a_broken_one() -> None:
    with pytest.raises(NewerFileError, match="of version 2, this mucudnn reads up to version 1"):
        Network.parse(TEXT.replace("network 1", "network 2"))


def test_the_page_about_networks_tells_the_truth() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "network.md").read_text()
    text, added = re.findall(r"```text\n((?:mucudnn|tensor) .*?)```", page, re.DOTALL)
    forward = Network.parse(text)
    training = forward.with_backward()
    known = text.splitlines()
    assert added.splitlines() == [line for line in str(training).splitlines() if line not in known]
    relu = training.lifetimes["relu"]
    again = training.recomputation("indices")
    for answer in (
        f"{max(training.resident()):,}",
        " and ".join(f"`{tensor.name}`" for tensor in training.saved),
        f"after step {relu.last_forward_use}, until step {relu.first_backward_use}",
        f"run step `{again.steps[0].name}`, from `{again.sources[0].name}`",
        " and ".join(f"`{kernel}`" for kernel in training.kernels()),
        f"`{forward.crossing(1)[0].name}`",
    ):
        assert f"| {answer} |" in page


def test_a_file_keeps_a_network(tmp_path: Path) -> None:
    path = tmp_path / "net.txt"
    NETWORK.write(path)
    assert path.read_text() == TEXT
    assert Network.read(str(path)) == NETWORK


def test_an_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "net.txt"
    with pytest.raises(MucudnnError, match=r"the network .*net\.txt cannot be read: No such file"):
        Network.read(path)
    path.write_text(TEXT.replace("end 4", "end 5"))
    with pytest.raises(MucudnnError, match=r"net\.txt: line 12: the network should have 5 steps"):
        Network.read(path)
    path.write_text(TEXT.replace("network 1", "network 2"))
    with pytest.raises(NewerFileError, match=r"net\.txt: the network is of version 2"):
        Network.read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(MucudnnError, match=r"net\.txt is not a network: it is not text"):
        Network.read(path)
    with pytest.raises(MucudnnError, match=r"the network .* cannot be written"):
        NETWORK.write(tmp_path / "no" / "folder.txt")
    with pytest.raises(ArgumentTypeError, match="path is 7, not the path of a network"):
        Network.read(7)  # type: ignore[arg-type]  # wrong on purpose
