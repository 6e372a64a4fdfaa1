from hypothesis import given
from hypothesis import strategies as st

from mucudnn._native import Problem, parse_descriptor
from mucudnn.problems.descriptor import problem_key, short_text

sizes = st.integers(1, 3)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    dims = draw(st.integers(2, 3))

    def axes(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in range(dims)]

    groups = draw(st.integers(1, 2))
    return Problem(
        mini_batch=draw(st.integers(1, 9)),
        in_channels=groups * draw(sizes),
        out_channels=groups * draw(sizes),
        input=axes(7, 9),
        kernel=axes(1, 3),
        stride=axes(1, 2),
        padding=axes(0, 1),
        dilation=axes(1, 2),
        groups=groups,
        data_type=draw(st.sampled_from(["f32", "f64", "f16", "bf16"])),
        layout=draw(st.sampled_from(["nchw", "nhwc"])),
        math=draw(st.sampled_from(["default", "tf32", "fma", "strict"])),
        epilogue=draw(st.sampled_from(["", "+relu", "+add+bias+relu"])),
    )


@given(problems())
def test_the_short_text_reads_back_as_the_same_problem(problem: Problem) -> None:
    assert parse_descriptor(short_text(problem))[0] == problem
    assert len(short_text(problem)) <= len(str(problem))


@given(problems(), st.integers(1, 99))
def test_the_key_is_a_descriptor_that_all_mini_batches_share(problem: Problem, other: int) -> None:
    key = problem_key(problem)
    assert key == problem_key(problem.replace(mini_batch=other))
    assert parse_descriptor(key, mini_batch=problem.mini_batch)[0] == problem
