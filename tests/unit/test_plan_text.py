"""The extension writes and reads the text of plans and journals."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mucudnn._native import (
    NewerVersionError,
    Problem,
    divided_channels,
    format_candidates,
    format_plan,
    parse_candidates,
    parse_journal,
    parse_plan,
)
from mucudnn.problems.kernels import Kernel

PROBLEM = Problem(mini_batch=64, in_channels=64, out_channels=64, input=(56, 56), kernel=(3, 3), padding=1)
WHOLE = [(64, "IMPLICIT_GEMM", 25.5, 0)]
QUARTERS = [(16, "WINOGRAD_NONFUSED", 3.25, 14155776)] * 4
HEADER = {"device": "Some CPU, avx512", "engine": "host", "workspace_limit": "67108864"}

TEXT = """\
mucudnn plan 1
device Some CPU, avx512
engine host
workspace_limit 67108864
kernel forward 3 f32:nchw:default:g1mb64_ic64ih56iw56_oc64oh56ow56_kh3kw3_sh1sw1_ph1pw1_dh0dw0
choose 4*16:WINOGRAD_NONFUSED:3.25:14155776
option 1*64:IMPLICIT_GEMM:25.5:0
option 4*16:WINOGRAD_NONFUSED:3.25:14155776
end 1
"""

parts = st.tuples(
    st.integers(1, 9),
    st.sampled_from(["IMPLICIT_GEMM", "ALGO_1", "eng28_k2=1_k5=3"]),
    st.floats(0, 1e9),
    st.integers(0, 2**62),
)


@st.composite
def plans(draw: st.DrawFn) -> tuple[dict[str, str], list[tuple[object, ...]]]:
    kernels = []
    for index in range(draw(st.integers(0, 3))):
        chosen = draw(st.lists(parts, min_size=1, max_size=4))
        total = sum(part[0] for part in chosen)
        problem = Problem(
            mini_batch=total, in_channels=1 + index, out_channels=1, input=(5, 5), kernel=(3, 3)
        )
        option = [(total, "GEMM", draw(st.floats(0, 1e9)), draw(st.integers(0, 2**62)))]
        pass_ = draw(st.sampled_from(["forward", "backward_data", "backward_filter"]))
        count = draw(st.integers(1, 9))
        shares = draw(st.sampled_from([[], [(count, chosen)], [(1, option), (count, chosen)]]))
        channels = divided_channels(Kernel(problem, pass_))
        groups = [(channels, option)] if channels > 1 else []
        if channels > 2:
            groups = draw(st.sampled_from([[], groups, [(channels - 2, option), (1, chosen), (1, chosen)]]))
        count = sum(n for n, _ in shares) or count
        kernels.append((problem, pass_, count, chosen, [option], shares, groups))
    return draw(
        st.dictionaries(st.sampled_from(["device", "engine", "mode"]), st.sampled_from(["a b", ""]))
    ), kernels


def test_a_plan_has_the_documented_text() -> None:
    assert format_plan(HEADER, [(PROBLEM, "forward", 3, QUARTERS, [QUARTERS, WHOLE], [], [])]) == TEXT


def test_it_reads_back_with_the_desirable_set_by_workspace() -> None:
    assert parse_plan(TEXT) == (HEADER, [(PROBLEM, "forward", 3, QUARTERS, [WHOLE, QUARTERS], [], [])])


@given(plans())
def test_what_is_written_reads_back_as_the_same_and_equal_plans_are_equal_bytes(plan: tuple) -> None:
    header, kernels = plan
    text = format_plan(header, kernels)
    assert format_plan(*parse_plan(text)) == text
    read_header, read = parse_plan(text)
    assert read_header == header
    assert sorted(map(repr, read)) == sorted(map(repr, kernels))
    shuffled = random.Random(1).sample(kernels, len(kernels))
    assert format_plan(dict(reversed(header.items())), shuffled) == text


@given(st.integers(0, len(TEXT) - 1))
def test_a_truncated_plan_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=r"line [0-9]+: "):
        parse_plan(TEXT[:length])


def test_a_plan_of_a_newer_version_is_distinguished_from_a_broken_one() -> None:
    with pytest.raises(NewerVersionError, match="of version 2, this mucudnn reads up to version 1"):
        parse_plan(TEXT.replace("plan 1", "plan 2"))


HUGE = Problem(mini_batch=65536, in_channels=1, out_channels=1, input=(1, 1), kernel=(1, 1))
SINGLES = f"""\
mucudnn plan 1
kernel forward 1 {HUGE}
choose 1*65536:A:1:0
"""


def test_a_plan_of_a_few_bytes_cannot_take_gigabytes() -> None:
    text = SINGLES + "option 65536*1:A:1:0\n" * 300 + "end 1\n"
    with pytest.raises(
        ValueError,
        match=r"^line 19: the plan has 1048577 parts up to here, repeats included: it may have 1048576$",
    ):
        parse_plan(text)


def test_a_journal_document_cannot_either_and_the_others_are_read() -> None:
    large = SINGLES + "option 65536*1:A:1:0\n" * 2 + "end 1\n"
    assert [header for header, *_ in parse_journal(large + TEXT)] == [HEADER]


def test_a_plan_that_could_not_be_read_again_is_not_written() -> None:
    singles = [(1, "A", 1.0, 0)] * 65536
    with pytest.raises(ValueError, match="the plan has 1114112 parts up to here"):
        format_plan({}, [(HUGE, "forward", 1, singles, [singles] * 16, [], [])])


def test_the_largest_plans_of_real_networks_are_read() -> None:
    # ResNet-50 has 69 kernels in training, and each a desirable set of 6000 parts at a mini-batch of 1024.
    problems = [
        Problem(mini_batch=1024, in_channels=count, out_channels=1, input=(1, 1), kernel=(1, 1))
        for count in range(1, 70)
    ]
    option = [(1, "GEMM", 1.0, 0)] * 1024
    kernels = [(problem, "forward", 1, option, [option] * 5, [], []) for problem in problems]
    assert parse_plan(format_plan({}, kernels))[1][-1][4] == [option] * 5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mucudnn plan 1", "something else", "line 1: this is not a mucudnn plan"),
        ("forward", "sideways", "line 5: unknown pass 'sideways'"),
        ("ic64", "ic0", "line 5: the number of input channels"),
        ("4*16", "3*16", "line 6: the micro-batches add up to 48, not to the mini-batch of 64"),
        ("choose 4*16", "choose 5*16", "line 6: the micro-batches do not add up to the mini-batch of 64"),
        ("4*16", "2147483648*16", "line 6: 2147483648 repeats"),
        (":25.5:", ":fast:", "line 7: 'fast' is not a time"),
        (":25.5:", ":-1:", "line 7: a time is not a number of at least 0"),
        (":25.5:", ":nan:", "line 7: a time is not a number of at least 0"),
        (":25.5:0", ":25.5:-1", "line 7: a workspace is below 0"),
        (":IMPLICIT_GEMM:", ":IMPLICIT GEMM:", "line 7: "),
        ("choose", "option", "line 9: the kernel above has no choice"),
        ("option 1", "choose 1", "line 7: a second choice"),
        ("option 1", "maybe 1", "line 7: 'maybe' is not an entry of a plan"),
        ("engine", "device", "line 3: 'device' is given twice"),
        ("end 1", "end 2", "line 9: the plan should have 2 kernels, it has 1"),
        ("end 1\n", "end 1\nmore\n", "line 9: there is text after the end"),
    ],
)
def test_a_broken_plan_is_refused_by_line(old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_plan(TEXT.replace(old, new, 1))


def test_a_fused_convolution_has_a_forward_pass_only() -> None:
    fused = TEXT.replace("dw0", "dw0+bias+relu")
    header, kernels = parse_plan(fused)
    assert kernels[0][0].epilogue == "+bias+relu"
    assert format_plan(header, kernels) == fused
    with pytest.raises(ValueError, match="line 5: a fused convolution has no pass backward_data"):
        parse_plan(fused.replace("forward", "backward_data"))
    with pytest.raises(ValueError, match="a fused convolution has no pass backward_filter"):
        format_plan(header, [(kernels[0][0], "backward_filter", *kernels[0][2:])])


def test_a_plan_has_each_kernel_once() -> None:
    kernel = (PROBLEM, "forward", 1, WHOLE, [], [], [])
    with pytest.raises(ValueError, match="twice"):
        format_plan({}, [kernel, kernel])
    block = TEXT[TEXT.index("kernel") : TEXT.index("end")]
    with pytest.raises(ValueError, match="line 9: this kernel is in the plan twice"):
        parse_plan(TEXT.replace("end 1", block + "end 2"))


def test_values_outside_the_grammar_are_refused_on_writing() -> None:
    with pytest.raises(ValueError, match="'kernel' cannot stand in a plan's header"):
        format_plan({"kernel": "x"}, [])
    with pytest.raises(ValueError, match="'device' cannot stand"):
        format_plan({"device": "two\nlines"}, [])
    with pytest.raises(ValueError, match="'has space' is not the name of an algorithm"):
        format_plan({}, [(PROBLEM, "forward", 1, [(64, "has space", 1.0, 0)], [], [], [])])


IN_GROUPS = f"""\
mucudnn plan 1
{TEXT.splitlines()[4]}
choose 1*64:IMPLICIT_GEMM:25.5:0
groups 1*32 4*16:WINOGRAD_NONFUSED:3.25:14155776 2*16 1*32:GEMM:1.5:64 1*32:FFT:1:8
option 1*64:IMPLICIT_GEMM:25.5:0
end 1
"""
GROUPS = [(32, QUARTERS), *[(16, [(32, "GEMM", 1.5, 64), (32, "FFT", 1.0, 8)])] * 2]


def test_a_kernel_may_have_groups_of_channels_in_addition_to_its_choice() -> None:
    kernel = (PROBLEM, "forward", 3, WHOLE, [WHOLE], [], GROUPS)
    assert format_plan({}, [kernel]) == IN_GROUPS
    assert parse_plan(IN_GROUPS) == ({}, [kernel])


def test_groups_of_a_filter_gradient_may_divide_the_input_channels() -> None:
    groups = [(-32, QUARTERS)] * 2
    kernel = (PROBLEM, "backward_filter", 3, WHOLE, [WHOLE], [], groups)
    text = format_plan({}, [kernel])
    assert "groups 2*in32 4*16:" in text
    assert parse_plan(text) == ({}, [kernel])
    with pytest.raises(ValueError, match="line 4: only a backward_filter without groups of its own"):
        parse_plan(text.replace("kernel backward_filter", "kernel forward"))
    with pytest.raises(ValueError, match="line 4: the groups divide different channels"):
        parse_plan(text.replace("groups 2*in32", "groups 1*in32 1*64:A:1:0 1*32"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2*16 ", "1*16 ", "line 4: the groups add up to 48, not to the 64 channels that forward divides"),
        ("2*16 ", "3*16 ", "line 4: the groups do not add up to the 64 channels that forward divides"),
        ("2*16 ", "64*16 ", "line 4: 64 repeats of a part are not possible in the 64 channels"),
        ("2*16 ", "2*16", "line 4: '161' is not a number of channels|'161\\*32"),
        ("2*16 ", "2*16 1*0 ", "line 4: the micro-batches add up to 0, not to the mini-batch of 64"),
        (" 1*32:FFT:1:8", "", "line 4: the micro-batches add up to 32, not to the mini-batch of 64"),
        ("option 1*64:IMPLICIT_GEMM:25.5:0", "groups 1*64 1*64:A:1:0", "line 5: groups a second time"),
        ("choose 1*64:IMPLICIT_GEMM:25.5:0\n", "", "line 5: the kernel above has no choice"),
        ("dw0", "dw0+add", "line 4: a mixed convolution, or one that adds a tensor, is not divided"),
        ("g1", "g2", "line 4: a group has 16 channels, but this convolution's own have 32"),
    ],
)
def test_groups_that_do_not_fit_their_kernel_are_refused_by_line(old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_plan(IN_GROUPS.replace(old, new, 1))


def test_a_short_line_of_groups_cannot_stand_for_more_parts_than_a_plan_may_have() -> None:
    wide = TEXT.splitlines()[4].replace("oc64", "oc2147483647").replace("ic64", "ic1")
    wide = wide.replace("mb64", "mb1").replace("ih56iw56", "ih1iw1").replace("oh56ow56", "oh1ow1")
    wide = wide.replace("kh3kw3", "kh1kw1").replace("ph1pw1", "ph0pw0")
    line = "groups 2147483647*1 1*1:A:1:0"
    with pytest.raises(ValueError, match="line 4: the plan has 2147483648 parts up to here"):
        parse_plan(f"mucudnn plan 1\n{wide}\nchoose 1*1:A:1:0\n{line}\nend 1\n")


APART = f"""\
mucudnn plan 1
{TEXT.splitlines()[4]}
choose 1*64:IMPLICIT_GEMM:25.5:0
share 1 4*16:WINOGRAD_NONFUSED:3.25:14155776
share 2 1*64:IMPLICIT_GEMM:25.5:0
option 1*64:IMPLICIT_GEMM:25.5:0
end 1
"""


def test_identical_kernels_may_have_shares_in_addition_to_the_common_choice() -> None:
    kernel = (PROBLEM, "forward", 3, WHOLE, [WHOLE], [(1, QUARTERS), (2, WHOLE)], [])
    assert format_plan({}, [kernel]) == APART
    assert parse_plan(APART) == ({}, [kernel])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("share 2", "share 1", "line 7: the shares add up to 2, not to the kernel's count of 3"),
        ("share 2", "share 2147483647", "line 7: the shares add up to 2147483648, not"),
        ("share 2", "share 0", "line 7: the count of a share is below 1"),
        ("share 2", "share two", "line 5: 'two' is not a count"),
        ("share 2 1*64", "share 2 1*63", "line 5: the micro-batches add up to 63, not to the mini-batch"),
        ("choose 1*64:IMPLICIT_GEMM:25.5:0\n", "", "line 6: the kernel above has no choice"),
    ],
)
def test_shares_that_do_not_fit_their_kernel_are_refused_by_line(old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_plan(APART.replace(old, new, 1))


KERNEL = TEXT.splitlines()[4]
JOURNAL = f"""\
mucudnn plan 1
device Some CPU, avx512
{KERNEL}
measured GEMM:2.5:4096:2.75:2.5:0
measured eng7:3:900:3.25:nan:2
candidates graph GEMM:4096:deterministic eng7:900:deterministic,winograd eng9:0:
candidates legacy GEMM:4096:deterministic
{KERNEL.replace("forward", "backward_data")}
candidates graph
end 2
"""


def test_a_journals_document_has_candidates_besides_its_measurements() -> None:
    header, kernels = parse_plan(JOURNAL)
    assert [kernel[3] for kernel in kernels] == [[], []]
    [(same, measured, candidates)] = parse_journal(JOURNAL)
    assert same == header
    assert measured == [
        (PROBLEM, "forward", "GEMM", 2.5, 4096, "deterministic", 2.75, 2.5, 0),
        (PROBLEM, "forward", "eng7", 3.0, 900, "deterministic winograd", 3.25, None, 2),
    ]
    lean = "GEMM:4096:deterministic"
    assert candidates == [
        (PROBLEM, "forward", "graph", f"{lean} eng7:900:deterministic,winograd eng9:0:"),
        (PROBLEM, "forward", "legacy", lean),
        (PROBLEM, "backward_data", "graph", ""),
    ]
    assert parse_candidates(candidates[0][3])[1:] == [
        ("eng7", 900, "deterministic winograd"),
        ("eng9", 0, ""),
    ]
    assert all(format_candidates(parse_candidates(text)) == text for *_, text in candidates)


def test_every_whole_document_of_a_journal_is_read() -> None:
    newer = JOURNAL.replace("plan 1", "plan 2")
    text = JOURNAL + JOURNAL[:-20] + newer + "noise\n" + TEXT
    assert [header for header, *_ in parse_journal(text)] == [{"device": "Some CPU, avx512"}, HEADER]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("eng9:0:", "eng9:-1:"),
        ("eng9:0:", "eng9"),
        ("eng9:0:", "e/9:0:"),
        ("candidates legacy", "candidates graph"),
        (KERNEL + "\n", ""),
        ("end 2", KERNEL.replace("forward", "backward_filter") + "\nend 3"),
    ],
    ids=["negative", "no workspace", "no name", "two lists", "no kernel", "neither"],
)
def test_damaged_candidates_are_refused(old: str, new: str) -> None:
    with pytest.raises(ValueError, match=r"line [0-9]+: "):
        parse_plan(JOURNAL.replace(old, new, 1))
