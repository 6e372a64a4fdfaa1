"""`mucudnn memory`: plan a training step within a memory budget, or say which mini-batches fit a device."""

import argparse
from functools import partial
from pathlib import Path

from mucudnn.cli import networks, options, outputs
from mucudnn.cli.memory_table import Fitting, ShownMemory
from mucudnn.cli.options import add_arguments
from mucudnn.cli.terminal import Terminal, opened_cache
from mucudnn.errors import UsageError
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.engines import open_engine
from mucudnn.measuring.modelled_device import DEVICES, find_device
from mucudnn.measuring.runners import Exhaustive
from mucudnn.output.answers import Answer
from mucudnn.plans.memory.batches import NetworkFits
from mucudnn.plans.memory.costs import measure_costs, model_costs
from mucudnn.plans.memory.fit import OPTIMIZERS
from mucudnn.plans.memory.planning import POLICIES, MemoryOptions, plan_network
from mucudnn.plans.memory.training_step import Costs
from mucudnn.problems.network import Network
from mucudnn.problems.sources import Flags
from mucudnn.promises import Promise
from mucudnn.sizes import parse_limit, parse_size

HELP = "plan a training step within a memory budget"
DESCRIPTION = (
    "Decides for each saved tensor of a training step whether it stays in memory, moves to host memory, or "
    "is computed again, and for each convolution how it is divided, so that the step is as fast as the "
    "memory allows. Costs are modelled by the roofline of a device, or the convolutions are measured here."
)
EXAMPLES = (
    "mucudnn memory resnet50 --device h200 --optimizer adamw",
    "mucudnn memory resnet50 --batch 256 --list-devices",
    "mucudnn memory vgg16 --batch 256 --memory 12GiB --device titanx",
    "mucudnn memory resnet50 --memory 4GiB --output net.memory --page memory.html",
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(device="h200")
    add_arguments(
        parser,
        *networks.ARGUMENTS,
        (
            "--device", (*DEVICES, "measured"),
            "device that the costs are modelled for; measured: convolutions are measured on this machine, or "
            "with --choice fixed modelled for it, and the rest is modelled for the h200 (default: h200)",
        ),
        ("--dtype", ("f32", "f16", "bf16"), "data type (default: f32)"),
        options.JSON,
    )  # fmt: skip
    add_arguments(
        parser.add_argument_group("without --memory"),
        ("--list-devices", None, "list the modelled devices, and say which of them hold the mini-batch"),
        ("--optimizer", tuple(OPTIMIZERS), "the optimizer whose state is counted (default: none)"),
        ("--inference", None, "count an inference (default: a training step)"),
    )
    add_arguments(
        parser.add_argument_group("for a plan"),
        (
            "--memory SIZE", parse_size,
            "memory for all that the training step allocates, such as 12GiB; without it, the command says "
            "which mini-batches fit the device",
        ),
        (
            "--workspace SIZE", parse_limit,
            "the most workspace of each convolution (default: none, no limit but the memory)",
        ),
        (
            "--bandwidth SIZE", options.parse_bandwidth,
            "bytes per second of each direction between device and host, such as 25GiB (default: the "
            "device's)",
        ),
        ("--no-recompute", None, "compute nothing again"),
        ("--no-offload", None, "offload nothing"),
        ("--no-divide", None, "divide no mini-batch"),
        *options.PROMISE,
        (
            "--page HTML", outputs.PAGE.parse,
            "write a page that shows memory against the time",
        ),
        ("--output PLAN", outputs.MEMORY_PLAN.parse, "write the plan to this file"),
    )  # fmt: skip
    add_arguments(
        parser.add_argument_group("advanced"),
        (
            "--policy", POLICIES,
            "joint: all decided together; or a policy of vDNN, which offloads none, all, the inputs of "
            "convolutions, or tries them in an order (default: joint)",
        ),
        (
            "--exact", None,
            "search for the optimum without a time limit; Ctrl-C ends it without a plan (default: a short "
            "search)",
        ),
    )  # fmt: skip


_OF_PLANS = (
    "policy", "workspace", "bandwidth", "exact", "batch_invariant", "choice", "no_recompute",
    "no_offload", "no_divide", "output", "page",
)  # fmt: skip


def run(arguments: argparse.Namespace) -> Answer:
    """Plan, and write the files; without a memory, find what fits."""
    if arguments.memory is None:
        return _fit(arguments)
    for flag in ("list_devices", "optimizer", "inference"):
        if getattr(arguments, flag):
            raise UsageError(f"--{flag.replace('_', '-')} asks what fits: give it without --memory")
    promise = options.promise_in(arguments)
    network = _read_network(arguments, arguments.batch)
    limits = MemoryOptions(
        memory=arguments.memory,
        policy=arguments.policy or "joint",
        workspace=arguments.workspace,
        recompute=not arguments.no_recompute,
        offload=not arguments.no_offload,
        exact=bool(arguments.exact),
        promise=promise,
    )
    name = Path(arguments.network).stem
    costs, terminal = _find_costs(arguments, network, promise), Terminal()
    plan = plan_network(network, costs, limits, name=name, listener=terminal)
    if arguments.output:
        plan.write(arguments.output)
    if arguments.page:
        from mucudnn.report.memory_page import write_page

        write_page(plan, arguments.page)
    return ShownMemory(plan)


def _find_costs(arguments: argparse.Namespace, network: Network, promise: Promise) -> Costs:
    divide = not arguments.no_divide
    if promise.batch_invariant and not divide:
        raise UsageError("batch_invariant may need slices of one sample: leave --no-divide out")
    if arguments.device != "measured":
        if promise.batch_invariant:
            raise UsageError(
                f"batch_invariant is tried on the device, and '{arguments.device}' is only modelled: give "
                "--device measured"
            )
        device = find_device(arguments.device)
        return model_costs(network, device, bandwidth=arguments.bandwidth, divide=divide)
    device, terminal = find_device("h200"), Terminal()
    with opened_cache(terminal, needed=False) as cache:
        bench = Bench(open_engine("auto", options.default_threads()), cache, terminal, Exhaustive())
        policy = "power_of_two" if divide else "undivided"
        link = device.link_of(arguments.bandwidth)
        source = "modelled" if arguments.bandwidth is None else "given"
        return measure_costs(
            network, bench, device, link, policy=policy, link_source=source, promise=promise,
            limit=arguments.workspace,
        )  # fmt: skip


def _fit(arguments: argparse.Namespace) -> Answer:
    for flag in _OF_PLANS:
        if getattr(arguments, flag) is not None:
            raise UsageError(
                f"--{flag.replace('_', '-')} is for a plan: give --memory, such as --memory 12GiB"
            )
    if arguments.device == "measured":
        raise UsageError("without --memory all costs are modelled: give --device a modelled device")
    name, optimizer, batch = arguments.network, arguments.optimizer, arguments.batch
    if arguments.inference and optimizer:
        raise UsageError("--optimizer is for a training step: leave it out with --inference")

    def fits_on(device: str) -> NetworkFits:
        read = partial(_read_network, arguments)
        return NetworkFits(read, find_device(device), optimizer, Terminal())

    if arguments.list_devices:
        return Fitting(name, optimizer, [fits_on(device).find_row(batch) for device in DEVICES])
    fits = fits_on(arguments.device)
    if Path(name).is_file() and not name.endswith(".onnx"):
        return Fitting(name, optimizer, [fits.find_row(None)])
    most, planned, rows = fits.find_batches(batch)
    return Fitting(name, optimizer, rows, most, planned)


def _read_network(arguments: argparse.Namespace, batch: int | None) -> Network:
    flags = Flags(batch, arguments.dtype, arguments.layout, options.strict_math(arguments))
    network = networks.read_step(arguments, flags)
    return network.inference() if arguments.inference else network
