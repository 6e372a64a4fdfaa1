import pytest
from hypothesis import given
from hypothesis import strategies as st

from mucudnn import _native
from mucudnn.errors import UsageError
from mucudnn.sizes import format_size, parse_limit, parse_size, spell_limit


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64MiB", 64 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("8 KiB", 8192),
        ("2TiB", 2**41),
        ("12B", 12),
        ("16mib", 2**24),
        ("64MB", 64 * 10**6),
    ],
)
def test_a_size_is_bytes_or_a_number_with_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["12XB", "", "MiB", "-1", "1e3", "64M", "1..5MiB", "none", "٣", "9999999TiB"]
)
def test_anything_else_is_a_usage_error_that_quotes_it(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert f"'{text}'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_small_number_needs_a_unit() -> None:
    for parse in (parse_size, _native.parse_size):
        with pytest.raises(ValueError, match="'64' has no unit: write 64MiB, or 64B for bytes"):
            parse("64")


def test_none_stands_for_no_limit() -> None:
    assert parse_limit("none") is None
    assert parse_limit("0") == 0


@given(st.integers(0, 2**62))
def test_what_is_written_reads_back_to_three_digits(size: int) -> None:
    assert abs(parse_size(format_size(size)) - size) <= 0.01 * size


@given(st.none() | st.integers(0, 2**62) | st.integers(0, 2**12).map(lambda n: n * 2**20))
def test_a_limit_is_spelled_exactly(limit: int | None) -> None:
    assert parse_limit(spell_limit(limit)) == limit


def test_a_fraction_counts_to_its_last_digit() -> None:
    for parse in (parse_size, _native.parse_size):
        assert parse("0.0009765625KiB") == 1
        assert parse("0.0009765624KiB") == 0
        with pytest.raises(ValueError, match="more than 20 digits"):
            parse("0.00097656250000000000KiB")


def test_only_ascii_blanks_may_surround_a_size() -> None:
    for parse in (parse_size, _native.parse_size):
        assert parse("\t64MiB \n") == 64 * 2**20
        for blank in ("\u00a0", "\x1c", "\x85"):
            with pytest.raises(ValueError, match="is not a size"):
                parse(f"64MiB{blank}")


digits = ["0", "1", "25", "999999999", "9" * 19, "0" * 90]
blanks = [" ", "\t", "\u00a0", "\x1c"]
pieces = st.sampled_from([*digits, *blanks, ".", "-", "e", "B", "kb", "KiB", "mIb", "TB", "TiB"])


@given(st.lists(pieces, max_size=7).map("".join))
def test_the_drop_in_reads_the_same_sizes(text: str) -> None:
    try:
        expected: int | str = parse_size(text)
    except UsageError as error:
        expected = str(error)
    try:
        actual: int | str = _native.parse_size(text)
    except ValueError as error:
        actual = str(error)
    if isinstance(expected, str) and isinstance(actual, str) and len(text) > 90:
        return  # each cuts a long text in its own way
    assert actual == expected
