"""Commands take a model of the user's: a function, an ONNX file, a name of torchvision or timm."""

import sys
from pathlib import Path

import pytest
import torch
from command_line import Capture, error_of, json_of
from programs import imported, imported_torchvision

from mucudnn.torch.tracing import models

pytestmark = pytest.mark.usefixtures("cache_path")

MODULE = """
import torch
from torch import nn


def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 4, 3))


def number():
    return 3


def fails():
    raise KeyError("no weights")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a new folder with the module `my_net`, which commands find as `python -m` does."""
    (tmp_path / "my_net.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    models._build.cache_clear()
    return tmp_path


def passes_of(capsys: Capture, *arguments: str) -> list[str]:
    result = json_of(capsys, ["optimize", *arguments, "--no-run", "--json"])
    return sorted(kernel["pass"] for kernel in result["kernels"])


def test_the_kernels_of_a_function_are_those_of_its_training(capsys: Capture) -> None:
    # The transposed convolution is a gradient of data. The first layer's input needs none.
    own = ["my_net:build", "--input", "2x3x8x8"]
    training = ["backward_data", "backward_filter", "backward_filter", "forward", "forward"]
    assert passes_of(capsys, *own) == training
    assert passes_of(capsys, *own, "--inference") == ["backward_data", "forward"]


def test_the_mini_batch_and_the_data_type_are_those_of_the_flags(capsys: Capture) -> None:
    flags = ["--input", "2x3x8x8", "--batch", "5", "--dtype", "bf16", "--layout", "nhwc"]
    result = json_of(capsys, ["optimize", "my_net:build", *flags, "--no-run", "--json"])
    assert all(kernel["problem"].startswith("bf16:nhwc:default:g1mb5_") for kernel in result["kernels"])


def test_a_training_step_of_a_function_is_planned(capsys: Capture) -> None:
    plan = json_of(capsys, ["memory", "my_net:build", "--input", "8x3x32x32", "--memory", "2GiB", "--json"])
    assert plan["batch"] == 8
    placed = json_of(capsys, ["parallel", "place", "my_net:build", "--input", "8x3x32x32", "--json"])
    assert any("0" in operation["name"] for operation in placed["operations"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["my_net:build"], "give its shape, such as --input 16x3x224x224"),
        (["my_net:number"], "my_net:number returns 3, not a torch.nn.Module"),
        (["my_net:fails"], "my_net:fails makes no model: KeyError: 'no weights'"),
        (["my_net:build", "--input", "2x4x8x8"], "cannot be traced on tensors without data"),
    ],
)
def test_a_function_that_makes_no_such_model_is_an_error(
    arguments: list[str], complaint: str, capsys: Capture
) -> None:
    assert complaint in error_of(capsys, ["optimize", *arguments], 2)


def test_an_onnx_file_is_read_with_its_own_input(folder: Path, capsys: Capture) -> None:
    imported_torchvision()  # onnx2torch imports it
    onnx, _ = imported("onnx"), imported("onnx2torch")
    helper = onnx.helper
    weight = onnx.numpy_helper.from_array(torch.ones(4, 3, 3, 3).numpy(), "w")
    image, result = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)
        for name, sizes in (("x", ["n", 3, 8, 8]), ("y", ["n", 4, 6, 6]))
    )
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3])
    graph = helper.make_graph([node], "net", [image], [result], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), folder / "net.onnx")
    result = json_of(capsys, ["optimize", "net.onnx", "--batch", "2", "--no-run", "--json"])
    problems = {kernel["problem"] for kernel in result["kernels"]}
    assert problems == {"f32:nchw:default:g1mb2_ic3ih8iw8_oc4oh6ow6_kh3kw3_sh1sw1_ph0pw0_dh0dw0"}
    (folder / "bad.onnx").write_text("no model")
    assert "bad.onnx makes no model" in error_of(capsys, ["optimize", "bad.onnx"], 2)


@pytest.mark.parametrize(("library", "name"), [("torchvision", "resnet34"), ("timm", "resnetv2_50")])
def test_a_model_of_a_library_has_its_name(library: str, name: str, capsys: Capture) -> None:
    imported_torchvision()
    if library == "timm":
        imported("timm")
    placed = json_of(capsys, ["parallel", "place", name, "--batch", "2", "--json"])
    assert placed["network"] == name
    assert len(placed["operations"]) > 100


def test_a_name_of_no_library_is_explained(capsys: Capture) -> None:
    imported_torchvision()
    assert "did you mean resnet50" in error_of(capsys, ["optimize", "resnet5"], 2)
