"""Winograd and FFT tiling: 16-bit tensors, whose spectra are fp32, and dilated filters."""

from typing import Any

import numpy as np
import pytest
from drawn_problems import LINES, TRANSFORMS, transformed_problems
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import EPSILON, PASSES, ROUNDINGS, CheckedKernel

from mucudnn._native import Engine, Problem, host_library
from mucudnn.problems.kernels import Kernel

passes = st.sampled_from(PASSES)
scales = st.sampled_from([1.0, -0.5, 2.0])
betas = st.sampled_from([0.0, 1.0, 0.5])
each_pass = pytest.mark.parametrize("pass_", PASSES)
each_layout = pytest.mark.parametrize("layout", ["nchw", "nhwc"])


def expected_transforms(problem: Problem) -> list[str]:
    height_and_width = problem.kernel[-2:] in ((3, 3), *LINES)
    depth = problem.kernel[-2:] == (1, 1) and problem.kernel[:-2] == (3,) and problem.padding[-2:] == (0, 0)
    return list(TRANSFORMS if height_and_width or depth else TRANSFORMS[1:])


def assert_transforms_are_right(checked: CheckedKernel, alpha: float = 1.0, beta: float = 0.0) -> None:
    """Hold each transform to fp32 accuracy, and to one rounding of the output to its type."""
    problem = checked.problem
    exact, over = checked.exact(alpha=alpha, beta=beta), None if beta else np.nan
    transforms = [name for name in TRANSFORMS if name in checked.runnable(problem.mini_batch)]
    assert transforms == expected_transforms(problem)
    rounding = EPSILON[problem.data_type] * np.linalg.norm(exact) if problem.data_type != "f32" else 0.0
    for name in transforms:
        result = checked.run([(problem.mini_batch, name)], alpha=alpha, beta=beta, over=over)
        tolerance = ROUNDINGS[name] * EPSILON["f32"] * checked.norm(alpha=alpha, beta=beta) + rounding
        assert np.linalg.norm(result - exact) <= tolerance, name


@settings(max_examples=examples(200))
@given(problem=transformed_problems(), pass_=passes, alpha=scales, beta=betas)
def test_every_type_and_dilation_agrees_with_the_definition(
    engine: Engine, problem: Problem, pass_: str, alpha: float, beta: float
) -> None:
    assert_transforms_are_right(CheckedKernel(engine, Kernel(problem, pass_)), alpha, beta)


def large(
    layout: str, data_type: str = "f32", dilation: int = 1, kernel: tuple[int, int] = (3, 3)
) -> Problem:
    """Return a problem that is large enough for several threads, and whose images are several bands."""
    return Problem(
        mini_batch=2, in_channels=18, out_channels=35, input=(61, 70), kernel=kernel,
        padding=tuple(taps // 2 * dilation for taps in kernel), dilation=dilation, data_type=data_type,
        layout=layout,
    )  # fmt: skip


LARGE = [
    {"data_type": "bf16"}, {"data_type": "f16"}, {"dilation": 2}, {"data_type": "bf16", "dilation": 4},
    *({"kernel": kernel} for kernel in LINES),
]  # fmt: skip


@each_layout
@each_pass
@pytest.mark.parametrize("kind", LARGE, ids=str)
def test_large_images_are_right_on_several_threads(layout: str, pass_: str, kind: dict[str, Any]) -> None:
    problem = large(layout, **kind)
    assert problem.flops > 8e6  # smaller problems run on one thread
    engine = Engine(host_library(), threads=3)
    assert_transforms_are_right(CheckedKernel(engine, Kernel(problem, pass_)), 2.0, 0.5)


@each_layout
@each_pass
@pytest.mark.parametrize(("taps", "dilation"), [(3, 1), (5, 1), (7, 1), (3, 3)])
def test_lines_of_taps_along_the_depth_of_volumes_are_right(
    layout: str, pass_: str, taps: int, dilation: int
) -> None:
    problem = Problem(
        mini_batch=2, in_channels=18, out_channels=35, input=(9, 12, 30), kernel=(taps, 1, 1),
        padding=(taps // 2 * dilation, 0, 0), dilation=(dilation, 1, 1), layout=layout,
    )  # fmt: skip
    checked = CheckedKernel(Engine(host_library(), threads=3), Kernel(problem, pass_))
    result = checked.run([(2, "WINOGRAD_NONFUSED")], alpha=2.0, beta=0.5)
    tolerance = checked.tolerance("WINOGRAD_NONFUSED", alpha=2.0, beta=0.5)
    assert np.linalg.norm(result - checked.exact(alpha=2.0, beta=0.5)) <= tolerance


@pytest.mark.parametrize("changes", [{"padding": (1, 1, 0)}, {"stride": (1, 2, 1)}, {"stride": (2, 1, 1)}])
def test_a_line_along_the_depth_has_no_winograd_with_other_padding_or_strides(
    engine: Engine, changes: dict[str, tuple[int, int, int]]
) -> None:
    sizes = {"mini_batch": 1, "in_channels": 4, "out_channels": 4, "input": (6, 6, 6), "kernel": (3, 1, 1)}
    problem = Problem(**{**sizes, "padding": (1, 0, 0), **changes})  # type: ignore[arg-type]
    assert "WINOGRAD_NONFUSED" not in CheckedKernel(engine, Kernel(problem, "forward")).runnable(1)


@each_pass
@pytest.mark.parametrize("kernel", LINES)
def test_lines_of_taps_of_many_channels_keep_to_the_rounding_errors_of_winograd(
    engine: Engine, pass_: str, kernel: tuple[int, int]
) -> None:
    problem = Problem(
        mini_batch=2, in_channels=256, out_channels=64, input=(17, 17), kernel=kernel,
        padding=tuple(taps // 2 for taps in kernel),
    )  # fmt: skip
    checked = CheckedKernel(engine, Kernel(problem, pass_))
    error = np.linalg.norm(checked.run([(2, "WINOGRAD_NONFUSED")]) - checked.exact())
    assert error <= 4 * EPSILON["f32"] * checked.norm()  # F(4x4, 3x3) has 16


@each_layout
@each_pass
@pytest.mark.parametrize("threads", [2, 3, 16])  # 16 are too many for a share of the channels each
@pytest.mark.parametrize(("data_type", "dilation"), [("f32", 1), ("bf16", 1), ("f32", 2)])
def test_large_filters_are_right_in_parts(
    layout: str, pass_: str, data_type: str, dilation: int, threads: int
) -> None:
    problem = Problem(  # the last part has fewer output channels than the others
        mini_batch=2, in_channels=260, out_channels=300, input=(7, 7), kernel=(3, 3), padding=1,
        dilation=dilation, data_type=data_type, layout=layout,
    )  # fmt: skip
    checked = CheckedKernel(Engine(host_library(), threads=threads), Kernel(problem, pass_))
    assert_transforms_are_right(checked, 2.0, 0.5)


@each_pass
@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_workspace_does_not_grow_with_the_number_of_large_filters(
    engine: Engine, pass_: str, name: str
) -> None:
    # backward_data has the filters of x's channels.
    sides = ("out_channels", "in_channels")

    def workspace(filters: int) -> int:
        sizes = dict(zip(sides if pass_ != "backward_data" else sides[::-1], (filters, 512), strict=True))
        problem = Problem(mini_batch=1, input=(7, 7), kernel=(3, 3), padding=1, **sizes)
        return engine.prepare(Kernel(problem, pass_), [(1, name)]).workspace

    assert workspace(2048) <= 1.05 * workspace(1024) < 16 * 2**20


@pytest.mark.parametrize(
    "unsupported",
    [{"stride": 2}, {"groups": 2}, {"data_type": "f64"}, {"input": (9, 9, 9), "dilation": (2, 1, 1)}],
)
def test_strides_groups_fp64_and_dilated_depths_have_no_transform(
    engine: Engine, unsupported: dict[str, int]
) -> None:
    rank = len(unsupported.get("input", (9, 9)))  # type: ignore[arg-type]
    options = {"input": (9, 9), **unsupported}
    problem = Problem(mini_batch=1, in_channels=4, out_channels=4, kernel=(3,) * rank, padding=2, **options)
    assert set(CheckedKernel(engine, Kernel(problem, "forward")).runnable(1)).isdisjoint(TRANSFORMS)
