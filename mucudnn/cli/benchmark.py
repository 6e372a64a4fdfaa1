"""`mucudnn benchmark`: measure a network's kernels into the cache without deciding anything."""

import argparse
import shlex

from mucudnn._native import Planner
from mucudnn.cli import options
from mucudnn.cli.devices import measure_on_devices, parse_devices
from mucudnn.cli.terminal import Terminal, opened_cache, show, table
from mucudnn.costs.cache import Cache, default_path
from mucudnn.costs.records import SUCCESS, Listed, Machine
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.candidates import candidates
from mucudnn.measuring.described_device import bundled_devices, open_planner, plan, read_properties
from mucudnn.measuring.engines import open_engine
from mucudnn.measuring.runners import Exhaustive
from mucudnn.output.text import short_names
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.sizes import format_size
from mucudnn.solver import is_tiled

HELP = "measure algorithms at micro-batch sizes into the cache"
DESCRIPTION = "Makes the measurements that the cache lacks, without deciding anything."
EXAMPLES = (
    "mucudnn benchmark alexnet --batch 128",
    "mucudnn benchmark resnet50 --passes all --devices 0,1",
    "mucudnn benchmark resnet50 --dtype bf16 --device-properties h100",
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_kernel_options(parser)
    options.add_budget(parser)
    options.add_remeasure(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--devices",
        type=options.checked(parse_devices),
        metavar="LIST",
        help="measure on these devices of this host at once, such as 0,1; each gets a process of its own",
    )
    where.add_argument(
        "--device-properties",
        metavar="FILE",
        help="without a GPU: ask cuDNN for the workspaces of its engines, but no times, on the device that "
        f"this file of `mucudnn doctor` describes, or on {', '.join(bundled_devices())}",
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, then show every measurement of these kernels in the cache."""
    kernels, policy = options.kernels_of(arguments), options.policy_of(arguments)
    options.obey_remeasure(arguments)
    if arguments.devices:
        made = measure_on_devices(arguments, arguments.devices)
        with Cache.read_only(default_path()) as cache:
            _show(cache, arguments, kernels, policy, made)
        return
    terminal = Terminal()
    if arguments.device_properties is not None:
        _plan(arguments, kernels, policy, terminal)
        return
    engine = open_engine(*options.engine_options(arguments))
    with opened_cache(terminal, needed=True) as cache, options.budget_of(arguments).applied():
        bench = Bench(engine, cache, terminal, Exhaustive())
        benchmark(bench, kernels, policy)
        _show(cache, arguments, kernels, policy, {bench.machine: bench.made.total()})


def _show(
    cache: Cache, arguments: argparse.Namespace, kernels: list[Kernel], policy: str, made: dict[Machine, int]
) -> None:
    rows = table("kernel", ">micro-batch", "algorithm", ">ms", "", ">workspace")
    names = short_names([kernel.label for kernel in kernels])
    for machine in made:
        if len(made) > 1:
            rows.add_row(str(machine), style="bold")
        for name, kernel in zip(names, kernels, strict=True):
            sizes = usable_sizes(policy, kernel)
            label = f"{name} {kernel.pass_}"
            for row in cache.measurements(machine, kernel):
                if row.micro_batch not in sizes or row.status != SUCCESS:
                    continue
                cells = f"{row.time_ms or 0.0:.3f}", "busy" if row.busy_tries else ""
                rows.add_row(label, str(row.micro_batch), row.algorithm, *cells, format_size(row.workspace))
                label = ""
            rows.add_section()
    words = ["mucudnn", "optimize", arguments.network, *options.kernel_flags(arguments)]
    show(
        rows,
        "",
        *(
            f"{new} new measurement{'s' * (new != 1)} on {machine}, kept in {cache.path}"
            for machine, new in made.items()
        ),
        f"Next: {shlex.join(words)}",
    )


def _plan(arguments: argparse.Namespace, kernels: list[Kernel], policy: str, terminal: Terminal) -> None:
    library, _ = options.engine_options(arguments)
    planner, machine = open_planner(library, read_properties(arguments.device_properties))
    with opened_cache(terminal, needed=True) as cache:
        new = plan(planner, machine, cache, kernels, policy, terminal)
        _show_planned(planner, machine, cache, kernels, policy)
        show(
            "",
            f"{new} new enumeration{'s' * (new != 1)} of {machine.device}, {machine.library}, "
            f"kept in {cache.path}",
            "These are engines of the graph API: cuDNN plans its legacy algorithms on a GPU only, and only a",
            "GPU gives times.",
        )


def _show_planned(
    planner: Planner, machine: Machine, cache: Cache, kernels: list[Kernel], policy: str
) -> None:
    rows = table("kernel", ">micro-batch", ">engines", ">least workspace", ">with tensor cores", ">in tiles")
    for name, kernel in zip(short_names([kernel.label for kernel in kernels]), kernels, strict=True):
        sizes = usable_sizes(policy, kernel)
        label = f"{name} {kernel.pass_}"
        for size, listed in candidates(planner, machine, cache, kernel, sizes).items():
            whole = [engine for engine in listed if not is_tiled(engine.algorithm)]
            tiles = [engine for engine in listed if is_tiled(engine.algorithm)]
            least = [
                min((engine.workspace for engine in some), default=None)
                for some in (whole, _on_tensor_cores(whole), _on_tensor_cores(tiles))
            ]
            names = {engine.algorithm.partition(".")[0].partition("_")[0] for engine in listed}
            rows.add_row(label, str(size), str(len(names)), *map(format_size, least))
            label = ""
        rows.add_section()
    show(rows)


def _on_tensor_cores(engines: list[Listed]) -> list[Listed]:
    return [engine for engine in engines if "tensor_op" in engine.notes.split()]
