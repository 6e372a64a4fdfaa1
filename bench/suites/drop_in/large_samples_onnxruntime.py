"""Large samples in unmodified onnxruntime-gpu, for `large_samples`.

usage: python bench/suites/drop_in/large_samples_onnxruntime.py RESULTS
"""

from __future__ import annotations

from typing import Any

import onnx
import onnxruntime
from onnx import helper

from bench.suites.drop_in.large_samples import Array, Results, make_operands, run_layers
from mucudnn._native import Problem

FLOAT = onnx.TensorProto.FLOAT
OPERATORS = helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)


def run(problem: Problem) -> Results:
    """Run a layer forward, forward with bias, addition and RELU, and transposed."""
    x, w, y = make_operands(problem)
    bias = w[:, 0].reshape(len(w), -1)[:, 0].copy()
    return {
        "forward": _run("Conv", problem, {"x": x}, {"w": w}),
        "fused": _run("FusedConv", problem, {"x": x, "z": y}, {"w": w, "b": bias}),
        "transposed": _run("ConvTranspose", problem, {"y": y}, {"w": w}),
    }


def _run(operator: str, problem: Problem, inputs: dict[str, Array], constants: dict[str, Array]) -> Array:
    attributes: dict[str, Any] = {"pads": [*problem.padding] * 2, "strides": [*problem.stride]}
    is_fused = operator == "FusedConv"
    if is_fused:
        attributes["activation"] = "Relu"
    names = ["x", "w", "b", "z"] if is_fused else [*inputs, *constants]
    domain = "com.microsoft" if is_fused else ""
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["result"], domain=domain, **attributes)],
        "layer",
        [helper.make_tensor_value_info(name, FLOAT, array.shape) for name, array in inputs.items()],
        [helper.make_tensor_value_info("result", FLOAT, None)],
        [
            helper.make_tensor(n, FLOAT, array.shape, array.tobytes(), raw=True)
            for n, array in constants.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=OPERATORS, ir_version=9)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(),
        providers=[("CUDAExecutionProvider", {"cudnn_conv_algo_search": "HEURISTIC"})],
    )
    result: Array
    (result,) = session.run(None, inputs)
    return result


if __name__ == "__main__":
    run_layers(run)
