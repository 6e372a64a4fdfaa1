"""A thread inside PyTorch while Python ends aborts the process, so mucudnn joins its threads first."""

import sys

import pytest
from needs_torch import mt
from programs import run

assert mt.convert is not None  # PyTorch is there

# Functions registered with atexit run in reverse order: the last one finds what the others have left.
PROGRAM = """
import atexit
import threading
from importlib import import_module

atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
begun, ending = threading.Event(), threading.Event()

def work(*_):
    begun.set()
    ending.wait()

module = import_module("mucudnn.torch." + {module!r})
{start}
begun.wait()
atexit.register(ending.set)
"""
WATCH = """
module.PATIENCE, module.disagreement = 0.0, work
module.begin(None, "group", "exchange")
"""
TUNER = """
tuner = module.tuner()
tuner._waiting, tuner._credit_s = 1, 1.0  # as if the program waited between two steps
tuner.submit("call", (work() for _ in range(2)))
"""


@pytest.mark.parametrize(
    ("module", "start"),
    [("parallel.spatial.exchange.watching", WATCH), ("choosing.background", TUNER)],
    ids=["watch", "tuner"],
)
def test_a_thread_that_is_at_work_while_the_program_ends_is_joined(module: str, start: str) -> None:
    ended = run(sys.executable, "-c", PROGRAM.format(module=module, start=start))
    assert (ended.returncode, ended.stdout) == (0, "['MainThread']\n"), ended.stderr
