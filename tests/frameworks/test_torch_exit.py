"""A thread inside PyTorch while Python ends aborts the process, so mucudnn joins its threads first."""

import sys

from needs_torch import mt
from programs import run

assert mt.convert is not None  # PyTorch is there

# Functions registered with atexit run in reverse order: the last one finds what the others have left.
PROGRAM = """
import atexit
import threading

atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
begun, ending = threading.Event(), threading.Event()

def work(*_):
    begun.set()
    ending.wait()

from mucudnn.torch.parallel.spatial.exchange import watching
watching.PATIENCE, watching.disagreement = 0.0, work
watching.begin(None, "group", "exchange")
begun.wait()
atexit.register(ending.set)
"""


def test_a_thread_that_is_at_work_while_the_program_ends_is_joined() -> None:
    ended = run(sys.executable, "-c", PROGRAM)
    assert (ended.returncode, ended.stdout) == (0, "['MainThread']\n"), ended.stderr
