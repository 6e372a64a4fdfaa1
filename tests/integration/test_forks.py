"""A forked child runs and decides convolutions, whatever other threads of its parent do during the fork."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import HANGS

# The beginning of every program below. The thread of `measuring` sets `stopped` at its first measurement and
# waits for `go_on`.
BEGIN = """
import logging, os, signal, sys, threading, traceback
from pathlib import Path
import numpy as np
import numpy.testing  # numpy imports it lazily, and a child could wait for ever for a thread that imports it
import mucudnn
from mucudnn.measuring.quick import QuickTimer
from mucudnn.costs.cache import Cache

numbers = np.random.default_rng(1)
W = numbers.random((16, 16, 3, 3), np.float32)
X = numbers.random((16, 16, 14, 14), np.float32)

def check(samples, padding=1):
    around = (padding, padding)
    padded = np.pad(X[:samples].astype(np.float64), ((0, 0), (0, 0), around, around))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.einsum("nchwij,kcij->nkhw", windows, W)
    found = mucudnn.convolution_forward(X[:samples], W, padding=padding)
    np.testing.assert_allclose(found, expected, rtol=1e-4)

def fork(work):
    child = os.fork()
    if child == 0:
        signal.alarm(300)  # ends a child that hangs
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return child

def status_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

measure, measured = QuickTimer.measure, []
stopped, go_on = threading.Event(), threading.Event()
at_first_measurement = []

def stop():
    stopped.set()
    go_on.wait()

def measure_after_what_is_due(timer, micro_batch, *arguments):
    measured.append(micro_batch)
    if at_first_measurement:
        at_first_measurement.pop()()
    return measure(timer, micro_batch, *arguments)

QuickTimer.measure = measure_after_what_is_due

def measuring(samples, padding=1):
    at_first_measurement.append(stop)
    thread = threading.Thread(target=check, args=(samples, padding), daemon=True)
    thread.start()
    stopped.wait()
    return thread
"""


def python(program: str, tmp_path: Path, **variables: str) -> str:
    """Return the output of a process that runs the program with an empty cache."""
    # OpenBLAS has its usual threads here, which a fork loses.
    out = ("MUCUDNN_", "OPENBLAS_NUM_THREADS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(out)}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        env={**kept, "MUCUDNN_CACHE": str(tmp_path / "cache.sqlite"), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("threads", ["1", "2"])
def test_while_another_thread_measures_a_child_runs_what_is_known_and_decides_what_is_new(
    threads: str, tmp_path: Path
) -> None:
    program = """
check(4)
thread = measuring(16, padding=2)

def in_child():
    check(4)
    before = len(measured)
    check(4, padding=0)
    assert len(measured) > before

assert status_of(fork(in_child)) == 0
go_on.set()
thread.join()
"""
    python(program, tmp_path, MUCUDNN_THREADS=threads)


def test_a_child_waits_for_what_its_parent_measures_and_measures_nothing_twice(tmp_path: Path) -> None:
    program = """
thread = measuring(16)

def in_child():
    measured.clear()
    check(16)
    assert not measured, measured

child = fork(in_child)
go_on.set()
thread.join()
assert status_of(child) == 0
"""
    python(program, tmp_path)


def test_a_child_does_not_wait_for_a_measurement_of_its_parent_that_ended(tmp_path: Path) -> None:
    program = """
measuring(16)
parent_is_gone, writing = os.pipe()

def in_child():
    os.close(writing)
    os.read(parent_is_gone, 1)
    check(16)
    print("done", flush=True)

fork(in_child)
os._exit(0)
"""
    assert python(program, tmp_path) == "done\n"


def test_a_thread_that_forks_while_it_measures_itself_goes_on_in_both_processes(tmp_path: Path) -> None:
    program = """
children = []
at_first_measurement.append(lambda: children.append(os.fork()))
check(8)
check(4)
(child,) = children
assert child == 0 or status_of(child) == 0
"""
    python(program, tmp_path)


def test_after_its_parents_threads_worked_a_child_works_with_its_own(tmp_path: Path) -> None:
    program = """
W = numbers.random((32, 32, 3, 3), np.float32)
X = numbers.random((2, 32, 32, 32), np.float32)  # one sample is work enough for several threads

def threads():
    return len(os.listdir("/proc/self/task"))

assert threads() == 1
check(2)
assert threads() == 2

def in_child():
    assert threads() == 1
    check(2)
    assert threads() == 2
    check(2, padding=0)

for _ in range(2):
    assert status_of(fork(in_child)) == 0
    check(2)
"""
    python(program, tmp_path, MUCUDNN_THREADS="2", OPENBLAS_NUM_THREADS="1")


# sqlite counts the locks of a process in memory. A forked child inherits the counts, but not the locks.
def test_a_childs_connection_to_the_cache_holds_locks_of_its_own(tmp_path: Path) -> None:
    program = """
path = Path(os.environ["MUCUDNN_CACHE"])

def is_locked():
    files = [file for file in Path("/proc/self/fd").iterdir() if file.resolve() == path]
    return any("lock:" in Path("/proc/self/fdinfo", file.name).read_text() for file in files)

def in_child():
    assert not is_locked()
    with Cache.open(path) as own:
        assert own.machines() == machines
        assert is_locked()
        assert cache.machines() == machines

check(1)
with Cache.open(path) as cache:
    machines = cache.machines()
    assert is_locked()
    assert status_of(fork(in_child)) == 0
    assert cache.machines() == machines
    assert is_locked()
"""
    python(program, tmp_path)


def test_a_fork_waits_for_the_end_of_a_transaction(tmp_path: Path) -> None:
    program = """
path = Path(os.environ["MUCUDNN_CACHE"])
check(1)
with Cache.read_only(path) as cache:
    rows = list(cache.rows())

def rows_until_another_thread_forks():
    yield rows[0]
    stopped.set()
    go_on.wait()
    yield rows[1]

def merge():
    with Cache.open(path) as cache:
        cache.merge(rows_until_another_thread_forks())

def in_child():
    check(1, padding=0)
    with Cache.read_only(path) as cache:
        assert len(list(cache.rows())) > len(rows)

os.register_at_fork(before=go_on.set)  # called first, as it was registered last
thread = threading.Thread(target=merge, daemon=True)
thread.start()
stopped.wait()
assert status_of(fork(in_child)) == 0
thread.join()
"""
    python(program, tmp_path)


# A lock of flock() belongs to the open file, which a child inherits.
def test_a_child_does_not_keep_the_journal_locked_that_another_thread_reads(tmp_path: Path) -> None:
    program = """
import fcntl
from mucudnn.costs import journal

path = Path(os.environ["MUCUDNN_CACHE"])
journal.journal_of(path).write_text("")
read = journal._read

def slow(*arguments):
    stop()
    return read(*arguments)

def take():
    with Cache.open(path) as cache:
        journal.take_journal(cache)

journal._read = slow
thread = threading.Thread(target=take, daemon=True)
thread.start()
stopped.wait()
parent_is_done, done = os.pipe()

def in_child():
    os.close(done)
    os.read(parent_is_done, 1)

child = fork(in_child)
go_on.set()
thread.join()
with open(journal.journal_of(path)) as file:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.close(done)
assert status_of(child) == 0
"""
    python(program, tmp_path)


def test_a_child_names_a_plan_whose_digest_another_thread_computes(tmp_path: Path) -> None:
    program = """
plan = mucudnn.Plan({"engine": "host"})
text = mucudnn.Plan.__str__

def slow(plan):
    if threading.current_thread() is not threading.main_thread():
        stop()
    return text(plan)

mucudnn.Plan.__str__ = slow
threading.Thread(target=lambda: plan.digest, daemon=True).start()
stopped.wait()
assert status_of(fork(lambda: plan.digest)) == 0
go_on.set()
assert plan.digest is plan.digest
"""
    python(program, tmp_path)


# OpenBLAS holds locks during a product. A child that is forked meanwhile would find them held forever.
def test_a_fork_waits_for_the_products_in_progress(tmp_path: Path) -> None:
    program = """
from mucudnn._native import Engine, Problem, host_library
from mucudnn.problems.kernels import Kernel
engine = Engine(host_library())
problem = Problem(mini_batch=1, in_channels=1024, out_channels=1024, input=(64, 64), kernel=(1, 1))
x, w, y = problem.x_elements, problem.w_elements, problem.y_elements
sizes = {"x": x, "w": w, "y": y, "expected": y}
memory = {name: engine.allocate(4 * size) for name, size in sizes.items()}
for seed, name in enumerate("xw"):
    memory[name].fill_random("f32", sizes[name], seed)
memory["y"].fill("f32", sizes["y"], np.nan)
kernel = Kernel(problem, "forward")
division = engine.prepare(kernel, [(1, "GEMM")])
workspace = engine.allocate(division.workspace)

def one_product(result):
    engine.execute(kernel, [(1, "GEMM")], memory["x"], memory["w"], memory[result], workspace)

def values(name):
    return memory[name].read("f32", sizes[name])

one_product("expected")
thread = threading.Thread(target=one_product, args=("y",), daemon=True)
thread.start()
while np.isnan(memory["y"].read("f32", 1)).any():  # until the product begins
    pass
assert status_of(fork(lambda: np.testing.assert_array_equal(values("y"), values("expected")))) == 0
assert status_of(fork(lambda: one_product("y"))) == 0
thread.join()
"""
    python(program, tmp_path)


@pytest.mark.parametrize("module", ["mucudnn.arrays.dispatch", "email.parser", "rich.console"])
def test_a_fork_waits_for_the_import_of_what_is_used_first(module: str, tmp_path: Path) -> None:
    program = f"""
class Slow:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == "{module}":
            stop()

assert "{module}" not in sys.modules
sys.meta_path.insert(0, Slow)
thread = threading.Thread(target=check, args=(1,), daemon=True)
thread.start()
stopped.wait()
os.register_at_fork(before=go_on.set)  # called first, as it was registered last
assert status_of(fork(lambda: check(2))) == 0
thread.join()
"""
    python(program, tmp_path)


def test_a_lock_that_a_thread_registers_in_the_middle_of_a_fork_is_not_released(tmp_path: Path) -> None:
    program = """
for name in [name for name in sys.modules if name.startswith("mucudnn.solver")]:
    del sys.modules[name]

def register():
    from mucudnn.solver.forks import no_fork

def register_in_thread():
    thread = threading.Thread(target=register)
    thread.start()
    thread.join()

os.register_at_fork(before=register_in_thread)
assert status_of(fork(lambda: check(2))) == 0
"""
    python(program, tmp_path)


# The child of an unfinished import would wait for ever for its module.
def test_a_fork_waits_for_the_import_of_pulp(tmp_path: Path) -> None:
    program = """
from mucudnn.solver import MicroConfiguration, desirable_set, divide_workspace

def divide():
    parts = [MicroConfiguration(2**i, "A", 3.0 * 2**i - i, 1024 * 4**i) for i in range(5)]
    kernels = {name: desirable_set(parts, 16) for name in "abc"}
    divide_workspace(kernels, 10_000, solver="highs")

class Slow:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == "pulp":
            stop()

assert "pulp" not in sys.modules
sys.meta_path.insert(0, Slow)
thread = threading.Thread(target=divide, daemon=True)
thread.start()
stopped.wait()
os.register_at_fork(before=go_on.set)  # called first, as it was registered last
assert status_of(fork(divide)) == 0
thread.join()
"""
    python(program, tmp_path)


# sqlite holds a lock of the process while it opens a file, and an empty cache in memory is such a file.
def test_a_fork_waits_until_sqlite_has_opened_a_cache_in_memory(tmp_path: Path) -> None:
    program = """
import sqlite3
from mucudnn.costs import file as cache_file
connect, opening = sqlite3.connect, []

def slow(*arguments, **options):
    opening.append(arguments)
    stop()
    made = connect(*arguments, **options)
    opening.pop()
    return made

sqlite3.connect = slow
thread = threading.Thread(target=cache_file.in_memory, daemon=True)
thread.start()
stopped.wait()
os.register_at_fork(before=go_on.set)  # called first, as it was registered last

def in_child():
    assert not opening

assert status_of(fork(in_child)) == 0
"""
    python(program, tmp_path)


# A fork takes the lock of `logging` too, and the thread that it waits for needs that lock for its import.
def test_a_fork_takes_no_lock_that_an_import_in_progress_needs() -> None:
    program = """
import os, sys, threading
import mucudnn
stopped, go_on = threading.Event(), threading.Event()

class Slow:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == "mucudnn.arrays.dispatch":
            stopped.set()
            go_on.wait()

sys.meta_path.insert(0, Slow)
if "FIRST" in os.environ:
    import logging
thread = threading.Thread(target=lambda: mucudnn.convolution_forward, daemon=True)
thread.start()
stopped.wait()
os.register_at_fork(before=go_on.set)  # called first, as it was registered last
child = os.fork()
if child == 0:
    os._exit(0)
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    for variables in ({}, {"FIRST": "yes"}):
        done = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **variables},
            capture_output=True, text=True, check=False, timeout=HANGS,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
