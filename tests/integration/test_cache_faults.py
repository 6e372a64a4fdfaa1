"""A fault of a real process costs one clear line, and no row that the cache has kept."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cached_rows import HERE, KERNEL
from programs import compile_c, compile_library, preload
from random_cases import cases

from mucudnn.costs.cache import Cache
from mucudnn.costs.records import Measurement

GOOD = "mb2_ic4ih8_oc4_kh3"

KILLS = cases(50, first=2018)

# A program that forks writers and kills them at random moments, the first while they create the file. Writers
# add rows without end and report each row that is kept. The program then checks that these rows are there.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
from mucudnn._native import parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import Machine, Measurement
from mucudnn.problems.kernels import Kernel

machine = Machine("host", "a device", "a library 1.0", 1)
kernel = Kernel(parse_descriptor("mb8_ic4ih5_oc4_kh3")[0], "forward")
moments = random.Random(int(sys.argv[2]))

def write(path, first, pipe):
    with Cache.open(path) as cache:
        for size in range(first, first + 100_000):
            row = Measurement(size, "ALGORITHM", "CUDNN_STATUS_SUCCESS", 0, "x" * 500, 1.0, 0.0)
            cache.add(machine, kernel, row)
            os.write(pipe, size.to_bytes(8, "big"))

total = 0
for kill in range(int(sys.argv[3])):
    if kill % 10 == 0:
        path, reported = Path(sys.argv[1]) / f"{kill}.sqlite", set()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        write(path, 1 + kill * 100_000, writing)
    os.close(writing)
    said = os.read(reading, 8) if kill % 2 else b""  # every other one has kept a row before
    time.sleep(moments.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with open(reading, "rb") as pipe:
        said += pipe.read()
    new = {int.from_bytes(said[i : i + 8], "big") for i in range(0, len(said), 8)}
    reported |= new
    total += len(new)
    with Cache.open(path) as cache:
        assert cache.query("PRAGMA integrity_check") == [("ok",)]
        assert {m.micro_batch for m in cache.measurements(machine, kernel)} >= reported
print(total)
"""


def test_what_was_reported_as_kept_survives_being_killed_at_any_moment(tmp_path: Path) -> None:
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a forked child cannot use OpenBLAS's threads
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path), str(KILLS.start), str(len(KILLS))],
        env=one_thread,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= len(KILLS) / 2  # rows were being written when the writers were killed


def command(
    path: Path, *arguments: str, interpreter: tuple[str, ...] = (sys.executable, "-m", "mucudnn"), **more: str
) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in os.environ.items() if not k.startswith("MUCUDNN_")}
    environment = {**variables, "MUCUDNN_CACHE": str(path), **more}
    return subprocess.run(
        [*interpreter, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def warning_of_optimize(path: Path, **environment: str) -> str:
    """Run `optimize` with a cache that fails. Check that it succeeds, and return its one warning."""
    done = command(path, "optimize", GOOD, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("Next:")
    (warning,) = [line for line in done.stderr.splitlines() if not line.startswith("Measuring")]
    assert warning.startswith("Warning: the cache ")
    return warning


# A library to preload, which refuses file locks as some network file systems do.
NO_LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#define LOCKLESS(name)                                                                       \\
  int name(int file, int command, ...) {                                                     \\
    va_list arguments;                                                                       \\
    va_start(arguments, command);                                                            \\
    void* argument = va_arg(arguments, void*);                                               \\
    va_end(arguments);                                                                       \\
    if (command == F_GETLK || command == F_SETLK || command == F_SETLKW ||                   \\
        command == F_OFD_GETLK || command == F_OFD_SETLK || command == F_OFD_SETLKW)         \\
      return errno = ENOLCK, -1;                                                             \\
    return ((int (*)(int, int, void*))dlsym(RTLD_NEXT, #name))(file, command, argument);     \\
  }
LOCKLESS(fcntl)
LOCKLESS(fcntl64)
"""


@pytest.fixture(scope="module")
def no_locks(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("preloaded") / "no_locks.so"
    return preload(compile_library(library, NO_LOCKS, "-ldl"))


# sqlite reports missing locks as a lock that another process holds, so a reader waits for it.
WAITS_SHORTLY = """
import sys
from mucudnn.costs import file
file.WAITING_SECONDS = 0.05
from mucudnn.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_on_a_file_system_without_locks_the_work_goes_on_without_the_cache(
    tmp_path: Path, no_locks: str
) -> None:
    path, interpreter = tmp_path / "cache.sqlite", (sys.executable, "-c", WAITS_SHORTLY)
    assert command(path, "optimize", "--measure-only", GOOD).returncode == 0
    assert "No locks available" in warning_of_optimize(path, interpreter=interpreter, LD_PRELOAD=no_locks)
    failed = command(path, "optimize", "--measure-only", GOOD, interpreter=interpreter, LD_PRELOAD=no_locks)
    assert (failed.returncode, len(failed.stderr.splitlines())) == (1, 1)
    replay = ("optimize", GOOD, "--replay", str(path))
    replayed = command(path, *replay, interpreter=interpreter, LD_PRELOAD=no_locks)
    assert replayed.returncode == 0, replayed.stderr


def test_a_full_disk_does_not_hide_the_rows_of_a_log_beside_the_file(tmp_path: Path) -> None:
    full_disk = tmp_path / "full_disk.so"
    compile_c("-shared", "-fPIC", Path(__file__).with_name("full_disk.c"), "-o", full_disk, "-ldl")
    path, here = tmp_path / "here.sqlite", tmp_path / "cache.sqlite"
    with Cache.open(path) as cache:
        cache.add(HERE, KERNEL, Measurement(1, "ALGORITHM", "CUDNN_STATUS_SUCCESS", 0))
        for suffix in ("", "-wal"):  # a killed writer leaves both
            shutil.copy(f"{path}{suffix}", f"{here}{suffix}")
    script = (
        f"import ctypes, sys; ctypes.CDLL({str(full_disk)!r}).leave_room(0); "
        "from mucudnn.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    full = (sys.executable, "-c", script)
    failed = command(here, "cache", "info", interpreter=full, LD_PRELOAD=preload(full_disk))
    assert failed.returncode == 1
    (line,) = failed.stderr.splitlines()
    assert "cannot be used" in line
    with Cache.read_only(here) as cache:
        assert len(cache.measurements(HERE, KERNEL)) == 1
