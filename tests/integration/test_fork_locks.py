"""A fork waits for the work of other threads that a child could not finish, and takes its locks in order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from forking_programs import run_forking
from programs import HANGS


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
memory["y"].write("f32", np.full(sizes["y"], np.nan))
kernel = Kernel(problem, "forward")
division = engine.prepare(kernel, [(1, "GEMM")])
workspace = engine.allocate(division.workspace)

def one_product(result):
    division.execute(memory["x"], memory["w"], memory[result], workspace)

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
    run_forking(program, tmp_path)


@pytest.mark.parametrize("module", ["mucudnn.arrays.dispatch", "rich.console"])
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
    run_forking(program, tmp_path)


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
    run_forking(program, tmp_path)


# The child of an unfinished import would wait forever for its module.
def test_a_fork_waits_for_the_import_of_pulp(tmp_path: Path) -> None:
    program = """
from mucudnn.solver import MicroConfiguration, desirable_set, divide_workspace
from mucudnn.solver.workspace.division import SOLVERS

del SOLVERS["exact"]  # HiGHS alone needs pulp

def divide():
    parts = [MicroConfiguration(2**i, "A", 3.0 * 2**i - i, 1024 * 4**i) for i in range(5)]
    kernels = {name: desirable_set(parts, 16) for name in "abc"}
    divide_workspace(kernels, 10_000)

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
    run_forking(program, tmp_path)


# sqlite holds a lock of the process while it opens a file, and an empty cache in memory is such a file.
def test_a_fork_waits_until_sqlite_has_opened_a_cache_in_memory(tmp_path: Path) -> None:
    program = """
import sqlite3
from pathlib import Path
from mucudnn.costs.cache import Cache
connect, opening = sqlite3.connect, []

def slow(*arguments, **options):
    opening.append(arguments)
    stop()
    made = connect(*arguments, **options)
    opening.pop()
    return made

sqlite3.connect = slow
thread = threading.Thread(target=Cache.in_memory, args=(Path("none"),), daemon=True)
thread.start()
stopped.wait()
os.register_at_fork(before=go_on.set)  # called first, as it was registered last

def in_child():
    assert not opening

assert status_of(fork(in_child)) == 0
"""
    run_forking(program, tmp_path)


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
