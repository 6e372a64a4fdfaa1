"""The convolutions of a network in unmodified onnxruntime-gpu, for `recognised`.

usage: python bench/suites/drop_in/recognised_onnxruntime.py NETWORK
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from bench.suites.drop_in.recognised import options_of, output_shape, read_convolutions, shapes_of
from mucudnn.problems.kernels import Kernel

TYPES = {np.float32: onnx.TensorProto.FLOAT, np.float16: onnx.TensorProto.FLOAT16}
OPERATORS = helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)


class Form(NamedTuple):
    """A way to write a convolution in ONNX."""

    operator: str
    domain: str = ""
    has_bias: bool = False
    has_addend: bool = False
    activation: str = ""


# The types and forms that onnxruntime has for CUDA. Its optimizer makes FusedConv of Conv, Add and Relu.
FORMS = {
    np.float32: [
        Form("Conv"),
        Form("Conv", has_bias=True),
        Form("FusedConv", "com.microsoft", has_bias=True, activation="Relu"),
        Form("FusedConv", "com.microsoft", has_bias=True, has_addend=True, activation="Relu"),
        Form("ConvTranspose"),
    ],
    np.float16: [Form("Conv"), Form("Conv", has_bias=True), Form("ConvTranspose")],
}


def main(network: str) -> None:
    """Run each convolution once in each form, with and without onnxruntime's own fusion of the bias."""
    for type_, forms in FORMS.items():
        for form in forms:
            # cuDNN has no engine for the fused graph in 16 bits, which has 16-bit intermediates in NCHW.
            # onnxruntime then makes the call that it makes without fusion.
            for fuses in ("0", "1") if form.has_bias and type_ is np.float32 else ("0",):
                _run(read_convolutions(network), type_, form, fuses)


def _run(kernels: list[Kernel], type_: Any, form: Form, fuses: str) -> None:
    inputs: dict[str, Any] = {}
    nodes, outputs, constants = [], [], []

    def give(name: str, shape: list[int]) -> str:
        inputs[name] = np.zeros(shape, type_)
        return name

    for index, kernel in enumerate(kernels):
        x, w = shapes_of(kernel)
        options = options_of(kernel)
        y = output_shape(x, w, options)
        first = y if form.operator == "ConvTranspose" else x
        names = [give(f"x{index}", first), f"w{index}"]
        constants.append(helper.make_tensor(names[1], TYPES[type_], w, bytes(_bytes(w, type_)), raw=True))
        if form.has_bias:
            names.append(f"b{index}")
            bias = helper.make_tensor(names[2], TYPES[type_], [w[0]], bytes(_bytes([w[0]], type_)), raw=True)
            constants.append(bias)
        if form.has_addend:
            names.append(give(f"z{index}", y))
        attributes = {
            "strides": options["stride"],
            "pads": options["padding"] * 2,
            "dilations": options["dilation"],
            "group": options["groups"],
        }
        if form.activation:
            attributes["activation"] = form.activation
        nodes.append(helper.make_node(form.operator, names, [f"y{index}"], domain=form.domain, **attributes))
        outputs.append(helper.make_tensor_value_info(f"y{index}", TYPES[type_], None))
    declared = [
        helper.make_tensor_value_info(name, TYPES[type_], value.shape) for name, value in inputs.items()
    ]
    graph = helper.make_graph(nodes, "convolutions", declared, outputs, constants)
    model = helper.make_model(graph, opset_imports=OPERATORS, ir_version=9)
    own = {"cudnn_conv_algo_search": "HEURISTIC", "fuse_conv_bias": fuses}
    session_options = onnxruntime.SessionOptions()
    session_options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), session_options, providers=[("CUDAExecutionProvider", own)]
    )
    session.run(None, inputs)


def _bytes(shape: list[int], type_: Any) -> int:
    return int(np.prod(shape) * np.dtype(type_).itemsize)


if __name__ == "__main__":
    main(sys.argv[1])
