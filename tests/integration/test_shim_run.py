"""`mucudnn run` becomes the program: process, exit code, signals, input, output and environment are its."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import scipy_openblas32
from programs import SHIM, compile_c, environment, host_engine_folders, run, run_under_mucudnn

from mucudnn import _native

HOST = _native.host_library()
EXAMPLE = Path(__file__).parents[2] / "examples" / "one_convolution.py"
ASK = """
import ctypes
cudnn = ctypes.CDLL("libcudnn.so.9")
cudnn.cudnnGetVersion.restype = ctypes.c_size_t
print(cudnn.cudnnGetVersion(), cudnn.cudnnCreate(None))
"""
NEVER_OPENED = (
    "mucudnn: cuDNN was never opened through mucudnn, which saw no convolution; see `mucudnn doctor`\n"
)
NO_ANSWER = "0 1001\n"  # CUDNN_STATUS_NOT_INITIALIZED


@pytest.fixture(scope="module")
def answer() -> str:
    """Return the answer of the host engine without the shim."""
    result = run(sys.executable, "-c", ASK.replace("libcudnn.so.9", HOST))
    version, status = result.stdout.split()
    assert (int(version) > 90000, status) == (True, "2000"), result.stderr
    return result.stdout


def ask(**changes: str) -> subprocess.CompletedProcess[str]:
    """Run a program that calls cuDNN under `mucudnn run`."""
    return run_under_mucudnn(sys.executable, "-c", ASK, **changes)


def ask_preloaded(**changes: str) -> subprocess.CompletedProcess[str]:
    """Run the same program with the shim preloaded by hand: no `mucudnn run` has set its variables."""
    return run(sys.executable, "-c", ASK, LD_PRELOAD=str(SHIM), **changes)


def test_the_example_of_the_docs_runs_and_takes_the_workspace_that_they_name() -> None:
    result = run_under_mucudnn(sys.executable, str(EXAMPLE), MUCUDNN_LIBRARY="host", MUCUDNN_MODE="off")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == ["told of 138461248 bytes of workspace", "mean square 561.9"]


@pytest.mark.parametrize(
    ("flags", "limit"),
    [
        ("--xla_gpu_autotune_level=0", "0"),
        ("--xla_gpu_autotune_level=4 --xla_gpu_autotune_level=0 --xla_dump_to=x", "0"),
        ("--xla_gpu_autotune_level=0 --xla_gpu_autotune_level=1", "8MiB"),
        ("", "8MiB"),
    ],
)
def test_xla_without_autotuning_provides_no_workspace_so_the_limit_is_0(flags: str, limit: str) -> None:
    ran = run_under_mucudnn(
        "printenv", "MUCUDNN_WORKSPACE_LIMIT", XLA_FLAGS=flags, MUCUDNN_WORKSPACE_LIMIT="8MiB"
    )
    assert ran.stdout == f"{limit}\n"
    assert ("XLA provides no workspace: the limit is 0 bytes" in ran.stderr) == (limit == "0")


def test_a_program_ends_with_a_line_about_its_convolutions(tmp_path: Path) -> None:
    shared = {"MUCUDNN_LIBRARY": "host", "MUCUDNN_CACHE": str(tmp_path / "cache")}
    limited = {**shared, "MUCUDNN_WORKSPACE_LIMIT": "8MiB", "MUCUDNN_BATCH_POLICY": "power_of_two"}
    under = run_under_mucudnn(sys.executable, str(EXAMPLE), **limited)
    told = int(under.stdout.split()[2])
    line = re.compile(
        r"mucudnn: ([0-3]) of 3 convolutions divided(?:, [0-3] by a faster algorithm)?, workspace at most "
        r"(\d+(?:\.\d)? (?:KiB|MiB)|\d+ bytes); MUCUDNN_LOG=info for more\n"
    )
    match = line.fullmatch(under.stderr)
    assert match, under.stderr
    number, unit = match[2].split()
    size = float(number) * {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]
    assert size <= told * 1.1
    preloaded = run(sys.executable, str(EXAMPLE), LD_PRELOAD=str(SHIM), MUCUDNN_MODE="online", **limited)
    assert line.fullmatch(preloaded.stderr), "the line does not depend on `mucudnn run`"
    for level in ("warning", "off"):
        assert run_under_mucudnn(sys.executable, str(EXAMPLE), **limited, MUCUDNN_LOG=level).stderr == ""


def test_a_program_that_never_opens_cudnn_is_told_so_once_and_its_helpers_are_silent() -> None:
    helpers = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"
    assert run_under_mucudnn(sys.executable, "-c", helpers).stderr == NEVER_OPENED
    for changes in ({"MUCUDNN_LOG": "off"}, {"MUCUDNN_LOG": "warning"}, {"MUCUDNN_MODE": "off"}):
        assert run_under_mucudnn(sys.executable, "-c", helpers, **changes).stderr == ""
    preloaded = run(sys.executable, "-c", helpers, LD_PRELOAD=str(SHIM), MUCUDNN_MODE="online")
    assert preloaded.stderr == ""


def test_a_program_whose_child_calls_cudnn_is_not_told_that_nobody_opened_it() -> None:
    ask_in_child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ASK!r}], check=True)"
    result = run_under_mucudnn(sys.executable, "-c", ask_in_child, MUCUDNN_LIBRARY="host")
    assert (result.returncode, result.stderr) == (0, "")
    assert not list(Path("/dev/shm").glob("mucudnn-run-*"))


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_the_exit_code_is_the_programs(code: int) -> None:
    assert run_under_mucudnn("sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGABRT, signal.SIGUSR1])
def test_a_program_that_dies_by_a_signal_is_seen_to_die_by_it(number: int) -> None:
    assert run_under_mucudnn("sh", "-c", f"kill -{number} $$").returncode == -number


def test_the_program_has_the_process_of_mucudnn_run_and_gets_its_signals() -> None:
    script = "trap 'echo caught; exit 9' TERM; echo $$; read line"
    command = [sys.executable, "-m", "mucudnn", "run", "--", "sh", "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "caught\n"
        assert process.wait() == 9


def test_arguments_input_and_output_are_the_programs() -> None:
    result = run_under_mucudnn("sh", "-c", 'cat; printf "[%s]" "$@"; echo >&2 e', "sh", "--", "", "a b", "-h",
                               stdin="in")  # fmt: skip
    assert (result.stdout, result.stderr) == ("in[--][][a b][-h]", "e\n")


def test_a_program_that_python_reads_from_a_pipe_is_left_to_python() -> None:
    result = run_under_mucudnn(sys.executable, "/dev/stdin", stdin="print('read once')")
    assert (result.stdout, result.stderr) == ("read once\n", NEVER_OPENED)


def test_a_pipe_in_the_place_of_a_program_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "program", 0o700)
    result = run_under_mucudnn(tmp_path / "program")
    assert (result.returncode, result.stderr) == (126, f"mucudnn: {tmp_path}/program: Permission denied\n")


def test_the_environment_is_the_callers_with_the_preload_the_mode_and_the_cache(tmp_path: Path) -> None:
    show, cache = ("env", "--null"), str(tmp_path / "cache")
    variables = {"MUCUDNN_CACHE": cache, "COLOUR": "a=b\nc", "LD_LIBRARY_PATH": "/nowhere"}
    plain = {*run(*show, **variables).stdout.split("\0")} - {"LD_LIBRARY_PATH=/nowhere"}
    under = run_under_mucudnn(*show, **variables).stdout.split("\0")
    added = {
        f"LD_PRELOAD={SHIM}",
        f"LD_LIBRARY_PATH={SHIM.parent}:/nowhere",
        "MUCUDNN_MODE=online",
    }
    assert {line for line in under if not line.startswith("MUCUDNN_RUN=")} == plain | added


@pytest.mark.parametrize("ctype", ["", "C.UTF-8"])
def test_the_locale_that_python_sets_for_itself_stays_with_python(ctype: str) -> None:
    result = run_under_mucudnn("sh", "-c", "echo ${LC_CTYPE-unset}", LC_ALL="", LANG="C", LC_CTYPE=ctype)
    assert result.stdout == f"{ctype}\n"


def test_children_are_run_the_same_way_once() -> None:
    script = f'sh -c \'"{sys.executable}" -m mucudnn run -- sh -c "echo \\$LD_PRELOAD"\''
    assert run_under_mucudnn("sh", "-c", script).stdout == f"{SHIM}\n"


def test_what_was_preloaded_before_stays_in_front(tmp_path: Path) -> None:
    source, other = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text("int nothing;\n")
    compile_c("-shared", "-fPIC", source, "-o", other)
    assert run_under_mucudnn("sh", "-c", "echo $LD_PRELOAD", LD_PRELOAD=str(other)).stdout == (
        f"{other} {SHIM}\n"
    )


def test_a_program_inherits_no_signal_that_python_ignores() -> None:
    status = run_under_mucudnn("grep", "SigIgn", "/proc/self/status").stdout
    ignored = int(status.split()[1], 16)
    assert [number for number in (signal.SIGPIPE, signal.SIGXFSZ) if ignored & 1 << (number - 1)] == []


def test_a_script_is_run_by_its_interpreter_under_the_shim(answer: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!{sys.executable}\n{ASK}")
    script.chmod(0o755)
    result = run_under_mucudnn(script, MUCUDNN_LIBRARY="host")
    assert (result.returncode, result.stdout, result.stderr) == (0, answer, "")


def test_a_script_without_a_first_line_for_an_interpreter_is_run_by_the_shell(tmp_path: Path) -> None:
    script = tmp_path / "a script"
    script.write_text('echo "$1" "$LD_PRELOAD"; exit 3\n')
    script.chmod(0o755)
    result = run_under_mucudnn(script, "a  b")
    assert (result.returncode, result.stdout, result.stderr) == (3, f"a  b {SHIM}\n", "")


def test_a_binary_file_of_another_kind_is_not_given_to_the_shell(tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(b"echo ran\0")
    file.chmod(0o755)
    result = run_under_mucudnn(file)
    assert (result.returncode, result.stdout) == (126, "")
    assert result.stderr == f"mucudnn: {file}: Exec format error\n"


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ((), 2, "there is no command to run: write mucudnn run -- COMMAND..."),
        (("no-such-command",), 127, "no-such-command: there is no such command"),
        (("/no/such/file",), 127, "/no/such/file: there is no such command"),
        ((__file__,), 126, f"{__file__}: is not a program that may be run"),
        (("/",), 126, "/: is not a program that may be run"),
    ],
)
def test_what_cannot_be_run_has_the_exit_code_of_shells(
    command: tuple[str, ...], code: int, message: str
) -> None:
    result = run_under_mucudnn(*command)
    assert (result.returncode, result.stdout, result.stderr) == (code, "", f"mucudnn: {message}\n")


@pytest.mark.parametrize(
    ("variable", "value", "code", "message"),
    [
        ("MUCUDNN_LIBRARY", "/no/such/library.so", 4, "there is no file /no/such/library.so"),
        ("MUCUDNN_LIBRARY", "/", 4, "there is no file /"),
        ("MUCUDNN_LIBRARY", "libcudnn.so.9", 2, "neither 'host' nor the absolute path of a library"),
        ("MUCUDNN_LOG", "loud", 2, "'loud' is not one of: off, warning, summary, info, debug"),
        ("MUCUDNN_MODE", "fast", 2, "'fast' is not one of: "),
        ("MUCUDNN_CACHE", "~no-such-user/c", 2, "there is no home directory for '~no-such-user'"),
    ],
)
def test_a_wrong_variable_is_an_error_before_anything_runs(
    variable: str, value: str, code: int, message: str
) -> None:
    result = run_under_mucudnn("echo", "ran", **{variable: value})
    (line,) = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (code, "")
    assert line.startswith(f"mucudnn: {variable}: ")
    assert message in line


@pytest.mark.parametrize("mode", ["", "plan", "online", "off"])
@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("/no/such.plan", "the plan /no/such.plan cannot be read: No such file or directory"),
        ("/", "the plan / cannot be read: Is a directory"),
        (__file__, f"{__file__}: "),
        ("~no-such-user/plan", "MUCUDNN_PLAN: there is no home directory for '~no-such-user'"),
    ],
)
def test_a_plan_of_the_environment_that_cannot_be_read_is_an_error_if_it_is_needed(
    plan: str, message: str, mode: str
) -> None:
    result = run_under_mucudnn("echo", "ran", MUCUDNN_PLAN=plan, MUCUDNN_MODE=mode)
    if mode == "off" and not plan.startswith("~"):
        assert (result.returncode, result.stdout) == (0, "ran\n")
    else:
        (line,) = result.stderr.splitlines()
        assert (result.returncode, result.stdout) == (2 if plan.startswith("~") else 1, "")
        assert line.startswith(f"mucudnn: {message}")


def test_a_program_gets_whole_paths_without_tildes(tmp_path: Path) -> None:
    plan = Path(__file__).parents[1] / "data" / "plan-1.plan"
    (tmp_path / "own.plan").write_text(plan.read_text())
    (tmp_path / "lib.so").symlink_to(HOST)
    variables = {"MUCUDNN_PLAN": "own.plan", "MUCUDNN_CACHE": "c.sqlite", "MUCUDNN_LIBRARY": "lib.so"}
    result = run_under_mucudnn(
        "env", HOME=str(tmp_path), **{name: f"~/{file}" for name, file in variables.items()}
    )
    lines = result.stdout.splitlines()
    assert [name for name, file in variables.items() if f"{name}={tmp_path / file}" not in lines] == []


def no_cudnn(folder: Path) -> str:
    source, library = folder / "other.c", folder / "other.so"
    source.write_text("int nothing;\n")
    compile_c("-shared", "-fPIC", source, "-o", library)
    return str(library)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda folder: str(SHIM), "is mucudnn's own stand-in for cuDNN"),
        (no_cudnn, "is not cuDNN"),
        (lambda folder: __file__, "cannot load"),
    ],
    ids=["the shim itself", "another library", "no library"],
)
def test_a_file_that_is_no_cudnn_is_one_warning_and_calls_fail_as_without_a_device(
    wrong: object, reason: str, tmp_path: Path
) -> None:
    assert callable(wrong)
    path = wrong(tmp_path)
    result = ask(MUCUDNN_LIBRARY=path)
    (line,) = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (0, NO_ANSWER)
    assert line.startswith("mucudnn: ")
    assert path in line
    assert reason in line
    assert line.endswith("calls to cuDNN fail. Set MUCUDNN_LIBRARY to its absolute path")


@pytest.mark.parametrize("path", ["/no/such/library.so", "/", "/dev/null"])
def test_a_shim_preloaded_by_hand_survives_a_library_that_is_not_there(path: str) -> None:
    result = ask_preloaded(MUCUDNN_LIBRARY=path)
    (line,) = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (0, NO_ANSWER)
    assert line.startswith(f"mucudnn: cannot load '{path}': ")


@pytest.mark.parametrize(
    ("variable", "value"), [("MUCUDNN_LOG", "loud"), ("MUCUDNN_MODE", "fast"), ("MUCUDNN_LIBRARY", "so")]
)
def test_a_shim_preloaded_by_hand_warns_once_of_an_unreadable_variable_and_passes_through(
    variable: str, value: str, answer: str, tmp_path: Path
) -> None:
    folders = host_engine_folders(tmp_path / "host")
    result = ask_preloaded(LD_LIBRARY_PATH=folders, **{variable: value})
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"mucudnn: {variable}: '{value}' is n")
    assert line.endswith("; it is ignored")
    assert (result.returncode, result.stdout) == (0, answer)


def test_empty_variables_are_as_good_as_none(answer: str) -> None:
    result = ask_preloaded(MUCUDNN_LIBRARY="host", MUCUDNN_LOG="", MUCUDNN_MODE="")
    assert (result.returncode, result.stdout, result.stderr) == (0, answer, "")


def test_with_the_log_off_nothing_is_said() -> None:
    result = ask(MUCUDNN_LIBRARY=str(SHIM), MUCUDNN_LOG="off")
    assert (result.returncode, result.stdout, result.stderr) == (0, NO_ANSWER, "")


def test_a_program_that_never_calls_cudnn_never_hears_of_a_wrong_library() -> None:
    result = run("echo", "ran", LD_PRELOAD=str(SHIM), MUCUDNN_LIBRARY="/no/such/library.so")
    assert (result.returncode, result.stdout, result.stderr) == (0, "ran\n", "")


def test_a_program_that_opens_a_path_escapes_and_runs_as_it_does_alone(answer: str) -> None:
    result = run_under_mucudnn(
        sys.executable, "-c", ASK.replace("libcudnn.so.9", HOST), MUCUDNN_LIBRARY=str(SHIM)
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, answer, NEVER_OPENED)


def test_a_program_that_opens_the_path_first_and_the_name_later_gets_the_shim_by_name(
    answer: str, tmp_path: Path
) -> None:
    folders = host_engine_folders(tmp_path / "lib")
    path = tmp_path / "lib" / "libcudnn.so.9"
    program = f"import ctypes; ctypes.CDLL({str(path)!r}, ctypes.RTLD_GLOBAL)\n{ASK}"
    result = run_under_mucudnn(sys.executable, "-c", program, LD_LIBRARY_PATH=folders, MUCUDNN_LOG="info")
    assert (result.returncode, result.stdout) == (0, answer)
    assert result.stderr == f"mucudnn: calls are passed on to '{path}'\n"


def test_the_library_of_a_python_package_is_found_beside_its_other_packages(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    library = packages / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    library.parent.mkdir(parents=True)
    library.symlink_to(HOST)
    source, other = tmp_path / "other.c", packages / "other.so"
    source.write_text("int nothing;\n")
    compile_c("-shared", "-fPIC", source, "-o", other)
    program = f"import ctypes; ctypes.CDLL({str(other)!r})\n{ASK}"
    result = run_under_mucudnn(
        sys.executable,
        "-c",
        program,
        LD_LIBRARY_PATH=scipy_openblas32.get_lib_dir(),
        MUCUDNN_LOG="info",
    )
    # The test accepts the package nvidia-cudnn of any folder, because mucudnn's own environment may have one.
    assert re.fullmatch(
        r"mucudnn: calls are passed on to '.*/nvidia/cudnn/lib/libcudnn.so.9'\n", result.stderr
    )
    assert result.returncode == 0


def test_a_program_that_looks_through_the_search_path_itself_gets_the_shim(
    answer: str, tmp_path: Path
) -> None:
    look = """
import os
folders = os.environ["LD_LIBRARY_PATH"].split(":")
paths = (os.path.join(folder, "libcudnn.so.9") for folder in folders)
path = next(path for path in paths if os.path.exists(path))
"""
    folders = host_engine_folders(tmp_path / "lib")
    program = look + ASK.replace('"libcudnn.so.9"', "path")
    result = run_under_mucudnn(sys.executable, "-c", program, LD_LIBRARY_PATH=folders, MUCUDNN_LOG="info")
    (line,) = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (0, answer)
    assert line == f"mucudnn: calls are passed on to '{tmp_path / 'lib' / 'libcudnn.so.9'}'"


def test_a_library_with_functions_that_mucudnn_does_not_know_is_refused(tmp_path: Path) -> None:
    source, library = tmp_path / "newer.c", tmp_path / "libcudnn.so.9"
    source.write_text("int cudnnGetVersion, cudnnDivideAndConquer, cudnnInvented, other;\n")
    compile_c("-shared", "-fPIC", source, "-o", library)
    for changes in ({"MUCUDNN_LIBRARY": str(library)}, {"LD_LIBRARY_PATH": str(tmp_path)}):
        result = run_under_mucudnn("echo", "ran", **changes)
        assert (result.returncode, result.stdout) == (1, "")
        assert (
            f"{library} has 2 functions that mucudnn does not know (cudnnDivideAndConquer, " in result.stderr
        )
    result = run_under_mucudnn("echo", "ran", LD_LIBRARY_PATH=str(tmp_path), MUCUDNN_LIBRARY="host")
    assert (result.returncode, result.stdout, result.stderr) == (0, "ran\n", "")
