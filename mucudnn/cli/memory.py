"""`mucudnn memory`: plan a training step within a memory budget."""

import argparse
import math
from pathlib import Path

from mucudnn.cli import options, outputs
from mucudnn.cli.memory_fit import network_of, show_fit
from mucudnn.cli.memory_table import show_plan
from mucudnn.cli.terminal import Terminal, opened_cache, show_json
from mucudnn.errors import UsageError
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.budget import parse_budget
from mucudnn.measuring.engines import open_engine
from mucudnn.measuring.modelled_device import DEVICES, ModelledDevice, find_device
from mucudnn.measuring.runners import Exhaustive
from mucudnn.plans.memory.costs import measure_costs, model_costs
from mucudnn.plans.memory.fit import OPTIMIZERS
from mucudnn.plans.memory.json_form import memory_json
from mucudnn.plans.memory.planning import POLICIES, MemoryOptions, plan_budgets, plan_network
from mucudnn.plans.memory.training_step import Costs
from mucudnn.problems.network import Network
from mucudnn.problems.sources import TRAINABLE
from mucudnn.promises import FIXED, Promise
from mucudnn.report import check_installed
from mucudnn.sizes import parse_limit, parse_size

HELP = "plan a training step within a memory budget"
DESCRIPTION = (
    "Decides for each saved tensor of a training step whether it stays in memory, moves to host memory, or "
    "is computed again, and for each convolution how it is divided, so that the step is as fast as the "
    "memory allows. Costs are modelled by the roofline of a device, or the convolutions are measured here."
)

EXAMPLES = (
    "mucudnn memory resnet50 --device h200 --optimizer adamw",
    "mucudnn memory resnet50 --batch 256 --devices rtx4090,l40s,h100,h200",
    "mucudnn memory vgg16 --batch 256 --memory 12GiB --device titanx",
    "mucudnn memory resnet50 --memory 4GiB --output net.memory --page memory.html",
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("network", metavar="NETWORK|FILE", help=f"{', '.join(TRAINABLE)}; or a network file")
    parser.add_argument(
        "--memory", type=options.checked(parse_size), metavar="SIZE",
        help="memory for all that the training step allocates, such as 12GiB; without it, the command says "
        "which mini-batches fit the device",
    )  # fmt: skip
    parser.add_argument(
        "--policy", choices=POLICIES, default="joint",
        help="joint: all decided together; or a policy of vDNN, which offloads none, all, the inputs of "
        "convolutions, or tries them in an order (default: joint)",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=(*DEVICES, "measured"), default="h200",
        help="device that the costs are modelled for; measured: convolutions are measured on this machine, "
        "or with --choice fixed modelled for it, and the rest is modelled for the h200 (default: h200)",
    )  # fmt: skip
    parser.add_argument(
        "--devices", type=options.checked(_parse_devices), metavar="LIST",
        help="without --memory: say which of these devices hold the mini-batch, such as l40s,a100,h200",
    )  # fmt: skip
    parser.add_argument(
        "--optimizer", choices=tuple(OPTIMIZERS),
        help="without --memory: the optimizer whose state is counted (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--bandwidth", type=options.checked(options.parse_bandwidth), metavar="SIZE",
        help="bytes per second of each direction between device and host, such as 25GiB "
        "(default: the device's)",
    )  # fmt: skip
    parser.add_argument(
        "--workspace", type=options.checked(parse_limit), metavar="SIZE",
        help="the most workspace of each convolution (default: none, no limit but the memory)",
    )  # fmt: skip
    parser.add_argument(
        "--host-memory", type=options.checked(parse_size), metavar="SIZE",
        help="the most host memory for offloaded tensors (default: no limit)",
    )  # fmt: skip
    parser.add_argument("--no-recompute", action="store_true", help="compute nothing again")
    parser.add_argument("--no-offload", action="store_true", help="offload nothing (joint only)")
    parser.add_argument("--no-divide", action="store_true", help="divide no mini-batch")
    parser.add_argument("--exact", action="store_true", help="let the solver search until it has the optimum")
    parser.add_argument(
        "--seconds", type=options.checked(parse_budget), default=math.inf, metavar="TIME",
        help="the time that planning may take, such as 5s; the plan then depends on the machine's speed "
        "(default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=options.checked(options.parse_batch), metavar="N",
        help="mini-batch size of a bundled network (default: 64)",
    )  # fmt: skip
    parser.add_argument("--dtype", choices=("f32", "f16", "bf16"), help="data type (default: f32)")
    parser.add_argument("--layout", choices=("nchw", "nhwc"), help="order of the axes (default: nchw)")
    options.add_numerics(parser, "without FFT, Winograd and TF32")
    options.add_batch_invariant(parser)
    options.add_choice(parser)
    parser.add_argument(
        "--page", type=options.checked(options.parse_output), metavar="HTML",
        help="write a page that shows memory and tensors against the time, and plans for other budgets",
    )  # fmt: skip
    outputs.add_output(parser, "PLAN", "write the plan to this file")
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Plan, write the files, and print the result as a table or as JSON."""
    if arguments.memory is None:
        show_fit(arguments)
        return
    for flag in ("devices", "optimizer"):
        if getattr(arguments, flag):
            raise UsageError(f"--{flag} asks which mini-batches fit: give it without --memory")
    outputs.check(arguments.output, outputs.MEMORY_PLAN, force=arguments.force)
    if arguments.page:
        check_installed()
        outputs.check(arguments.page, outputs.PAGE, force=arguments.force)
    promise = options.promise_in(arguments)
    if promise.choice == FIXED and arguments.seconds != math.inf:
        raise UsageError("--seconds lets a clock end the search, which --choice fixed excludes: leave it out")
    network = network_of(arguments, arguments.batch)
    limits = MemoryOptions(
        memory=arguments.memory,
        policy=arguments.policy,
        workspace=arguments.workspace,
        recompute=not arguments.no_recompute,
        offload=not arguments.no_offload,
        host_memory=arguments.host_memory,
        exact=arguments.exact,
        seconds=arguments.seconds,
        promise=promise,
    )
    name = arguments.network if arguments.network in TRAINABLE else Path(arguments.network).stem
    costs, terminal = _find_costs(arguments, network, promise), Terminal()
    plan = plan_network(network, costs, limits, name=name, listener=terminal)
    if arguments.output:
        plan.write(arguments.output)
    if arguments.page:
        from mucudnn.report.memory_page import write_page

        budgets = plan_budgets(network, costs, limits, listener=terminal)
        write_page(plan, arguments.page, budgets=budgets)
    if arguments.json:
        show_json(memory_json(plan))
    else:
        show_plan(plan)


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
        bench = Bench(open_engine("auto", 1), cache, terminal, Exhaustive())
        policy = "power_of_two" if divide else "undivided"
        link = device.link_of(arguments.bandwidth)
        source = "modelled" if arguments.bandwidth is None else "given"
        return measure_costs(
            network, bench, device, link, policy=policy, link_source=source, promise=promise,
            limit=arguments.workspace,
        )  # fmt: skip


def _parse_devices(text: str) -> list[ModelledDevice]:
    return [find_device(name.strip()) for name in text.split(",")]
