"""Convolutions in unmodified onnxruntime-gpu, for `programs`."""

from __future__ import annotations

from typing import Any

import onnx
import onnxruntime
from onnx import helper

from bench.suites.drop_in.client import Array, Results, make_operands, run_problems
from mucudnn._native import Problem

TYPES = {"f32": onnx.TensorProto.FLOAT, "f16": onnx.TensorProto.FLOAT16}
OPERATORS = helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)


def run(problem: Problem) -> Results:
    """Run a convolution in the forms that onnxruntime has for CUDA, with and without fusing the bias."""
    x, w, y = make_operands(problem)
    bias = w.reshape(len(w), -1)[:, 0].copy()
    ways: dict[str, tuple[dict[str, Array], dict[str, Array], str]] = {
        "Conv": ({"x": x}, {"w": w}, ""),
        "ConvTranspose": ({"y": y}, {"w": w}, ""),
        "Conv with bias": ({"x": x}, {"w": w, "b": bias}, ""),
    }
    if problem.data_type == "f32":
        # onnxruntime's optimizer makes FusedConv of Conv, Add and Relu.
        ways["FusedConv"] = {"x": x}, {"w": w, "b": bias}, "Relu"
        ways["FusedConv with an addend"] = {"x": x, "z": y}, {"w": w, "b": bias}, "Relu"
    results = {}
    for name, (inputs, constants, activation) in ways.items():
        # cuDNN has no engine for the fused graph in 16 bits, which has 16-bit intermediates in NCHW.
        for fuses in ("0", "1") if "b" in constants and problem.data_type == "f32" else ("0",):
            session = _session(name.partition(" ")[0], problem, inputs, constants, activation, fuses)
            (results[f"{name}, {fuses}"],) = session.run(None, inputs)
    return results


def _session(
    operator: str,
    problem: Problem,
    inputs: dict[str, Array],
    constants: dict[str, Array],
    activation: str,
    fuses: str,
) -> Any:
    type_ = TYPES[problem.data_type]
    attributes: dict[str, Any] = {
        "pads": [*problem.padding] * 2, "strides": [*problem.stride], "dilations": [*problem.dilation],
        "group": problem.groups,
    }  # fmt: skip
    if activation:
        attributes["activation"] = activation
    names = [name for name in "xywbz" if name in inputs or name in constants]
    domain = "com.microsoft" if activation else ""
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["result"], domain=domain, **attributes)],
        "convolution",
        [helper.make_tensor_value_info(name, type_, array.shape) for name, array in inputs.items()],
        [helper.make_tensor_value_info("result", type_, None)],
        [
            helper.make_tensor(n, type_, array.shape, array.tobytes(), raw=True)
            for n, array in constants.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=OPERATORS, ir_version=9)
    own = {"cudnn_conv_algo_search": "HEURISTIC", "fuse_conv_bias": fuses}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=[("CUDAExecutionProvider", own)]
    )


if __name__ == "__main__":
    run_problems(run)
