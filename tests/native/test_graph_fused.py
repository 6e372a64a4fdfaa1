"""Forward convolutions with pointwise operations in one graph agree with the definition in fp64."""

from collections.abc import Sequence

import numpy as np
import pytest
from drawn_problems import problems
from graph_abi import Library
from graph_client import Client
from graph_operations import BETWEEN, UIDS, Descriptor, loaded, packed_strides, shapes, stored
from hypothesis import given
from hypothesis import strategies as st
from reference import ALL_TYPES, EPILOGUES, EPSILON, Array, CheckedKernel

from mucudnn import _native
from mucudnn._native import Engine, Problem, parse_descriptor
from mucudnn.problems.kernels import Kernel

client = Client(Library(_native.host_library()))
PLAIN = parse_descriptor("mb2_ic4ih9iw300_oc6_kh3_ph1")[0]


def fused(problem: Problem, epilogue: str) -> Problem:
    return parse_descriptor(f"{problem}{epilogue}")[0]


def run(problem: Problem, operations: Sequence[Descriptor], values: dict[str, Array]) -> Array:
    memory = {UIDS[name]: stored(value, problem.data_type, problem.layout) for name, value in values.items()}
    client.execute(client.plan(client.config(client.graph(operations), 0)), memory)
    return loaded(memory[UIDS["y"]], shapes(problem)["y"], problem.data_type, problem.layout)


@given(
    plain=problems(data_types=ALL_TYPES),
    epilogue=st.sampled_from(EPILOGUES),
    swapped=st.booleans(),
    same_type=st.booleans(),
)
def test_a_convolution_and_what_follows_agree_with_the_definition(
    engine: Engine, plain: Problem, epilogue: str, swapped: bool, same_type: bool
) -> None:
    problem = fused(plain, epilogue)
    checked = CheckedKernel(engine, Kernel(problem, "forward"))
    # A tensor of one channel or of one pixel is NCHW, too, where no engine has narrow intermediate results.
    is_nhwc = any(sizes[1] > 1 and max(sizes[2:]) > 1 for sizes in shapes(problem).values())
    narrow = same_type and problem.layout == "nhwc" and is_nhwc
    intermediate = problem.data_type if narrow else None
    operations = client.fused(problem, swapped=swapped, intermediate=intermediate)
    result = run(problem, operations, checked.values)
    tolerance = 4 * EPSILON[problem.data_type] * checked.magnitude()
    assert np.linalg.norm(result - checked.exact()) <= tolerance


def test_a_residual_that_is_added_late_must_not_be_the_output(engine: Engine) -> None:
    problem = fused(PLAIN, "+bias+add")
    memory = {
        UIDS[name]: stored(value, "f32", "nchw")
        for name, value in CheckedKernel(engine, Kernel(problem, "forward")).values.items()
    }
    memory[UIDS["y"]] = memory[UIDS["operand1"]]
    plan = client.plan(client.config(client.graph(client.fused(problem)), 0))
    with pytest.raises(AssertionError, match="added late"):
        client.execute(plan, memory)


@pytest.mark.parametrize(
    ("attribute", "type_", "value", "expected"),
    [
        ("RELU_LOWER_CLIP", "DOUBLE", 0.0, [0, 0, 3, np.nan]),
        ("RELU_LOWER_CLIP", "DOUBLE", 1.0, [1, 1, 3, np.nan]),
        ("RELU_UPPER_CLIP", "DOUBLE", 2.0, [0, 0, 2, np.nan]),
        ("RELU_LOWER_CLIP_SLOPE", "DOUBLE", 0.5, [-1, 0, 3, np.nan]),
        ("NAN_PROPAGATION", "NAN_PROPOGATION", 0, [0, 0, 3, 0]),
    ],
)
def test_relu_does_as_its_attributes_say(
    attribute: str, type_: str, value: float, expected: list[float]
) -> None:
    problem = parse_descriptor("ic1ih1iw4_oc1_kh1+relu")[0]
    values = {"x": np.array([-2.0, 0, 3, np.nan]), "w": np.ones(1), "y": np.zeros(4)}
    operations = client.fused(problem, settings=[(f"POINTWISE_{attribute}", type_, [value])])
    np.testing.assert_array_equal(run(problem, operations, values).ravel(), expected)


# --- graphs that the host engine does not run ---


def unsupported() -> dict[str, list[Descriptor]]:
    shape, narrower = shapes(PLAIN)["y"], (2, 6, 9, 299)

    def tensor(uid: int, *, virtual: bool = False, sizes: tuple[int, ...] = shape) -> Descriptor:
        return client.tensor(uid, sizes, packed_strides(sizes, "nchw"), "f32", virtual=virtual)

    convolution, add, _, relu = client.fused(fused(PLAIN, "+add+bias+relu"))
    y, other, between = tensor(UIDS["y"]), tensor(5), tensor(BETWEEN, virtual=True)
    narrow = tensor(BETWEEN + 1, virtual=True, sizes=narrower)
    to_y = client.pointwise("RELU_FWD", between, y)
    gaps = client.tensor(UIDS["y"], shape, [2 * s for s in packed_strides(shape, "nchw")], "f32")
    return {
        "no convolution": [client.pointwise("RELU_FWD", other, y)],
        "two convolutions": [client.operation(PLAIN, pass_) for pass_ in ("forward", "backward_data")],
        "a virtual end": [convolution],
        "a real tensor between": [
            client.operation(PLAIN, "forward", y=other),
            client.pointwise("RELU_FWD", other, y),
        ],
        "an operation apart": [convolution, client.pointwise("RELU_FWD", other, y)],
        "another function": [convolution, client.pointwise("TANH_FWD", between, y)],
        "a virtual operand": [convolution, client.pointwise("ADD", between, y, between)],
        "a chain with a gap": [convolution, add, relu],
        "pointwise after a gradient": [client.operation(PLAIN, "backward_data", y=between), to_y],
        "a beta before pointwise": [client.operation(PLAIN, "forward", y=between, beta=1), to_y],
        "a virtual of another size": [
            convolution,
            client.pointwise("RELU_FWD", between, narrow),
            client.pointwise("RELU_FWD", narrow, y),
        ],
        "an operand of another size": [
            convolution,
            client.pointwise("ADD", between, y, tensor(6, sizes=narrower)),
        ],
        "16-bit intermediates in NCHW": client.fused(
            fused(PLAIN.replace(data_type="f16"), "+relu"), intermediate="f16"
        ),
        "strides with gaps": [client.operation(PLAIN, "forward", y=gaps)],
    }


@pytest.mark.parametrize("name", list(unsupported()))
def test_other_graphs_are_finalized_but_no_engine_runs_them(name: str) -> None:
    graph = client.graph(unsupported()[name])
    _, heuristics = client.library.create("ENGINEHEUR")
    client.check(client.library.set(heuristics, "ENGINEHEUR_OPERATION_GRAPH", "BACKEND_DESCRIPTOR", [graph]))
    assert client.library.finalize(heuristics) == 3000
    assert client.library.last_error() != ""
    assert client.read(graph, "OPERATIONGRAPH_ENGINE_GLOBAL_COUNT", "INT64") == 0
