"""Standard output carries the results of a command, and nothing that a library prints."""

import json
import sys

from programs import run

# The command line, with a library that prints wherever it can: through Python's stream, through C's, which
# keeps the text until the program ends, and to the descriptor itself.
WITH_A_TALKING_LIBRARY = """
import ctypes, os, sys
from mucudnn.cli import cache, main
own = cache.default_path
def talk():
    print("banner of Python")
    ctypes.CDLL(None).printf(b"banner of C\\n")
    os.write(1, b"banner of the system\\n")
    return own()
cache.default_path = talk
code = main(sys.argv[1:])
print("the program goes on", flush=True)
sys.exit(code)
"""
BANNERS = {"banner of Python", "banner of C", "banner of the system"}


def test_what_a_library_prints_goes_to_stderr() -> None:
    ended = run(sys.executable, "-c", WITH_A_TALKING_LIBRARY, "cache", "info", "--json")
    results, _, rest = ended.stdout.partition("\n}\n")
    assert json.loads(results + "}")["schema"] == 1
    assert rest == "the program goes on\n"
    assert set(ended.stderr.splitlines()) >= BANNERS


def test_results_go_nowhere_else_if_standard_output_is_closed() -> None:
    ended = run("sh", "-c", f"{sys.executable} -m mucudnn cache info --json >&-")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_what_a_library_prints_is_lost_if_stderr_is_closed() -> None:
    ended = run("sh", "-c", f"{sys.executable} -c '{WITH_A_TALKING_LIBRARY}' cache info 2>&-")
    *lines, last = ended.stdout.splitlines()
    assert (ended.returncode, last) == (0, "the program goes on")
    assert not BANNERS & set(lines)


def test_a_file_may_be_standard_output() -> None:
    kernel = "mb2_ic4ih8_oc4_kh3_ph1"
    ended = run(sys.executable, "-m", "mucudnn", "optimize", kernel, "--no-run", "--output", "/dev/stdout")
    assert "mucudnn plan " in ended.stdout
    assert "mucudnn plan " not in ended.stderr


def test_the_program_of_run_has_standard_output() -> None:
    ended = run(sys.executable, "-m", "mucudnn", "run", "--", "echo", "results")
    assert ended.stdout == "results\n"
