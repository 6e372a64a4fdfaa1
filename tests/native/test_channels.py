"""Groups of channels are exact for any kernel, layout and data type, and need no more than they say."""

from pathlib import Path

import numpy as np
import pytest
from drawn_problems import divisions, problems
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import EPILOGUES, EPSILON, PASSES, CheckedKernel
from wrapped_library import build_wrapper

from mucudnn._native import (
    STRIDED,
    Engine,
    EngineError,
    Problem,
    divided_channels,
    group_copies,
    group_kernel,
    host_library,
    most_slices,
    parse_descriptor,
)
from mucudnn.problems.kernels import Kernel

ALL_TYPES = ("f32", "f64", "f16", "bf16")


def problem(in_channels: int = 6, out_channels: int = 4, groups: int = 1) -> Problem:
    return Problem(
        mini_batch=4,
        in_channels=in_channels,
        out_channels=out_channels,
        groups=groups,
        input=(8, 8),
        kernel=(3, 3),
        padding=1,
    )


def channel_unit(kernel: Kernel, of_inputs: bool = False) -> int:
    """Return the number of channels of which the size of each group is a multiple."""
    channels, groups = divided_channels(kernel, of_inputs), kernel.problem.groups
    return channels // groups if channels > 1 and groups > 1 else 1


@st.composite
def group_sizes(draw: st.DrawFn, kernel: Kernel, of_inputs: bool = False) -> list[int]:
    """Draw numbers of channels that add to those of a kernel."""
    unit = channel_unit(kernel, of_inputs)
    return [unit * units for units in draw(divisions(divided_channels(kernel, of_inputs) // unit))]


SMALL = problem()
FORWARD, DATA, FILTER = (Kernel(SMALL, pass_) for pass_ in PASSES)


@settings(max_examples=examples(250))
@given(
    data=st.data(),
    problem=st.one_of(
        problems(data_types=ALL_TYPES, most_samples=4), problems(kernel=(3, 3), plain=True, most_samples=4)
    ),
    pass_=st.sampled_from(PASSES),
    of_inputs=st.booleans(),
    alpha=st.sampled_from([1.0, -0.5, 2.0]),
    beta=st.sampled_from([0.0, 1.0, 0.5]),
)
def test_groups_are_as_exact_as_their_algorithms(
    engine: Engine,
    data: st.DataObject,
    problem: Problem,
    pass_: str,
    of_inputs: bool,
    alpha: float,
    beta: float,
) -> None:
    kernel = Kernel(problem, pass_)
    of_inputs = of_inputs and divided_channels(kernel, True) > 1
    checked = CheckedKernel(engine, kernel)
    groups = []
    for channels in data.draw(group_sizes(kernel, of_inputs)):
        group = CheckedKernel(engine, group_kernel(kernel, channels, of_inputs))
        sizes = data.draw(divisions(problem.mini_batch, most_slices(kernel)))
        groups.append((channels, [(n, data.draw(st.sampled_from(group.runnable(n)))) for n in sizes]))
    exact = checked.exact(alpha=alpha, beta=beta)
    over = None if beta else np.nan
    result = checked.run_groups(groups, alpha=alpha, beta=beta, over=over, of_inputs=of_inputs)
    algorithms = {algorithm for _, parts in groups for _, algorithm in parts}
    worst = max(checked.tolerance(algorithm, alpha=alpha, beta=beta) for algorithm in algorithms)
    assert np.linalg.norm(result - exact) <= 2 * worst


def test_output_channels_are_divided_except_for_the_gradient_of_the_input() -> None:
    assert [divided_channels(kernel) for kernel in (FORWARD, DATA, FILTER)] == [4, 6, 4]
    assert group_kernel(FORWARD, 2).problem == group_kernel(FILTER, 2).problem == problem(out_channels=2)
    assert group_kernel(DATA, 2).problem == problem(in_channels=2)


@given(
    data=st.data(),
    plain=problems(data_types=ALL_TYPES, most_samples=3),
    epilogue=st.sampled_from([epilogue for epilogue in EPILOGUES if "add" not in epilogue]),
)
def test_fused_groups_are_as_exact_as_their_engines_on_all_channels(
    engine: Engine, data: st.DataObject, plain: Problem, epilogue: str
) -> None:
    kernel = Kernel(parse_descriptor(f"{plain}{epilogue}")[0], "forward")
    checked = CheckedKernel(engine, kernel)
    whole = checked.runnable(plain.mini_batch)
    groups = []
    for channels in data.draw(group_sizes(kernel)):
        group = CheckedKernel(engine, group_kernel(kernel, channels))
        sizes = data.draw(divisions(plain.mini_batch))
        names = [[name for name in group.runnable(n) if name in whole] for n in sizes]
        parts = [(n, data.draw(st.sampled_from(some))) for n, some in zip(sizes, names, strict=True)]
        groups.append((channels, parts))
    exact = checked.exact()
    undivided = max(
        np.linalg.norm(checked.run([(plain.mini_batch, algorithm)]) - exact)
        for algorithm in {algorithm for _, parts in groups for _, algorithm in parts}
    )
    rounding = 2 * EPSILON[plain.data_type] * checked.magnitude()
    assert np.linalg.norm(checked.run_groups(groups) - exact) <= 2 * undivided + rounding


def test_filter_gradients_are_divided_along_the_input_channels_too() -> None:
    counts = [divided_channels(kernel, True) for kernel in (FORWARD, DATA, FILTER)]
    assert counts == [1, 1, 6]
    assert divided_channels(Kernel(problem(groups=2), "backward_filter"), True) == 1
    assert group_kernel(FILTER, 2, True).problem == problem(in_channels=2)
    # The group's part of the gradient, aligned to 256 bytes, and two samples of x.
    assert group_copies(FILTER, 2, 2, True) == 512 + 2 * 2 * 64 * 4
    assert group_copies(FILTER, 2, 1, True) == 512


def test_a_convolution_in_groups_is_divided_into_whole_groups() -> None:
    for pass_, all_channels in (("forward", 4), ("backward_data", 6), ("backward_filter", 4)):
        grouped = Kernel(problem(groups=2), pass_)
        assert (divided_channels(grouped), channel_unit(grouped)) == (all_channels, all_channels // 2)
        half = problem(in_channels=3, out_channels=2)
        assert group_kernel(grouped, all_channels // 2).problem == half
    with pytest.raises(
        ValueError, match="a group of 3 channels: this convolution has groups of its own, of 2"
    ):
        group_kernel(Kernel(problem(groups=2), "forward"), 3)


def test_an_addition_whose_tensor_may_be_the_output_is_not_divided() -> None:
    added = Kernel(parse_descriptor(f"{SMALL}+add+bias")[0], "forward")
    assert divided_channels(added) == 1
    with pytest.raises(ValueError, match="a group of 2 channels: forward of this convolution divides 1"):
        group_kernel(added, 2)


def test_slices_that_are_packed_in_the_tensors_are_not_copied() -> None:
    assert group_copies(FORWARD, 4, 4) == 0  # all channels
    assert group_copies(FORWARD, 2, 1) == 0  # channels of one sample lie together, and so do filters
    assert group_copies(FORWARD, 2, 2) == 2 * 2 * 64 * 4
    assert group_copies(FILTER, 2, 2) == 2 * 2 * 64 * 4
    assert group_copies(DATA, 2, 1) == 512  # 4 filters of 2 channels of 9 taps, aligned to 256 bytes
    assert group_copies(Kernel(problem(groups=2), "forward"), 2, 2) == (2 * 3 + 2 * 2) * 64 * 4  # x and y
    last = Kernel(SMALL.replace(layout="nhwc"), "forward")
    assert group_copies(last, 2, 1) == 2 * 64 * 4


def test_algorithms_that_take_strides_need_no_copies_of_aligned_slices() -> None:
    for kernel in (FORWARD, FILTER, Kernel(problem(groups=2), "forward")):
        assert group_copies(kernel, 2, 2, takes_strides=True) == 0
    assert group_copies(DATA, 2, 2, takes_strides=True) == 512  # the part of w
    # A sample of the slice has 512 bytes. The next one begins 768 bytes later.
    odd = Kernel(problem(out_channels=3), "forward")
    assert group_copies(odd, 2, 2, takes_strides=True) == 2 * 2 * 64 * 4


@pytest.mark.parametrize("refused", [False, True])
def test_slices_are_copied_for_a_library_that_takes_packed_tensors_only(
    refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_ENGINE", host_library())
    if refused:
        monkeypatch.setenv("PACKED_ONLY", "1")
    engine = Engine(str(build_wrapper(tmp_path)))
    notes = {candidate.algorithm: candidate.notes for candidate in engine.enumerate(FORWARD)}
    assert notes["IMPLICIT_GEMM"] == ("deterministic" if refused else f"deterministic {STRIDED}")
    groups = [(2, [(2, "IMPLICIT_GEMM")] * 2)] * 2
    assert engine.prepare_groups(FORWARD, groups).workspace == (1024 if refused else 0)
    checked = CheckedKernel(engine, FORWARD)
    assert np.linalg.norm(checked.run_groups(groups) - checked.exact()) <= 2 * checked.tolerance(
        "IMPLICIT_GEMM"
    )


def test_bf16_filter_gradients_have_at_most_four_slices_in_each_group(engine: Engine) -> None:
    kernel = Kernel(SMALL.replace(mini_batch=64, data_type="bf16"), "backward_filter")
    checked = CheckedKernel(engine, kernel)
    exact = checked.exact()
    undivided, divided = (checked.run_groups([(2, [(64 // n, "ALGO_1")] * n)] * 2) for n in (1, 4))
    assert np.linalg.norm(divided - exact) <= 2 * np.linalg.norm(undivided - exact)
    with pytest.raises(EngineError, match="bf16 in 8 slices is refused"):
        engine.prepare_groups(kernel, [(2, [(8, "ALGO_1")] * 8)] * 2)


def test_groups_divide_filter_gradients_in_f16_whose_mini_batch_must_stay_whole(engine: Engine) -> None:
    kernel = Kernel(SMALL.replace(data_type="f16"), "backward_filter")
    whole = [(2, [(4, "ALGO_1")])] * 2
    checked = CheckedKernel(engine, kernel)
    assert np.linalg.norm(checked.run_groups(whole) - checked.exact()) <= 2 * checked.tolerance("ALGO_1")
    with pytest.raises(EngineError, match="in 2 slices is refused"):
        engine.prepare_groups(kernel, [(2, [(2, "ALGO_1")] * 2)] * 2)


def test_groups_that_do_not_add_up_are_refused(engine: Engine) -> None:
    whole = [(4, "IMPLICIT_GEMM")]
    for groups in ([(3, whole)], [(5, whole)], [(4, whole), (0, whole)], []):
        with pytest.raises(ValueError, match="the groups do not add up to channels: 4"):
            engine.prepare_groups(FORWARD, groups)
    with pytest.raises(ValueError, match="the micro-batches do not add up to the mini-batch of 4"):
        engine.prepare_groups(FORWARD, [(4, [(3, "IMPLICIT_GEMM")])])


def test_groups_say_how_much_workspace_they_lack(engine: Engine) -> None:
    checked = CheckedKernel(engine, DATA)
    division = engine.prepare_groups(DATA, [(2, [(2, "ALGO_1")] * 2)] * 3)
    assert division.workspace == 512
    with pytest.raises(EngineError, match="needs a workspace of 512 bytes, 511 are given"):
        division.execute(*checked.memory.values(), engine.allocate(511))
