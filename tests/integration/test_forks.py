"""A forked child runs and decides convolutions, whatever other threads of its parent do during the fork."""

from pathlib import Path

import pytest
from forking_programs import run_forking


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
    run_forking(program, tmp_path, MUCUDNN_THREADS=threads)


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
    run_forking(program, tmp_path)


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
    assert run_forking(program, tmp_path) == "done\n"


def test_a_thread_that_forks_while_it_measures_itself_goes_on_in_both_processes(tmp_path: Path) -> None:
    program = """
children = []
at_first_measurement.append(lambda: children.append(os.fork()))
check(8)
check(4)
(child,) = children
assert child == 0 or status_of(child) == 0
"""
    run_forking(program, tmp_path)


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
    run_forking(program, tmp_path, MUCUDNN_THREADS="2", OPENBLAS_NUM_THREADS="1")


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
    run_forking(program, tmp_path)


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
    run_forking(program, tmp_path)


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
    run_forking(program, tmp_path)
