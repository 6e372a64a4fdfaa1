"""`mucudnn doctor` says whether programs, libraries and packages get the drop-in, and why they do not."""

import os
import struct
from pathlib import Path

import pytest
from doctor_programs import CALL, program
from programs import SHIM, compile_c, compile_library, host_engine_folders, run, run_under_mucudnn

from mucudnn import _native
from mucudnn.drop_in import doctor
from mucudnn.errors import UsageError

OPEN = '#include <dlfcn.h>\nint main(void) { return dlopen("NAME", RTLD_NOW) == 0; }\n'
DT_AUDIT = 0x6FFFFEFC
VERSION = "#include <stddef.h>\nsize_t cudnnGetVersion(void) {{ return {}; }}\n"
RPATH = "-Wl,-rpath,$ORIGIN/../nvidia/cudnn/lib"
NAMES = 'const char* const names[] = {"libm.so.6", "cudnnCreate", "cudnnGetVersion"};\n'
IN_CODE = """
#include <dlfcn.h>
#include <string.h>
int main(void) {
  char name[14], text[1][14];
  memcpy(name, "libcudnn.so.9", sizeof name);
  memcpy(text[0], name, sizeof name);
  void* volatile library = dlopen(text[0], RTLD_NOW);
  return dlsym(library, "cudnnCreate") == 0;
}
"""
NOTHING = "int main(void) { return 0; }\n"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MUCUDNN_")]:
        monkeypatch.delenv(name)


def examine(path: Path) -> doctor.Finding:
    (finding,) = doctor.examine(str(path))
    return finding


def test_a_linked_program_works_and_its_own_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(tmp_path, CALL, SHIM)
    monkeypatch.setenv("LD_LIBRARY_PATH", host_engine_folders(tmp_path / "host"))
    finding = examine(path)
    assert finding.works is True
    library = tmp_path / "host" / "libcudnn.so.9"
    assert f"alone it gets {library}; under mucudnn run it gets mucudnn's library in front of {library}" in (
        finding.text
    )


def test_a_linked_program_without_a_library_of_its_own_needs_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(tmp_path, CALL, SHIM)
    finding = examine(path)
    assert finding.works is None
    assert "alone it gets none: it is not found; where nothing else brings one, set MUCUDNN_LIBRARY" in (
        finding.text
    )
    monkeypatch.setenv("MUCUDNN_LIBRARY", "host")
    finding = examine(path)
    assert finding.works is True
    assert f"gets mucudnn's library in front of {_native.host_library()}" in finding.text


def test_another_library_that_is_missing_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUCUDNN_LIBRARY", "host")
    library = compile_library(tmp_path / "libgone.so", "int gone;\n")
    path = program(tmp_path, CALL, "-Wl,--no-as-needed", library, SHIM)
    library.unlink()
    assert examine(path).works is True


def test_a_loader_that_the_program_ships_is_not_run(tmp_path: Path) -> None:
    loader, trace = tmp_path / "loader", tmp_path / "trace"
    source = tmp_path / "loader.c"
    source.write_text(f'#include <fcntl.h>\nint main(void) {{ return creat("{trace}", 0644) < 0; }}\n')
    compile_c("-static", source, "-o", loader)
    path = program(tmp_path, CALL, SHIM, f"-Wl,--dynamic-linker={loader}")
    finding = examine(path)
    assert not trace.exists()
    assert finding.works is None
    assert f"asks for the loader {loader}, which is not the system's: it was not run" in finding.text


def auditor(folder: Path, trace: Path) -> Path:
    """Make a library that writes the file `trace` when a loader runs it."""
    text = f"""#include <fcntl.h>
#include <unistd.h>
unsigned la_version(unsigned v) {{ close(open("{trace}", O_CREAT | O_WRONLY, 0644)); return v; }}
"""
    return compile_library(folder / "auditor.so", text)


def test_an_auditor_that_the_program_ships_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUCUDNN_LIBRARY", "host")
    trace = tmp_path / "trace"
    library = auditor(tmp_path, trace)
    path = program(tmp_path, CALL, SHIM, f"-Wl,--audit={library}")
    finding = examine(path)
    assert not trace.exists()
    assert finding.works is None
    assert f"brings the auditor {library} along, which the loader would run" in finding.text


def test_an_auditor_that_only_the_loader_would_find_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUCUDNN_LIBRARY", "host")
    trace = tmp_path / "trace"
    path = program(tmp_path, CALL, SHIM, f"-Wl,--audit={auditor(tmp_path, trace)}")
    content = bytearray(path.read_bytes())
    # The section headers, which no loader reads, lead to a copy of the dynamic section without the auditor.
    (sections,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    headers = [sections + i * size for i in range(count)]
    (dynamic,) = [at for at in headers if struct.unpack_from("<I", content, at + 4)[0] == 6]
    offset, length = struct.unpack_from("<QQ", content, dynamic + 24)
    entries = struct.iter_unpack("<QQ", content[offset : offset + length])
    harmless = b"".join(struct.pack("<QQ", 21 if tag == DT_AUDIT else tag, value) for tag, value in entries)
    struct.pack_into("<QQ", content, dynamic + 24, len(content), len(harmless))
    path.write_bytes(content + harmless)
    finding = examine(path)
    assert not trace.exists()
    assert finding.works is None


@pytest.mark.parametrize(
    ("name", "works", "text"),
    [
        ("libcudnn.so.9", True, "opens libcudnn.so.9 by its name, and gets mucudnn's library"),
        (
            "/opt/cudnn/libcudnn.so.9",
            False,
            "holds the path /opt/cudnn/libcudnn.so.9: a library opened by its path",
        ),
        ("libcudnn.so.8", False, "holds the name libcudnn.so.8: mucudnn stands in for libcudnn.so.9 only"),
        ("cudnnCreate", None, "names functions of cuDNN, but no library: if it opens libcudnn.so.9"),
        ("libother.so.1", None, "does not mention cuDNN"),
    ],
)
def test_a_program_that_opens_libraries_is_classified_by_the_names_in_it(
    name: str, works: bool | None, text: str, tmp_path: Path
) -> None:
    finding = examine(program(tmp_path, OPEN.replace("NAME", name)))
    assert finding.works is works
    assert text in finding.text


def test_a_large_program_is_read_once(tmp_path: Path) -> None:
    # The assembler fills the array at once. A compiler takes seconds for as long an initializer.
    letters = '__asm__(".section .rodata\\nletters: .fill 1 << 23, 1, 97\\n.byte 0\\n.text");\n'
    assert examine(program(tmp_path, letters + OPEN.replace("NAME", "libcudnn.so.9"))).works


def test_a_statically_linked_program_has_no_loader(tmp_path: Path) -> None:
    finding = examine(program(tmp_path, NOTHING, "-static"))
    assert (finding.works, "linked statically" in finding.text) == (False, True)


@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_a_program_with_privileges_ignores_the_preload(mode: int, tmp_path: Path) -> None:
    path = program(tmp_path, CALL, SHIM)
    path.chmod(mode)
    finding = examine(path)
    assert (finding.works, "the loader ignores LD_PRELOAD" in finding.text) == (False, True)


def test_a_program_linked_against_another_version_is_reported(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "libcudnn.so.8", VERSION.format(8), "-Wl,-soname,libcudnn.so.8")
    finding = examine(program(tmp_path, CALL, library))
    assert (finding.works, finding.text) == (
        False,
        "is linked against libcudnn.so.8: mucudnn stands in for libcudnn.so.9 only",
    )


def test_a_program_linked_against_a_path_is_reported(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "libcudnn.so", VERSION.format(9))
    finding = examine(program(tmp_path, CALL, library))
    assert (finding.works, f"is linked against the path {library}" in finding.text) == (False, True)


def test_a_library_with_a_cudnn_of_its_own_makes_no_calls_to_another(tmp_path: Path) -> None:
    own = "int cudnnCreate(void** handle) { return handle == 0; }\n"
    finding = examine(compile_library(tmp_path / "own.so", own))
    assert (finding.works, "holds a cuDNN of its own" in finding.text) == (False, True)


@pytest.mark.parametrize(
    ("options", "works", "text"),
    [
        ((), True, "exports 2 functions of cuDNN that only pass calls on; under mucudnn run its calls go to"),
        (
            ("-DEIGHT",),
            False,
            "is written for cuDNN 8, because it calls cudnnRNNForwardTraining: mucudnn stands",
        ),
    ],
)
def test_a_library_that_exports_forwarders_holds_no_cudnn_and_its_calls_show_which_it_wants(
    options: tuple[str, ...], works: bool, text: str, tmp_path: Path
) -> None:
    forwarder, library = Path(__file__).with_name("forwarder.c"), tmp_path / "libforwarder.so"
    compile_c("-shared", "-fPIC", "-O1", "-Wl,-soname,libforwarder.so", *options, forwarder, "-o", library)
    finding = examine(library)
    assert finding.works is works
    assert text in finding.text
    opener = compile_library(tmp_path / "opener.so", NAMES, RPATH, "-Wl,--no-as-needed", library)
    assert examine(opener).works is works, "it opens the same cuDNN as the library that it needs"


def test_a_library_that_takes_functions_from_whoever_loads_it_gets_the_drop_ins(tmp_path: Path) -> None:
    finding = examine(compile_library(tmp_path / "taker.so", CALL.replace("main", "call")))
    assert (finding.works, "takes cuDNN from its loader" in finding.text) == (True, True)


def test_a_cudnn_that_a_packager_renamed_is_behind_the_drop_in(tmp_path: Path) -> None:
    renamed, versions = tmp_path / "libcudnn-74a4c495.so.9.1.0", tmp_path / "versions"
    versions.write_text("libcudnn.so.9 { global: cudnn*; local: *; };\n")
    options = (f"-Wl,-soname,{renamed.name}", f"-Wl,--version-script={versions}")
    compile_library(renamed, VERSION.format(90100), *options)
    path = program(tmp_path, CALL, renamed, f"-Wl,-rpath,{tmp_path}")
    finding = examine(path)
    assert (finding.works, "a renamed libcudnn.so.9" in finding.text) == (True, True)
    assert run(path).returncode == 90100 % 256
    under = run_under_mucudnn(path, MUCUDNN_LOG="info")
    assert (under.returncode, under.stderr) == (90100 % 256, f"mucudnn: calls are passed on to '{renamed}'\n")


def test_a_name_that_a_program_puts_together_in_its_code_is_found(tmp_path: Path) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("other processors' code holds no text of eight bytes")
    finding = examine(program(tmp_path, IN_CODE, "-O2"))
    assert (finding.works, "opens libcudnn.so.9 by a name that its code puts together" in finding.text) == (
        True,
        True,
    )


def test_a_folder_of_cudnns_in_the_search_path_says_that_a_library_opens_it_by_name(tmp_path: Path) -> None:
    library = tmp_path / "names.so"
    assert examine(compile_library(library, NAMES)).works is None
    finding = examine(compile_library(library, NAMES, RPATH))
    assert (finding.works, "names functions and a folder of cuDNN's" in finding.text) == (True, True)


def test_words_that_name_no_cudnn_function_do_not_count(tmp_path: Path) -> None:
    finding = examine(program(tmp_path, OPEN.replace("NAME", "set cudnnCreateTensor to 1, or cudnn.enabled")))
    assert (finding.works, finding.uses_cudnn) == (None, False)


def test_a_cudnn_library_is_not_a_program(tmp_path: Path) -> None:
    assert examine(SHIM).text == "is a cuDNN itself; name a program that uses it"


def test_a_program_for_another_machine_is_reported(tmp_path: Path) -> None:
    path = program(tmp_path, CALL, SHIM)
    content = bytearray(path.read_bytes())
    content[18] = 243
    path.write_bytes(content)
    finding = examine(path)
    assert (finding.works, "is for riscv64" in finding.text) == (False, True)


@pytest.mark.parametrize("first_line", ["#!{}", "#! {} -u", "#!/usr/bin/env {}", "#!/usr/bin/env -S {} -u"])
def test_a_script_is_classified_by_its_interpreter(first_line: str, tmp_path: Path) -> None:
    interpreter = program(tmp_path, OPEN.replace("NAME", "libcudnn.so.9"))
    script = tmp_path / "script"
    script.write_text(first_line.format(interpreter) + "\necho\n")
    finding = examine(script)
    assert (finding.works, finding.subject) == (True, f"{script}, a script of {interpreter}")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is neither a program nor a script with #!: name the program that runs it"),
        (b"words", "is neither a program nor a script with #!: name the program that runs it"),
        (b"\x7fELF\x01\x01" + bytes(60), "is not a 64-bit little-endian ELF file"),
        (b"\x7fELF\x02\x01", "is cut short or damaged"),
        (b"#!\n", "is a script whose interpreter was not found"),
        (b"#!/no/such/interpreter\n", "is a script whose interpreter was not found"),
    ],
)
def test_a_file_that_is_not_a_program_has_no_answer(content: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    finding = examine(path)
    assert (finding.works, text in finding.text) == (None, True), finding.text


def test_a_command_is_looked_up() -> None:
    (finding,) = doctor.examine("env")
    assert (finding.subject, finding.works) == ("env", None)


@pytest.mark.parametrize("name", ["no-such-program", "/no/such/program", ""])
def test_a_missing_program_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' is not a file, a command or an installed Python package"):
        doctor.examine(name)


def test_the_files_of_a_python_package_that_use_cudnn_are_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    information = tmp_path / "trainer-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: trainer\nVersion: 1.0\n")
    for name, text, options in (
        ("_linked.so", CALL, ("-shared", "-fPIC", SHIM)),
        ("_other.so", NOTHING, ("-shared",)),
    ):
        (tmp_path / name).write_bytes(program(tmp_path, text, *options).read_bytes())
    (tmp_path / "libcudnn_graph.so.9").write_bytes(b"")
    (tmp_path / "broken.so").write_bytes(b"")
    files = ("_linked.so", "_other.so", "libcudnn_graph.so.9", "broken.so", "missing.so", "trainer.py")
    (information / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MUCUDNN_LIBRARY", "host")
    assert [(finding.subject, finding.works) for finding in doctor.examine("trainer")] == [
        ("trainer: _linked.so", True)
    ]
    (information / "RECORD").write_text("_other.so,,\n")
    assert [finding.text for finding in doctor.examine("trainer")] == [
        "no file of this package calls cuDNN; one of the libraries that it loads may: name that library"
    ]
