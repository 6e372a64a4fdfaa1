"""Random programs under the drop-in while one call or allocation below it fails, and the rules for them.

1. No fault ends or hangs the process, damages memory, or changes an input.
2. Until a call fails because of the fault, the program gets what it gets without the drop-in. That call
   returns a status of failed work, not a wrong result.
3. The same program, played again in the same process without a fault, gets all that it gets without the
   drop-in.
4. A fault that the program does not notice leaks no descriptor. This is checked in the modes "plan" and
   "record", which prepare the same algorithms each time.
"""

import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Self

from comparison import compare
from player import Entry
from processes import NATIVE_TESTS, Crash, Mode, play
from programs import SHIM, compile_c, environment, preload
from random_graph import graph_program
from random_legacy import legacy_program
from scripts import Call, Step, Threads
from wrapped_library import build_wrapper

from mucudnn._native import host_library

HERE = Path(__file__).parent
KINDS = ("call", "memory")
EVERY = sys.maxsize  # faults: each call and each allocation of a program fails once
WRITERS = {"legacy": legacy_program, "graph": graph_program}
# ALLOC_FAILED is a name of INTERNAL_ERROR_HOST_ALLOCATION_FAILED.
NOT_INITIALIZED, INTERNAL_ERROR, ALLOC_FAILED = 1001, 4000, 4003


@dataclass(frozen=True)
class Fault:
    """The place of a fault: the number of the call or allocation of one program."""

    client: str
    seed: int
    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.client} program {self.seed}, {self.kind} {self.number} fails"


class FaultyProcess:
    """A process under the drop-in that plays scripts with faults. Closed by `with`."""

    def __init__(self, folder: Path, scripts: Sequence[Sequence[Step]], mode: Mode, cache: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        calls, memory = build_wrapper(folder), folder / "failing_memory.so"
        compile_c("-shared", "-fPIC", HERE / "failing_memory.c", "-o", memory, "-ldl")
        scripts_file, self._traces = folder / "scripts.pickle", folder / "traces.pickle"
        scripts_file.write_bytes(pickle.dumps([list(script) for script in scripts]))
        variables = {
            **mode.variables(Path(cache or "none")),
            "LD_PRELOAD": preload(memory, SHIM),
            "MUCUDNN_CACHE": cache,
            "MUCUDNN_LIBRARY": str(calls),
            "HOST_ENGINE": host_library(),
            "MUCUDNN_LOG": "off",
            "MUCUDNN_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": str(NATIVE_TESTS),
        }
        self._process = subprocess.Popen(
            [sys.executable, HERE / "fault_process.py", calls, memory, scripts_file, self._traces],
            env=environment(**variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def play(self, script: int, kind: str, number: int) -> dict[str, Any] | str:
        """Return the outcome of fault_process.play_twice, or how the process failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{script} {kind} {number}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline().strip()
        outcome: dict[str, Any] = pickle.loads(self._traces.read_bytes()) if line == "played" else {}
        return outcome or line or "the parent of all plays ended"


Programs = Sequence[tuple[str, int, int]]  # the client, the seed, and the number of faults of each


def findings(mode: Mode, programs: Programs, folder: Path, cache: str) -> Iterator[str]:
    """Yield each breach of a rule, with its fault."""
    # Threads call in a different order in each play.
    scripts = [
        [step for step in WRITERS[client](seed) if not isinstance(step, Threads)]
        for client, seed, _ in programs
    ]
    alone = play(scripts, folder / "alone")
    with FaultyProcess(folder, scripts, mode, cache) as process:
        for number, (client, seed, count) in enumerate(programs):
            steps, expected = scripts[number], alone[number]
            clean = process.play(number, "call", 0)
            if isinstance(clean, str) or isinstance(expected, Crash):
                yield f"{client} program {seed} without a fault: {clean}"
                continue
            for fault in _choose(mode, client, seed, count, clean["played"][0][1]):
                outcome = process.play(number, fault.kind, fault.number)
                if isinstance(outcome, str):
                    yield f"{fault}: {outcome}"
                    continue
                if mode.name == "plan" and outcome["played"][0][1][fault.kind] < fault.number:
                    yield f"{fault}: the program does not come to it"
                for text in _broken(steps, expected, clean, outcome, mode):
                    yield f"{fault} ({outcome['failed'] or 'memory'}): {text}"


def _choose(mode: Mode, client: str, seed: int, count: int, most: dict[str, int]) -> Iterator[Fault]:
    """Yield different faults of a program: about half of them in calls if it makes enough."""
    random = Random(f"{mode.name} {client} {seed}")
    for kind in KINDS:
        for number in random.sample(range(1, most[kind] + 1), min((count + 1) // 2, most[kind])):
            yield Fault(client, seed, kind, number)


def _broken(
    steps: Sequence[Step], alone: Sequence[Entry], clean: dict[str, Any], outcome: dict[str, Any], mode: Mode
) -> Iterator[str]:
    (usual, _), _ = clean["played"]
    (faulty, _), (again, _) = outcome["played"]
    differs = [
        number
        for number, (step, expected, actual) in enumerate(zip(steps, usual, faulty, strict=True))
        if isinstance(step, Call) and actual.status not in (0, expected.status)
    ]
    end = differs[0] if differs else len(steps)
    for finding in compare(steps[:end], alone[:end], faulty[:end], mode):
        yield f"before a call fails: {finding}"
    if differs:
        # A fault can keep the drop-in from rescuing a call that fails without it.
        status, plain = faulty[end].status, alone[end].status
        if status not in (NOT_INITIALIZED, INTERNAL_ERROR, ALLOC_FAILED, plain):
            yield f"step {end}: status {status} instead of {plain}"
    for number, (expected, actual) in enumerate(zip(alone[end:], faulty[end:], strict=True), end):
        yield from (f"step {number}: {text}" for text in actual.damage if text not in expected.damage)
    for finding in compare(steps, alone, again, mode):
        yield f"played again: {finding}"
    if mode.name not in ("plan", "record"):
        return
    if not differs and outcome["live"] > clean["live"] and "Destroy" not in outcome["failed"]:
        yield f"{outcome['live']} descriptors stay instead of {clean['live']}"


def spread(count: int, seed: int, each: int) -> list[tuple[str, int, int]]:
    """Return programs that share `count` faults: about `each` for a program of either client."""
    programs = max(1, count // each)
    ends = [count * number // programs for number in range(programs + 1)]
    clients = list(WRITERS)
    return [
        (clients[number % 2], seed + number // 2, after - before)
        for number, (before, after) in enumerate(pairwise(ends))
    ]
