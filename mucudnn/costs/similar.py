"""The measurements of similar kernels, which say something about a kernel that was not measured yet."""

from mucudnn._native import parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import Machine, Measurement
from mucudnn.costs.remeasuring import remeasuring_since
from mucudnn.costs.schema import MEASUREMENT, record_of
from mucudnn.problems.kernels import Kernel


def find_similar(
    cache: Cache, machine: Machine, kernel: Kernel, most: int
) -> list[tuple[Kernel, Measurement]]:
    """Return up to `most` measured times of similar kernels, the kernel itself at all sizes among them.

    Similar kernels have the same pass, types, layout and taps, and are grouped if this one is. Those with the
    nearest channels and image sizes come first. Disturbed times on several threads are omitted, because they
    may be far too long.
    """
    problem = kernel.problem
    same = {name: getattr(problem, name) for name in ("data_type", "layout", "math")}
    same |= {"kh": problem.kernel[-2], "kw": problem.kernel[-1], "pass": kernel.pass_}
    sizes = {"ic": problem.in_channels, "oc": problem.out_channels}
    sizes |= {"ih": problem.input[-2], "iw": problem.input[-1]}
    equal = "".join(f' AND "{name}" = ?' for name in same)
    distance = " + ".join(f"abs({name} - ?)" for name in sizes)
    rows = cache.select(
        MEASUREMENT,
        "WHERE device = ? AND library = ? AND threads = ? AND time_ms NOTNULL AND measured_at >= ? "
        f"AND (busy_tries = 0 OR threads = 1) AND (g > 1) = ?{equal} ORDER BY {distance} LIMIT ?",
        (
            *machine.identity, remeasuring_since() or "", problem.groups > 1, *same.values(), *sizes.values(),
            most,
        ),
    )  # fmt: skip
    return [
        (Kernel(parse_descriptor(row["problem"])[0], row["pass"]), record_of(Measurement, row))
        for row in rows
    ]
