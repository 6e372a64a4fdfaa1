"""Large samples in tiles, against the fastest undivided algorithm within the same limit.

The layers are those of video decoders, 3-D U-Nets and image networks. Chosen configuration and best
undivided algorithm are run whole and interleaved, with one thread and with two.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from bench.lib.host import host_bench
from bench.lib.record import BUSY, Record
from mucudnn._native import parse_descriptor, second_lowest
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.compare import run_interleaved
from mucudnn.measuring.runners import Race
from mucudnn.plans.decide import Decision, Limits
from mucudnn.plans.optimizer import optimize
from mucudnn.problems.kernels import Kernel

MIB = 2**20
LIMITS: dict[str, int | None] = {"1 MiB": MIB, "8 MiB": 8 * MIB, "64 MiB": 64 * MIB, "no limit": None}
# Images, 3-D U-Nets and video decoders alternate, so that the first few layers hold each kind.
LAYERS = (
    "ic3ih512_oc64_kh3_ph1",
    "ic16id48ih48iw48_oc16_kd3kh3kw3_pd1ph1pw1",
    "ic48id5ih64iw64_oc48_kd3kh3kw3_pd1ph1pw1",
    "ic64ih256_oc64_kh3_ph1",
    "ic32id32ih32iw32_oc32_kd3kh3kw3_pd1ph1pw1",
    "ic32id9ih96iw96_oc32_kd3kh3kw3_pd1ph1pw1",
    "ic128ih128_oc128_kh3_ph1",
    "ic64id16ih32iw32_oc64_kd3kh3kw3_pd1ph1pw1",
    "ic24id4ih128iw128_oc24_kd3kh3kw3_pd1ph1pw1",
    "ic256ih64_oc256_kh3_ph1",
    "ic32ih192_oc32_kh3_ph1",
    "ic16ih384_oc16_kh5_ph2",
)
ROUNDS = 7
RESUMES = True


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--layers", type=int, default=len(LAYERS), help="measure the first layers alone")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Compare the layers at both mini-batches and all limits."""
    for threads in (1, 2):
        for mini_batch in (1, 4):
            for layer in LAYERS[: options.layers]:
                kernel = Kernel(parse_descriptor(f"mb{mini_batch}_{layer}")[0], "forward")
                names = {text: f"mb{mini_batch}_{layer}, {text}, {threads} threads" for text in LIMITS}
                with host_bench(Race(), threads) as bench:
                    for text, name in names.items():
                        if name not in options.done:
                            yield _compare(bench, kernel, LIMITS[text], name)


def _compare(bench: Bench, kernel: Kernel, limit: int | None, name: str) -> Record:
    (decision,) = optimize(bench, [kernel], "power_of_two", Limits(workspace=limit)).decisions
    speedup = None if decision.is_busy else _speedup(bench, decision)
    details = {
        "chosen": str(decision.best),
        "undivided": str(decision.undivided),
        "workspace_mib": round(decision.best.workspace / MIB, 2),
        **({"why": BUSY} if speedup is None else {}),
    }
    return Record("tiles", name, "speedup over undivided", speedup, "ratio", details)


def _speedup(bench: Bench, decision: Decision) -> float | None:
    """Return the speedup of whole runs; None if other programs disturbed too many."""
    if decision.undivided is None or decision.best == decision.undivided:
        return 1.0
    ran = run_interleaved(bench.engine, decision.kernel, (decision.best, decision.undivided), ROUNDS)
    if ran.is_busy:
        return None
    best_ms, undivided_ms = map(second_lowest, ran.times_ms)
    return undivided_ms / best_ms
