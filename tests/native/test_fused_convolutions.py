"""Forward convolutions with an epilogue are problems of their own, measured and divided like all others."""

import numpy as np
import pytest
from drawn_problems import divisions, problems
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import EPILOGUES, EPSILON, PASSES, CheckedKernel, operand_shapes

from mucudnn._native import Engine, EngineError, Problem, parse_descriptor
from mucudnn.problems.kernels import Kernel

ENGINES = ["eng0", "eng2", "eng2_k2=0", "eng2_k2=4", "eng5", "eng7"]  # the numbers of the legacy algorithms
PLAIN = parse_descriptor("mb6_ic4ih9iw8_oc6_kh3_ph1")[0]


def fused(problem: Problem, epilogue: str) -> Problem:
    return parse_descriptor(f"{problem}{epilogue}")[0]


@settings(max_examples=examples(200))
@given(
    data=st.data(),
    plain=st.one_of(problems(data_types=("f32", "f64", "f16", "bf16")), problems(kernel=(3, 3), plain=True)),
    epilogue=st.sampled_from(EPILOGUES),
)
def test_divided_they_are_as_exact_as_their_engines_on_the_whole_mini_batch(
    engine: Engine, data: st.DataObject, plain: Problem, epilogue: str
) -> None:
    checked = CheckedKernel(engine, Kernel(fused(plain, epilogue), "forward"))
    sizes = data.draw(divisions(plain.mini_batch))
    parts = [(size, data.draw(st.sampled_from(checked.runnable(size)))) for size in sizes]
    exact = checked.exact()
    undivided = max(
        np.linalg.norm(checked.run([(plain.mini_batch, algorithm)]) - exact)
        for algorithm in {algorithm for _, algorithm in parts}
    )
    rounding = 2 * EPSILON[plain.data_type] * checked.magnitude()
    assert np.linalg.norm(checked.run(parts) - exact) <= 2 * undivided + rounding


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_agrees_with_the_definition(engine: Engine, name: str, epilogue: str) -> None:
    checked = CheckedKernel(engine, Kernel(fused(PLAIN, epilogue), "forward"))
    assert sorted(checked.runnable(6)) == ENGINES
    error = np.linalg.norm(checked.run([(6, name)]) - checked.exact())
    assert error <= 16 * EPSILON["f32"] * checked.magnitude()


def test_their_engines_need_the_workspaces_of_the_plain_algorithms(engine: Engine) -> None:
    plain = [
        c.workspace for c in engine.enumerate(Kernel(PLAIN, "forward")) if c.status == "CUDNN_STATUS_SUCCESS"
    ]
    candidates = engine.enumerate(Kernel(fused(PLAIN, "+add+bias+relu"), "forward"))
    assert sorted(c.workspace for c in candidates if "_" not in c.algorithm) == sorted(plain)
    assert {c.status for c in candidates} == {"CUDNN_STATUS_SUCCESS"}


@pytest.mark.parametrize("pass_", PASSES[1:])
def test_only_the_forward_pass_is_fused(engine: Engine, pass_: str) -> None:
    problem = fused(PLAIN, "+bias")
    assert len(engine.enumerate(Kernel(problem, pass_))) == 0
    with pytest.raises(EngineError, match=rf"no {pass_} is fused: .*\+bias$"):
        engine.prepare(Kernel(problem, pass_), [(6, "eng0")])


def test_an_algorithm_that_does_not_fuse_says_so(engine: Engine) -> None:
    problem = fused(PLAIN, "+bias+relu")
    with pytest.raises(EngineError, match=r"the legacy API does not fuse '\+bias\+relu': GEMM"):
        engine.prepare(Kernel(problem, "forward"), [(6, "GEMM")])


@pytest.mark.parametrize("factors", [{"alpha": 2.0}, {"beta": 1.0}])
def test_they_take_no_factors(engine: Engine, factors: dict[str, float]) -> None:
    with pytest.raises(EngineError, match="without alpha and beta"):
        CheckedKernel(engine, Kernel(fused(PLAIN, "+relu"), "forward")).run([(6, "eng0")], **factors)


def test_operands_that_are_missing_short_or_too_many_are_refused(engine: Engine) -> None:
    problem = fused(PLAIN, "+add+bias+relu")
    checked = CheckedKernel(engine, Kernel(problem, "forward"))
    x, w, y, *operands = checked.memory.values()
    assert len(operands) == len(operand_shapes(problem)) == 2

    division = engine.prepare(Kernel(problem, "forward"), [(6, "eng0")])

    def run(*passed: object) -> None:
        division.execute(x, w, y, None, operands=passed)  # type: ignore[arg-type]  # wrong on purpose

    for missing in ([], operands[:1], operands[::-1]):
        with pytest.raises(ValueError, match=r"the operand of \+\w+ has \d+ bytes, the problem needs"):
            run(*missing)
    with pytest.raises(ValueError, match="reads fewer than 3 operands"):
        run(*operands, y)
    run(*operands)
    division = engine.prepare(Kernel(problem, "forward"), [(3, "eng0")] * 2)
    with pytest.raises(EngineError, match="needs its operands as well"):
        division.run(1, 1, 1, None)
