"""The host engine runs on the threads of the process's OpenMP runtime; without one, on its own."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from programs import compile_c, compile_library, is_missing, run

# `convolve` returns the bits of a result; by default it is one job of the threads. `tasks` returns how many
# threads the process has.
BEGIN = """
import ctypes, os, signal, sys, threading
import numpy as np
from mucudnn._native import Engine, Problem, host_library
from mucudnn.problems.kernels import Kernel

PROBLEM = Problem(
    mini_batch=8, in_channels=16, out_channels=16, input=(40, 40), kernel=(3, 3), padding=1
)
assert PROBLEM.flops > 8e6  # smaller problems run on one thread

def convolve(threads=2, engine=None, algorithm="IMPLICIT_GEMM"):
    engine = engine or Engine(host_library(), threads=threads)
    division = engine.prepare(Kernel(PROBLEM, "forward"), [(8, algorithm)])
    x, w, y = (np.zeros(n, np.float32) for n in (PROBLEM.x_elements, PROBLEM.w_elements, PROBLEM.y_elements))
    for seed, values in enumerate((x, w)):
        engine.borrow(values.ctypes.data, values.nbytes).fill_random("f32", values.size, seed)
    division.run(x.ctypes.data, w.ctypes.data, y.ctypes.data, engine.allocate(division.workspace))
    assert np.any(y)
    return y.tobytes()

def tasks():
    return len(os.listdir("/proc/self/task"))

def load(path):
    return ctypes.CDLL(path)
"""

LOADED = "team = load(sys.argv[1]); team.set_team_size(2); assert team.threads_of_an_operation() == 2\n"


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library that runs on OpenMP."""
    library = tmp_path_factory.mktemp("openmp") / "team.so"
    compile_c("-fopenmp", "-shared", "-fPIC", Path(__file__).with_name("openmp_team.c"), "-o", library)
    return library


def succeed(program: str, *arguments: str | Path, **changes: str) -> str:
    changes = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1", **changes}
    done = run(sys.executable, "-c", BEGIN + program, *arguments, **changes)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def test_without_openmp_the_engine_starts_a_worker_of_its_own() -> None:
    succeed("before = tasks(); convolve(); assert tasks() == before + 1, tasks()")


def test_after_an_operation_on_openmp_the_engine_starts_no_thread(team: Path) -> None:
    succeed(LOADED + "before = tasks(); convolve(); assert tasks() == before, (before, tasks())", team)


def test_a_runtime_that_is_loaded_after_the_first_convolution_is_used_from_then_on(team: Path) -> None:
    program = """
first = convolve()
own = tasks()
team = load(sys.argv[1])
team.set_team_size(2)
assert convolve() == first and tasks() == own + 1  # the team's second thread
assert team.threads_of_an_operation() == 2 and tasks() == own + 1
"""
    succeed(program, team)


def test_a_framework_with_a_runtime_of_its_own_is_found() -> None:
    if find_spec("torch") is None:
        is_missing("needs PyTorch: pip install torch")
    program = """
import torch
torch.set_num_threads(2)
torch.relu_(torch.ones(1 << 20))
before = tasks()
convolve()
assert tasks() == before, (before, tasks())
"""
    succeed(program)


def test_the_bits_are_the_same_on_both_sets_of_threads(team: Path) -> None:
    program = """
for algorithm in ("IMPLICIT_GEMM", "GEMM", "WINOGRAD_NONFUSED", "FFT_TILING"):
    sys.stdout.write(str(hash(convolve(algorithm=algorithm))))
"""
    fixed = {"PYTHONHASHSEED": "0"}
    assert succeed(LOADED + program, team, **fixed) == succeed(program, **fixed)


def test_an_engine_with_more_threads_than_the_team_has_its_own(team: Path) -> None:
    program = """
before = tasks()
convolve(threads=3)
assert tasks() == before + 2, (before, tasks())
assert team.threads_of_an_operation() == 2  # the team has not changed its size
"""
    succeed(LOADED + program, team)


def test_an_engine_with_fewer_threads_leaves_the_team_as_it_is(team: Path) -> None:
    program = """
team.set_team_size(3)
assert team.threads_of_an_operation() == 3
before = sorted(os.listdir("/proc/self/task"))
convolve(threads=2)
assert team.threads_of_an_operation() == 3
assert sorted(os.listdir("/proc/self/task")) == before
"""
    succeed(LOADED + program, team)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_forked_child_convolves_although_its_parent_used_openmp(team: Path, when: str) -> None:
    program = f"""
if "{when}" == "after":
    convolve()
child = os.fork()
if child == 0:
    signal.alarm(300)  # ends a child that hangs
    first = tasks()
    convolve()
    os._exit(0 if tasks() == first + 1 else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
convolve()
"""
    succeed(LOADED + program, team)


def test_threads_of_a_team_may_call_the_engine(team: Path) -> None:
    program = """
expected, found = convolve(), {}
call = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda thread: found.update({thread: convolve()}))
team.call_from_each_thread(call)
assert found == {0: expected, 1: expected}, found.keys()
"""
    succeed(LOADED + program, team)


def test_several_callers_get_the_same_bits(team: Path) -> None:
    program = """
engine = Engine(host_library(), threads=2)
expected, found = convolve(engine=engine), []
def caller():
    team.threads_of_an_operation()
    for _ in range(5):
        found.append(convolve(engine=engine) == expected)
callers = [threading.Thread(target=caller) for _ in range(4)]
for each in callers: each.start()
for each in callers: each.join()
assert found == [True] * 20
"""
    succeed(LOADED + program, team)


def test_a_failure_on_a_thread_of_the_team_reaches_the_caller(team: Path) -> None:
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("the sanitizer ends a process that runs out of memory")
    program = """
import resource
from mucudnn._native import EngineError
engine = Engine(host_library(), threads=2)
division = engine.prepare(Kernel(PROBLEM, "forward"), [(8, "IMPLICIT_GEMM")])
x, w, y = (np.ones(n, np.float32) for n in (PROBLEM.x_elements, PROBLEM.w_elements, PROBLEM.y_elements))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 19), -1))  # too few bytes for a thread's tile
try:
    division.run(x.ctypes.data, w.ctypes.data, y.ctypes.data, None)
except (EngineError, MemoryError):
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
else:
    raise SystemExit("the memory was enough")
division.run(x.ctypes.data, w.ctypes.data, y.ctypes.data, None)
assert np.any(y != 1)
"""
    succeed(LOADED + program, team)


def test_a_runtime_that_waits_for_busy_cores_is_used_less_and_less(tmp_path: Path) -> None:
    library = compile_library(
        tmp_path / "libgomp_slow.so",
        "#include <time.h>\n"
        "static int calls;\n"
        "int count_of_calls(void) { return calls; }\n"
        "int omp_get_max_threads(void) { return 2; }\n"
        "int omp_get_thread_num(void) { return 0; }\n"
        "void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags) {\n"
        "  const struct timespec late = {0, 5000000};\n"
        "  calls += 1;\n"
        "  work(data);\n"
        "  clock_nanosleep(CLOCK_MONOTONIC, 0, &late, 0);\n"
        "}\n",
        "-D_GNU_SOURCE",
    )
    program = """
slow = load(sys.argv[1])
engine = Engine(host_library(), threads=2)
assert len({convolve(engine=engine) for _ in range(40)}) == 1
assert slow.count_of_calls() == 5, slow.count_of_calls()  # with 1, 3, 7 and 15 jobs between them
"""
    succeed(program, library)


def test_threads_that_come_late_or_not_at_all_leave_their_share_to_the_others(tmp_path: Path) -> None:
    library = compile_library(
        tmp_path / "libgomp_one_by_one.so",
        "static int number, calls;\n"
        "int count_of_calls(void) { return calls; }\n"
        "int omp_get_max_threads(void) { return 3; }\n"
        "int omp_get_thread_num(void) { return number; }\n"
        "void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags) {\n"
        "  calls += 1;\n"
        "  for (number = 2; number > 0; number--) work(data);  /* the calling thread, 0, has no turn */\n"
        "}\n",
    )
    program = """
alone = convolve()
one_by_one = load(sys.argv[1])
assert convolve() == alone
assert one_by_one.count_of_calls() > 0
"""
    succeed(program, library)
