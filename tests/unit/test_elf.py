"""The ELF reader finds names, needs and exports as the compiler was asked to write them."""

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import SHIM, compile_c
from random_cases import examples

from mucudnn.drop_in.elf import NotElfError, read_elf

SOURCE = """
int a_function(void) { return 1; }
int a_variable;
__attribute__((weak)) int a_weak_function(void) { return 2; }
__attribute__((visibility("hidden"))) int hidden(void) { return 3; }
extern double sin(double);
double imports(double x) { return sin(x); }
int calls(void) { return a_function(); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elf")
    source, path = folder / "library.c", folder / "library.so"
    source.write_text(SOURCE)
    compile_c(
        "-shared",
        "-fPIC",
        "-fno-builtin",
        "-nostdlib",
        "-Wl,-soname,libname.so.7,-rpath,/some",
        source,
        "-o",
        path,
        "-lm",
    )
    return path


def rewritten(library: Path, path: Path, *, headers: int, entries: bytes) -> Path:
    """Write the library with `headers` section headers that all show `entries` as the symbols."""
    data = bytearray(library.read_bytes())
    (offset,) = struct.unpack_from("<Q", data, 40)
    header = next(
        offset + 64 * i
        for i in range(struct.unpack_from("<H", data, 60)[0])
        if struct.unpack_from("<I", data, offset + 64 * i + 4)[0] == 11
    )
    struct.pack_into("<QQI", data, header + 24, len(data), len(entries), 0)
    struct.pack_into("<Q", data, 40, len(data) + len(entries))
    struct.pack_into("<H", data, 60, headers)
    path.write_bytes(data + entries + data[header : header + 64] * headers + b"\0")
    return path


def test_a_small_file_does_not_take_minutes(library: Path, tmp_path: Path) -> None:
    symbols = struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 0, 0) * 40_000
    with pytest.raises(NotElfError, match="is cut short or damaged"):
        read_elf(rewritten(library, tmp_path / "a.so", headers=2000, entries=symbols))


@pytest.mark.parametrize(("place", "size"), [(54, 56), (58, 64)], ids=["program headers", "section headers"])
def test_headers_of_a_strange_size_are_refused(library: Path, tmp_path: Path, place: int, size: int) -> None:
    data, path = bytearray(library.read_bytes()), tmp_path / "a.so"
    assert struct.unpack_from("<H", data, place) == (size,)
    for strange in (0, size - 8, size + 8):
        struct.pack_into("<H", data, place, strange)
        path.write_bytes(data)
        with pytest.raises(NotElfError, match="is cut short or damaged"):
            read_elf(path)


def test_a_small_file_does_not_take_gigabytes(library: Path, tmp_path: Path) -> None:
    # The string table is the section itself, and each name begins later in one long text.
    begin = 24 * 20_000
    symbols = b"".join(struct.pack("<IBBHQQ", begin + i, 0x12, 0, 1, 0, 0) for i in range(20_000))
    with pytest.raises(NotElfError, match="is cut short or damaged"):
        read_elf(rewritten(library, tmp_path / "a.so", headers=1, entries=symbols + b"a" * 1_200_000))


def test_a_librarys_name_needs_and_exports_are_read(library: Path) -> None:
    elf = read_elf(library)
    assert elf.soname == "libname.so.7"
    assert elf.needed == ("libm.so.6",)
    assert elf.exports == {"a_function", "a_variable", "a_weak_function", "imports", "calls"}
    assert elf.addresses.keys() == elf.exports
    assert elf.imports >= {"sin"}
    assert elf.search_path == "/some"
    assert elf.interpreter is None


def test_a_call_that_another_library_may_capture_is_distinguished_from_a_function_that_nobody_calls(
    library: Path,
) -> None:
    elf = read_elf(library)
    assert {"a_function", "sin"} <= elf.calls
    assert not {"a_weak_function", "hidden", "calls"} & elf.calls


def test_a_symbol_version_is_not_an_export() -> None:
    elf = read_elf(SHIM)
    assert elf.soname == "libcudnn.so.9"
    assert {"cudnnCreate", "cudnnGetVersion"} < elf.exports
    assert all(name.startswith("cudnn") for name in elf.exports)


def test_a_program_names_its_loader(tmp_path: Path) -> None:
    source, path = tmp_path / "program.c", tmp_path / "program"
    source.write_text("int main(void) { return 0; }\n")
    compile_c(source, "-o", path)
    elf = read_elf(path)
    assert elf.interpreter is not None
    assert Path(elf.interpreter).is_file()
    assert elf.soname is None


def test_a_file_that_cannot_be_read_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_elf(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        read_elf(tmp_path)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "file"


@given(keep=st.floats(0, 1))
def test_a_file_cut_short_is_named(library: Path, damaged: Path, keep: float) -> None:
    content = library.read_bytes()
    damaged.write_bytes(content[: int(keep * (len(content) - 1))])
    with pytest.raises(NotElfError, match=str(damaged)):
        read_elf(damaged)


@given(data=st.data())
@settings(max_examples=examples(500))
def test_a_damaged_file_is_read_or_named_and_nothing_else(
    library: Path, damaged: Path, data: st.DataObject
) -> None:
    content = bytearray(library.read_bytes())
    table = int.from_bytes(content[40:48], "little")  # the offset of the section headers
    place = st.one_of(
        st.integers(4, 63), st.integers(table, len(content) - 8), st.integers(0, len(content) - 8)
    )
    for at in data.draw(st.lists(place, min_size=1, max_size=4)):
        value = data.draw(
            st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([2**63 - 1, 2**63, 2**64 - 1]))
        )
        size = data.draw(st.sampled_from([1, 2, 8]))
        content[at : at + size] = value.to_bytes(8, "little")[:size]
    damaged.write_bytes(content)
    with suppress(NotElfError):  # any other exception fails the test
        assert all(isinstance(name, str) for name in read_elf(damaged).exports)
