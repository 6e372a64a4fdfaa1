"""Forward convolutions with bias, residual and RELU in one graph agree with the definition in fp64."""

import numpy as np
import pytest
from drawn_problems import problems
from fused_graphs import AFTER_BIAS, AFTER_CONVOLUTION, BIAS, RESIDUAL, Fused, client
from graph_operations import UIDS, Descriptor, loaded, packed_strides, shapes, stored
from hypothesis import given
from hypothesis import strategies as st
from reference import EPSILON, Array, CheckedKernel

from mucudnn._native import Engine, Problem
from mucudnn.problems.kernels import Kernel

PROPAGATE_NAN = ("POINTWISE_NAN_PROPAGATION", "NAN_PROPOGATION", [1])


def run(
    fused: Fused,
    values: dict[str, Array],
    residual: Array,
    bias: Array,
    *,
    in_place: bool = False,
    engine: int = 0,
) -> Array:
    problem = fused.problem
    memory = {UIDS[name]: stored(value, problem.data_type, problem.layout) for name, value in values.items()}
    memory[RESIDUAL] = stored(residual, problem.data_type, problem.layout)
    memory[BIAS] = stored(bias, problem.data_type, problem.layout)
    if in_place:
        memory[UIDS["y"]] = memory[RESIDUAL]
    client.execute(client.plan(client.config(client.graph(fused.operations()), engine)), memory)
    return loaded(memory[UIDS["y"]], shapes(problem)["y"], problem.data_type, problem.layout)


def operands(engine: Engine, problem: Problem) -> tuple[CheckedKernel, Array, Array]:
    """Return values for x, w, y, a residual and a bias, rounded to the data type."""
    checked = CheckedKernel(engine, Kernel(problem, "forward"))
    random = np.random.default_rng(7)
    shape = shapes(problem)["y"]
    rounded = [
        loaded(
            stored(random.uniform(-1, 1, sizes), problem.data_type, "nchw"), sizes, problem.data_type, "nchw"
        )
        for sizes in (shape, (1, shape[1], *[1] * problem.dims))
    ]
    return checked, rounded[0], rounded[1]


@given(
    problem=problems(data_types=("f32", "f64", "f16", "bf16")),
    order=st.sampled_from(
        [
            ("bias",),
            ("relu",),
            ("residual",),
            ("bias", "relu"),
            ("residual", "bias", "relu"),
            ("bias", "residual", "relu"),
            ("relu", "bias"),
            ("bias", "relu", "residual"),
        ]
    ),
    alphas=st.sampled_from([(1.0, 1.0), (0.5, 2.0), (1.0, -1.0), (1.0, 0.0)]),
    swapped=st.booleans(),
    same_type=st.booleans(),
)
def test_a_convolution_and_what_follows_agree_with_the_definition(
    engine: Engine,
    problem: Problem,
    order: tuple[str, ...],
    alphas: tuple[float, float],
    swapped: bool,
    same_type: bool,
) -> None:
    checked, residual, bias = operands(engine, problem)
    # A tensor of one channel or of one pixel is NCHW, too, where no engine has narrow intermediate results.
    is_nhwc = any(sizes[1] > 1 and max(sizes[2:]) > 1 for sizes in shapes(problem).values())
    narrow = same_type and problem.layout == "nhwc" and is_nhwc
    virtual_type = problem.data_type if narrow else "f32"
    fused = Fused(problem, order, alphas, virtual_type=virtual_type, swapped=swapped)
    exact = fused.expected(checked.values, residual, bias)
    result = run(fused, checked.values, residual, bias)
    scale = checked.magnitude() + 3 * np.sqrt(exact.size)
    assert np.linalg.norm(result - exact) <= 4 * EPSILON[problem.data_type] * scale


PLAIN = Problem(mini_batch=2, in_channels=4, out_channels=6, input=(9, 300), kernel=(3, 3), padding=(1, 1))


@pytest.mark.parametrize("index", [0, 2, 5, 7])
@pytest.mark.parametrize("in_place", [False, True])
def test_every_engine_runs_fused_graphs_also_over_the_residual(
    engine: Engine, index: int, in_place: bool
) -> None:
    checked, residual, bias = operands(engine, PLAIN)
    fused = Fused(PLAIN, alphas=(1, 0.5))
    result = run(fused, checked.values, residual, bias, in_place=in_place, engine=index)
    np.testing.assert_allclose(result, fused.expected(checked.values, residual, bias), atol=1e-4)


def test_a_residual_that_is_added_late_must_not_be_the_output(engine: Engine) -> None:
    checked, residual, bias = operands(engine, PLAIN)
    with pytest.raises(AssertionError, match="added late"):
        run(Fused(PLAIN, ("bias", "residual")), checked.values, residual, bias, in_place=True)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((), [0, 0, 3, 9]),
        ((("POINTWISE_RELU_LOWER_CLIP", "DOUBLE", [1.0]),), [1, 1, 3, 9]),
        ((("POINTWISE_RELU_UPPER_CLIP", "DOUBLE", [6.0]),), [0, 0, 3, 6]),
        ((("POINTWISE_RELU_LOWER_CLIP_SLOPE", "DOUBLE", [0.5]),), [-1, 0, 3, 9]),
    ],
)
def test_relu_clips_as_its_attributes_say(
    settings: tuple[tuple[str, str, list[float]], ...], expected: list[float]
) -> None:
    problem = Problem(mini_batch=1, in_channels=1, out_channels=1, input=(1, 4), kernel=(1, 1))
    fused = Fused(problem, ("relu",), relu=settings)
    values = {"x": np.array([[[[-2.0, 0, 3, 9]]]]), "w": np.ones((1, 1, 1, 1)), "y": np.zeros((1, 1, 1, 4))}
    assert run(fused, values, values["y"], np.zeros((1, 1, 1, 1))).ravel().tolist() == expected


@pytest.mark.parametrize("propagate", [False, True])
def test_relu_makes_nan_zero_unless_it_propagates(propagate: bool) -> None:
    problem = Problem(mini_batch=1, in_channels=1, out_channels=1, input=(1, 2), kernel=(1, 1))
    fused = Fused(problem, ("relu",), relu=(PROPAGATE_NAN,) if propagate else ())
    values = {"x": np.array([[[[np.nan, 1.0]]]]), "w": np.ones((1, 1, 1, 1)), "y": np.zeros((1, 1, 1, 2))}
    result = run(fused, values, values["y"], np.zeros((1, 1, 1, 1)))
    np.testing.assert_array_equal(result.ravel(), [np.nan if propagate else 0, 1])


# --- graphs that the host engine does not run ---


def unsupported() -> dict[str, list[Descriptor]]:
    shape, narrower = shapes(PLAIN)["y"], (2, 6, 9, 299)
    strides = packed_strides(shape, "nchw")

    def tensor(uid: int, *, virtual: bool = False, sizes: tuple[int, ...] = shape) -> Descriptor:
        return client.tensor(uid, sizes, packed_strides(sizes, "nchw"), "f32", virtual=virtual)

    convolution, add, _, relu = Fused(PLAIN).operations()
    y, other = tensor(UIDS["y"]), tensor(5)
    between = tensor(AFTER_CONVOLUTION, virtual=True)
    narrow = tensor(AFTER_BIAS, virtual=True, sizes=narrower)
    gradient = client.operation(PLAIN, "backward_data", y=between)
    with_beta = client.operation(PLAIN, "forward", y=between, beta=1)
    to_y = client.pointwise("RELU_FWD", between, y)
    return {
        "no convolution": [client.pointwise("RELU_FWD", other, y)],
        "two convolutions": [client.operation(PLAIN, pass_) for pass_ in ("forward", "backward_data")],
        "a virtual end": Fused(PLAIN, last_is_virtual=True).operations(),
        "a real tensor between": [
            client.operation(PLAIN, "forward", y=other),
            client.pointwise("RELU_FWD", other, y),
        ],
        "an operation apart": [convolution, client.pointwise("RELU_FWD", other, y)],
        "another function": [convolution, client.pointwise("TANH_FWD", between, y)],
        "a virtual operand": [convolution, client.pointwise("ADD", between, y, between)],
        "a chain with a gap": [convolution, add, relu],
        "pointwise after a gradient": [gradient, to_y],
        "a beta before pointwise": [with_beta, to_y],
        "a virtual of another size": [
            convolution,
            client.pointwise("RELU_FWD", between, narrow),
            client.pointwise("RELU_FWD", narrow, y),
        ],
        "an operand of another size": [
            convolution,
            client.pointwise("ADD", between, y, tensor(6, sizes=narrower)),
        ],
        "16-bit intermediates in NCHW": Fused(
            PLAIN.replace(data_type="f16"), virtual_type="f16"
        ).operations(),
        "strides with gaps": [
            client.operation(
                PLAIN, "forward", y=client.tensor(UIDS["y"], shape, [2 * s for s in strides], "f32")
            )
        ],
    }


@pytest.mark.parametrize("name", list(unsupported()))
def test_other_graphs_are_finalized_but_no_engine_runs_them(name: str) -> None:
    graph = client.graph(unsupported()[name])
    _, heuristics = client.library.create("ENGINEHEUR")
    client.check(client.library.set(heuristics, "ENGINEHEUR_OPERATION_GRAPH", "BACKEND_DESCRIPTOR", [graph]))
    assert client.library.finalize(heuristics) == 3000
    assert client.library.last_error() != ""
    assert client.read(graph, "OPERATIONGRAPH_ENGINE_GLOBAL_COUNT", "INT64") == 0
