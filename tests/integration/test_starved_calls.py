"""A converted call that lacks memory or file descriptors is right, or raises an error that says so.

TEST_SEED=7     begin with case 7
TEST_CASES=500  run that many cases
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import needs_torch  # noqa: F401
from programs import run
from random_cases import cases

PROGRAM = """
import copy, os, resource, sys
from random import Random
import torch
import mucudnn.torch as mt

layer = mt.convert(torch.nn.Conv2d(4, 8, 3), budget="0.3s")
own = mt.restore(copy.deepcopy(layer))
x = torch.linspace(-1, 1, 8 * 4 * 32 * 32).reshape(8, 4, 32, 32)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

def starve(random):
    fault, unlimited = random.choice(["memory", "files", "closed"]), resource.RLIM_INFINITY
    if fault == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (used + int(2 ** random.uniform(12, 27)), unlimited))
    elif fault == "files":
        opened = len(os.listdir("/proc/self/fd")) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + random.randrange(6), 4096))
    else:
        os.closerange(random.randrange(4), 100)
    return fault

def call():
    try:
        results = [layer(x) for _ in range(3)]
        are_right = all(torch.allclose(y, own(x), atol=1e-5) for y in results)
    except (MemoryError, RuntimeError) as error:
        return repr(error)[:200]
    return "right" if are_right else "wrong"

folder, first, count = sys.argv[1], *map(int, sys.argv[2:])
for seed in range(first, first + count):
    os.environ["MUCUDNN_CACHE"] = f"{folder}/{seed}.sqlite"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 200)
        fault = starve(Random(f"starved {seed}"))
        outcome = call()
        os.write(200, f"{fault} {outcome}".encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        print(seed, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), pipe.read().replace("\\n", " "))
"""
LACKS = "could not create a primitive|t allocate memory|start new thread|ALLOC_FAILED|MemoryError"


def test_a_converted_call_that_lacks_something_is_right_or_a_clear_error(tmp_path: Path) -> None:
    seeds = cases(25)
    result = run(
        sys.executable, "-c", PROGRAM, tmp_path, str(seeds.start), str(len(seeds)),
        OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    for line in result.stdout.splitlines():
        assert re.search(rf"^\d+ 0 (\w+ right|memory .*({LACKS}))", line), (line, result.stderr)
