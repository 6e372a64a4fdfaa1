"""The text form of networks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import PROBLEM, networks, odd_names

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
{
 "kind": "mucudnn network",
 "version": 2,
 "tensors": [
  {"name": "image", "shape": [2, 3, 8, 8], "kind": "input"},
  {"name": "conv.weight", "shape": [4, 3, 3, 3], "kind": "parameter"},
  {"name": "conv", "shape": [2, 4, 8, 8]},
  {"name": "relu", "shape": [2, 4, 8, 8], "in_place_of": "conv"},
  {"name": "the mean", "shape": [], "data_type": "f64", "kind": "output"}
 ],
 "steps": [
  {
   "name": "conv",
   "reads": ["image", "conv.weight"],
   "writes": ["conv"],
   "saves": ["image", "conv.weight"],
   "kernels": [
    {
     "problem": "f32:nchw:default:g1mb2_ic3ih8iw8_oc4oh8ow8_kh3kw3_sh1sw1_ph1pw1_dh0dw0",
     "pass": "forward",
     "name": "conv"
    }
   ]
  },
  {"name": "relu", "reads": ["conv"], "writes": ["relu"], "saves": ["relu"]},
  {"name": "mean", "reads": ["relu"], "writes": ["the mean"], "flops": 512},
  {"name": "relu.backward", "reads": ["relu"], "backward_of": "relu"}
 ]
}
"""


def test_a_network_reads_like_this() -> None:
    assert str(NETWORK) == TEXT


@given(networks(odd_names))
def test_any_network_reads_back_as_the_same(network: Network) -> None:
    text = str(network)
    read = Network.parse(text)
    assert read == network
    assert str(read) == text
    kernels = [[(k.name, k.count) for k in step.kernels] for step in read.steps]
    assert kernels == [[(k.name, k.count) for k in step.kernels] for step in network.steps]


@given(st.integers(0, len(TEXT) - 3))
def test_a_truncated_network_is_refused(length: int) -> None:
    with pytest.raises(UsageError, match="it is not JSON: "):
        Network.parse(TEXT[:length])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"kind": "mucudnn network"', '"kind": "network"', "this is not a mucudnn network: its kind is not"),
        ('"version": 2', '"version": "2"', "the version of the network is '2', must be 2: make it again"),
        ('"version": 2', '"version": 1', "the version of the network is 1, must be 2"),
        ("[2, 3, 8, 8]", "[2, 3.5]", r"tensors\[0\].shape\[1\] is 3.5: expected `int`, got `float`"),
        (
            '"shape": [2, 3, 8, 8], ',
            "",
            r"tensors\[0\] is {.*image.*}: object missing required field `shape`",
        ),
        ("[2, 3, 8, 8]", "[2, -3]", r"tensors\[0\]: a size of tensor 'image' is -3: it must be at least 0"),
        ('"pass": "forward"', '"pass": 1', r"steps\[0\].kernels\[0\].pass is 1: expected `str`"),
        ("ic3", "ic0", r"steps\[0\].kernels\[0\].problem: the number of input channels"),
    ],
)
def test_a_broken_network_is_refused_by_field_and_value(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(UsageError, match=message):
        Network.parse(TEXT.replace(old, new, 1))


@given(networks(odd_names), st.data())
def test_a_name_that_is_no_field_is_refused_wherever_it_is(network: Network, data: st.DataObject) -> None:
    content = json.loads(str(network))
    objects = [content]
    for found in objects:
        objects += [entry for value in found.values() if isinstance(value, list)
                    for entry in value if isinstance(entry, dict)]  # fmt: skip
    data.draw(st.sampled_from(objects))["another"] = 1
    with pytest.raises(UsageError, match="has 'another', which is not one of"):
        Network.parse(json.dumps(content))


def test_the_page_about_networks_tells_the_truth() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "network.md").read_text()
    (text,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    forward = Network.parse(text)
    assert str(forward) == text
    training = forward.with_backward()
    relu = training.lifetimes["relu"]
    again = training.recomputation("indices")
    for answer in (
        " and ".join(f"`{tensor.name}`" for tensor in training.saved),
        f"after step {relu.last_forward_use}, until step {relu.first_backward_use}",
        f"run step `{again.steps[0].name}`, from `{again.sources[0].name}`",
        " and ".join(f"`{kernel}`" for kernel in training.kernels()),
    ):
        assert f"| {answer} |" in page


def test_an_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "net.txt"
    with pytest.raises(MucudnnError, match=r"the network .*net\.txt cannot be read: No such file"):
        Network.read(path)
    path.write_text(TEXT.replace('["conv"]', '["cow"]'))
    with pytest.raises(MucudnnError, match=r"net\.txt: step 'conv' names 'cow', which is not"):
        Network.read(path)
    path.write_text(TEXT.replace('"version": 2', '"version": 3'))
    with pytest.raises(NewerFileError, match=r"net\.txt: the network is of version 3"):
        Network.read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(MucudnnError, match=r"net\.txt is not a network: it is not text"):
        Network.read(path)
    with pytest.raises(MucudnnError, match=r"the network .* cannot be written"):
        NETWORK.write(tmp_path / "no" / "folder.txt")
    with pytest.raises(ArgumentTypeError, match="path is 7, not the path of a network"):
        Network.read(7)  # type: ignore[arg-type]  # wrong on purpose
