"""The one-line text form of a problem."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mucudnn._native import Problem, parse_descriptor
from mucudnn.problems.descriptor import problem_key, short_text

OPERATIONS = ["bias", "add", "add0", "relu", "2add", "-0.5add1e-05", "0add3.4028235e38"]
EPILOGUES = st.lists(st.sampled_from(OPERATIONS), max_size=8).map(
    lambda names: "".join(f"+{name}" for name in names)
)
TYPES_AND_EPILOGUES = st.one_of(
    st.fixed_dictionaries(
        {"data_type": st.sampled_from(["f32", "f64", "f16", "bf16"]), "epilogue": EPILOGUES}
    ),
    st.fixed_dictionaries({"data_type": st.sampled_from(["f16>f32", "bf16>f32"])}),
)
FULL = "f32:nchw:default:g1mb256_ic64ih27iw27_oc192oh27ow27_kh5kw5_sh1sw1_ph2pw2_dh0dw0"


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    dims = draw(st.sampled_from([2, 3]))
    sizes = st.lists(st.integers(1, 40), min_size=dims, max_size=dims)
    groups = draw(st.integers(1, 4))
    input_, kernel, dilation = draw(sizes), draw(sizes), draw(sizes)
    extent = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    # With less padding the output would be empty.
    least = [max(0, (e - i + 1) // 2) for e, i in zip(extent, input_, strict=True)]
    return Problem(
        mini_batch=draw(st.integers(1, 1024)),
        in_channels=groups * draw(st.integers(1, 99)),
        out_channels=groups * draw(st.integers(1, 99)),
        input=input_,
        kernel=kernel,
        stride=draw(sizes),
        padding=[p + draw(st.integers(0, 40)) for p in least],
        dilation=dilation,
        groups=groups,
        **draw(TYPES_AND_EPILOGUES),
        layout=draw(st.sampled_from(["nchw", "nhwc", "nhwc/nchw/nhwc", "nchw/nchw/nhwc"])),
        math=draw(st.sampled_from(["default", "tf32", "fma", "strict"])),
    )


@given(problems())
def test_the_full_form_reads_back_as_the_same_problem(problem: Problem) -> None:
    assert parse_descriptor(str(problem)) == (problem, "", 1)


@given(problems(), st.text("abr ", max_size=5), st.integers(1, 99))
def test_an_epilogue_stands_behind_the_sizes_and_before_the_name(
    problem: Problem, name: str, count: int
) -> None:
    text = str(problem)
    assert text.endswith(f"w{problem.dilation[-1] - 1}{problem.epilogue}")
    assert parse_descriptor(f'{text}_n"{name}*{count}"') == (problem, name, count)
    assert parse_descriptor(text.removesuffix(problem.epilogue))[0] == problem or problem.epilogue


@given(problems())
def test_the_short_text_reads_back_as_the_same_problem(problem: Problem) -> None:
    assert parse_descriptor(short_text(problem))[0] == problem
    assert len(short_text(problem)) <= len(str(problem))


@given(problems(), st.integers(1, 99))
def test_the_key_is_a_descriptor_that_all_mini_batches_share(problem: Problem, other: int) -> None:
    key = problem_key(problem)
    assert key == problem_key(problem.replace(mini_batch=other))
    assert parse_descriptor(key, mini_batch=problem.mini_batch)[0] == problem


def test_a_fused_problem_is_another_problem_with_the_same_sizes() -> None:
    plain, fused = (parse_descriptor(FULL + epilogue)[0] for epilogue in ("", "+add0+bias+relu"))
    assert plain != fused
    assert fused.epilogue == "+add0+bias+relu"
    assert (fused.input, fused.output, fused.flops) == (plain.input, plain.output, plain.flops)
    assert fused.replace(mini_batch=2).epilogue == fused.epilogue


def test_an_epilogue_reads_a_tensor_like_the_output_or_a_number_for_each_channel() -> None:
    problem = parse_descriptor("mb3_ic4ih5_oc6_kh3_ph1+bias+relu+add+add0")[0]
    assert problem.operand_elements == [6, 3 * 6 * 5 * 5, 3 * 6 * 5 * 5]
    assert parse_descriptor("mb3_ic4ih5_oc6_kh3_ph1+relu")[0].operand_elements == []


def test_only_an_addition_has_factors_and_those_of_1_are_left_out() -> None:
    problem = parse_descriptor("mb3_ic4ih5_oc6_kh3_ph1+1add1+0.5add-2+bias")[0]
    assert problem.epilogue == "+add+0.5add-2+bias"
    for odd in ("+2bias", "+relu0", "+addx", "+-add", "+nanadd", "+1e99add", "+add1e99", "+2"):
        with pytest.raises(ValueError, match=r"add|fp32"):
            parse_descriptor("mb3_ic4ih5_oc6_kh3_ph1" + odd)


def test_w_and_y_may_have_a_layout_of_their_own_and_y_a_wider_type() -> None:
    problem = parse_descriptor("f16>f32:nhwc/nchw/nchw:mb2_ic4ih5_oc6_kh3_ph1")[0]
    assert (problem.data_type, problem.y_type, problem.types) == ("f16", "f32", "f16>f32")
    assert problem.layouts == {"x": "nhwc", "w": "nchw", "y": "nchw"}
    assert (problem.element_size, problem.y_element_size) == (2, 4)
    assert str(parse_descriptor("nchw/nchw/nchw:mb2_ic4ih5_oc6_kh3_ph1")[0]).startswith("f32:nchw:")
    assert problem.replace(layout="nhwc", data_type="bf16").types == "bf16"
    for odd in ("f32>f16", "f64>f32", "f16>f64", "f16>", "nchw/nhwc", "nchw/nchw/nhwc/nhwc", "nchw//"):
        with pytest.raises(ValueError, match=r"f32|nchw"):
            parse_descriptor(f"{odd}:mb2_ic4ih5_oc6_kh3_ph1")
    with pytest.raises(ValueError, match="without an epilogue"):
        parse_descriptor("f16>f32:mb2_ic4ih5_oc6_kh3_ph1+relu")


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
        # Sums and products of these sizes would overflow, which the undefined-behaviour sanitizer reports.
        (f"mb1_ic64ih27_oc192_kh{-(2**63)}", "the kernel height is -9223372036854775808"),
        (f"mb1_ic64ih27_oc192_kh3_ph{-(2**63)}", "the padding along height is -9223372036854775808"),
        (f"mb1_ic64ih{-(2**63)}_oc192_kh3", "the input height is -9223372036854775808"),
        (
            f"mb1_ic64ih27_oc192_kh3_dh{-(2**63)}",
            "the dilation along height, counted from 1, is -9223372036854775807",
        ),
        ("mb1_ic64ih27_oc192_kh3_sh0", "the stride must be at least 1, not 0"),
        ("mb1_ic64ih2_oc192_kh5", "the output height would be 0 or less"),
        ("mb1_ic64ih27oh9_oc192_kh5", "the output height is given as 9, but the other sizes make it 23"),
        ("mb1_ic64ih27_oc192_kh5_zz3", "'zz3' is not part of a descriptor"),
        ("mb1_ic64ih27_oc192_kh", "'kh' has no number"),
        ("mb1_ic64ic64ih27_oc192_kh3", "'ic' is given twice"),
        ("mb1_ic64ih27id3_oc192_kh3", "'kd' is missing"),
        ("g3mb1_ic64ih27_oc192_kh3", "groups .g3. must divide the channels"),
        ("mb2147483648_ic64ih27_oc192_kh3", "'mb2147483648' is above 2147483647"),
        ("mb2147483647_ic2147483647ih27_oc1_kh1", "x would have 2.63 bytes or more"),
        ("f31:mb1_ic1ih1_oc1_kh1", "'f31:' is not a data type"),
        ("mb1_ic1ih1_oc1_kh1+", r"'\+' cannot follow a convolution: only bias, add and relu can"),
        ("mb1_ic1ih1_oc1_kh1" + "+relu" * 9, "9 operations follow the convolution .*: at most 8 may"),
        ('mb1_ic1ih1_oc1_kh1_n"a', "is not of the form"),
        ('mb1_ic1ih1_oc1_kh1_n"a*0"', "the count '0'"),
    ],
)
def test_an_unreadable_descriptor_names_the_part_that_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_descriptor(text)


@given(st.text(alphabet='mbichowkdsp0123456789_:*n"-fx+relua', max_size=60))
def test_no_text_does_anything_but_parse_or_raise_value_error(text: str) -> None:
    try:
        parse_descriptor(text)
    except ValueError:
        return


def test_a_problem_is_a_value() -> None:
    problem, other = parse_descriptor(FULL)[0], parse_descriptor(FULL)[0]
    assert problem == other
    assert len({problem, other}) == 1
    assert problem != problem.replace(mini_batch=1)
    assert problem != FULL
    assert problem.replace(mini_batch=1).replace(mini_batch=256) == problem
    assert problem.flops == 2 * 256 * 192 * 27 * 27 * 64 * 25
    assert (problem.x_elements, problem.w_elements, problem.y_elements) == (
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
        ({"kernel": (2**63 - 1, 3), "dilation": 2}, "the kernel height is 9223372036854775807"),
        ({"epilogue": "bias"}, r"'bias' is not of the form \+bias\+relu"),
    ],
)
def test_an_impossible_problem_is_refused_by_name(changed: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "mini_batch": 1, "in_channels": 1, "out_channels": 1, "input": (8, 8), "kernel": (3, 3), **changed
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        Problem(**arguments)  # type: ignore[arg-type]  # wrong types are the point
