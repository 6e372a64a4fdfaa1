"""The one-line text form of a problem."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mucudnn._native import Problem, parse_descriptor

FULL = "f32:nchw:default:g1mb256_ic64ih27iw27_oc192oh27ow27_kh5kw5_sh1sw1_ph2pw2_dh0dw0"


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    dims = draw(st.sampled_from([2, 3]))
    sizes = st.lists(st.integers(1, 40), min_size=dims, max_size=dims)
    groups = draw(st.integers(1, 4))
    try:
        return Problem(
            mini_batch=draw(st.integers(1, 1024)),
            in_channels=groups * draw(st.integers(1, 99)),
            out_channels=groups * draw(st.integers(1, 99)),
            input=draw(sizes),
            kernel=draw(sizes),
            stride=draw(sizes),
            padding=draw(sizes),
            dilation=draw(sizes),
            groups=groups,
            data_type=draw(st.sampled_from(["f32", "f64", "f16", "bf16"])),
            layout=draw(st.sampled_from(["nchw", "nhwc"])),
            math=draw(st.sampled_from(["default", "tf32", "strict"])),
        )
    except ValueError:
        assume(False)
        raise


@given(problems())
def test_the_full_form_reads_back_as_the_same_problem(problem: Problem) -> None:
    assert parse_descriptor(str(problem)) == (problem, "", 1)


def test_the_full_form_is_written_with_name_and_count_left_out() -> None:
    problem, name, count = parse_descriptor(FULL + '_n"alexnet:conv2*3"')
    assert str(problem) == FULL
    assert (name, count) == ("alexnet:conv2", 3)


@pytest.mark.parametrize(
    "short",
    [
        "mb256_ic64ih27_oc192_kh5_ph2",
        "mb256ic64ih27oc192oh27kh5ph2",
        "g1mb256_ic64ih27iw27_oc192_kh5_ph2pw2_sh1",
        "f32:mb256_ic64ih27_oc192_kh5_ph2",
        "nchw:default:mb256_ic64ih27_oc192_kh5_ph2",
    ],
)
def test_short_forms_leave_out_what_follows_from_the_rest(short: str) -> None:
    assert str(parse_descriptor(short)[0]) == FULL


def test_a_depth_alone_makes_a_cube() -> None:
    problem, _, _ = parse_descriptor("mb2_ic1id8_oc4_kd3_pd1")
    assert problem.input == problem.output == (8, 8, 8)
    assert problem.kernel == (3, 3, 3)
    assert str(problem) == (
        "f32:nchw:default:g1mb2_ic1id8ih8iw8_oc4od8oh8ow8_kd3kh3kw3_sd1sh1sw1_pd1ph1pw1_dd0dh0dw0"
    )


def test_dilation_counts_from_0_in_text_and_from_1_in_the_problem() -> None:
    problem, _, _ = parse_descriptor("mb1_ic1ih9_oc1_kh3_dh1")
    assert problem.dilation == (2, 2)
    assert problem.output == (5, 5)


def test_what_the_text_leaves_out_comes_from_the_keywords_and_what_it_says_stands() -> None:
    problem, _, _ = parse_descriptor(
        "ic1ih9_oc1_kh3", mini_batch=7, data_type="f16", layout="nhwc", math="tf32"
    )
    assert str(problem).startswith("f16:nhwc:tf32:g1mb7_")
    problem, _, _ = parse_descriptor("bf16:mb2_ic1ih9_oc1_kh3", mini_batch=7, data_type="f16")
    assert str(problem).startswith("bf16:nchw:default:g1mb2_")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'ic' is missing"),
        ("mb0_ic64ih27_oc192_kh5", r"the mini-batch \(mb\) is 0: it must be from 1"),
        ("mb1_ic64ih27_oc192", "'kh' is missing"),
        ("mb1_ic64ih27_oc192_kh0", "the kernel height is 0"),
        ("mb1_ic64ih27_oc192_kh-3", "the kernel height is -3"),
        ("mb1_ic64ih27_oc192_kh3_ph-1", "the padding along height is -1"),
        ("mb1_ic64ih27_oc192_kh3_sh0", "the stride must be at least 1, not 0"),
        ("mb1_ic64ih2_oc192_kh5", "the output height would be 0 or less"),
        ("mb1_ic64ih27oh9_oc192_kh5", "the output height is given as 9, but the other sizes make it 23"),
        ("mb1_ic64ih27_oc192_kh5_zz3", "'zz3' is no part of a descriptor"),
        ("mb1_ic64ih27_oc192_kh5_!", "'!' is no part of a descriptor"),
        ("mb1_ic64ih27_oc192_kh", "'kh' has no number"),
        ("mb1_ic64ic64ih27_oc192_kh3", "'ic' is given twice"),
        ("mb1_ic64iw27_oc192_kh3", "'ih' is missing"),
        ("mb1_ic64ih27id3_oc192_kh3", "'kd' is missing"),
        ("g3mb1_ic64ih27_oc192_kh3", "groups .g3. must divide the channels"),
        ("mb2147483648_ic64ih27_oc192_kh3", "'mb2147483648' is above 2147483647"),
        ("mb99999999999999999999_ic64ih27_oc192_kh3", "'mb99999999999999999999' is above 2147483647"),
        ("mb2147483647_ic2147483647ih27_oc1_kh1", "x would have 2.63 bytes or more"),
        ("f31:mb1_ic1ih1_oc1_kh1", "'f31:' is no data type"),
        ('mb1_ic1ih1_oc1_kh1_n"a', "is not of the form"),
        ('mb1_ic1ih1_oc1_kh1_n"a*0"', "the count '0'"),
        ('mb1_ic1ih1_oc1_kh1_n"a*x"', "the count 'x'"),
    ],
)
def test_an_unreadable_descriptor_names_the_part_that_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_descriptor(text)


@given(st.text(alphabet='mbichowkdsp0123456789_:*n"-fx', max_size=60))
def test_no_text_does_anything_but_parse_or_raise_value_error(text: str) -> None:
    try:
        parse_descriptor(text)
    except ValueError:
        return


def test_a_problem_is_a_value() -> None:
    one, other = parse_descriptor(FULL)[0], parse_descriptor(FULL)[0]
    assert one == other
    assert len({one, other}) == 1
    assert one != one.replace(mini_batch=1)
    assert one != FULL
    assert one.replace(mini_batch=1).replace(mini_batch=256) == one
    assert one.flops == 2 * 256 * 192 * 27 * 27 * 64 * 25
    assert (one.x_elements, one.w_elements, one.y_elements) == (
        256 * 64 * 729,
        192 * 64 * 25,
        256 * 192 * 729,
    )


def test_replacing_with_an_impossible_value_is_refused() -> None:
    problem = parse_descriptor(FULL)[0]
    with pytest.raises(ValueError, match="mini-batch"):
        problem.replace(mini_batch=0)
    with pytest.raises(ValueError, match="unknown data type 'int8': it is one of f32, f64, f16, bf16"):
        problem.replace(data_type="int8")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input": (4,)}, "input has 1 sizes: it must have 2 or 3"),
        ({"kernel": (3, 3, 3)}, "kernel has 3 sizes, the input has 2"),
        ({"stride": 0}, "the stride along height is 0"),
        ({"layout": "chwn"}, "unknown layout 'chwn'"),
    ],
)
def test_an_impossible_problem_is_refused_by_name(changed: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "mini_batch": 1, "in_channels": 1, "out_channels": 1, "input": (8, 8), "kernel": (3, 3), **changed
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        Problem(**arguments)  # type: ignore[arg-type]  # wrong types are the point
