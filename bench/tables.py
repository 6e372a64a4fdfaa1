"""`python -m bench.tables`: make the tables of `bench/README.md` from the records in `bench/results/`."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from pathlib import Path

from bench import whole_table
from bench.channel_rows import HEAD as CHANNELS_HEAD
from bench.channel_rows import summarize
from bench.gpu.questions import NOT_MEASURED, latest, questions
from bench.gpu.setting import HOST
from bench.gpu.summary import table
from bench.record import RESULTS, Machine, Record, by_machine, machine_name, read
from bench.roofline import WORST, explanations

README = Path(__file__).with_name("README.md")
Records = list[Record]
# The metrics of real training steps under memory plans: the measured peak relative to three others.
PEAKS = ("measured peak over the plan's", "over the limit", "over stock's peak")


def refresh(text: str, results: Path) -> str:
    """Return the README's text with new tables between its marks (`<!-- cpu: -->` to `<!-- end cpu -->`).

    Marks that a text lacks are left out.
    """
    makers = {
        "cpu": cpu_tables,
        "memory": memory_table,
        "channels": channels_tables,
        "whole": whole_tables,
        "gpu": gpu_tables,
    }
    for name, make in makers.items():
        if f"<!-- {name}: " not in text:
            continue
        start, end = (text.index(mark) for mark in (f"<!-- {name}: ", f"<!-- end {name} -->"))
        text = text[: text.index("\n", start) + 1] + make(results) + text[end:]
    return text


def cpu_tables(results: Path) -> str:
    """Return the text of the CPU tables, one for each command and machine.

    What only other machines measured is left out.
    """
    lines = []
    for command, file, rows in CPU:
        machines = by_machine(read(results / file)) or [[]]
        answers = [[answer([record for _, record in found]) for _, _, answer in rows] for found in machines]
        for found, own in zip(machines, answers, strict=True):
            figures = [
                (question, aim, figure or NOT_MEASURED)
                for (question, aim, _), figure, others in zip(
                    rows, own, zip(*answers, strict=True), strict=True
                )
                if figure or not any(others)
            ]
            lines += [f"`{command}`{_where(found)}", "", *table(("question", "aim", "figure"), figures), ""]
    return "\n".join(lines)


def _where(found: list[tuple[Machine, Record]]) -> str:
    if not found:
        return ""
    machine = found[0][0]
    # The host engine's device begins with the processor and its vectors, which the name already tells.
    device = machine.get("device", "").removeprefix(f"{machine.get('processor')}, {machine.get('vectors')}, ")
    where = machine_name(machine), device, machine.get("library", "modelled costs")
    return f", {str(machine['date'])[:10]}, {', '.join(filter(None, where))}"


def memory_table(results: Path) -> str:
    """Return a table for each machine of real training steps under memory plans.

    A row is a network and a variant.
    """
    return "\n".join(
        _steps_table(found) for found in by_machine(read(results / "memory_steps.jsonl")) or [[]]
    )


def _steps_table(found: list[tuple[Machine, Record]]) -> str:
    values: dict[str, dict[str, float | None]] = {}
    for _, record in found:
        values.setdefault(record.case, {})[record.metric] = record.value
    rows = [
        (*case.rsplit(", ", 1), *(_shown(metrics.get(one)) for one in PEAKS))
        for case, metrics in sorted(values.items())
    ]
    head = ("network", "variant", *PEAKS)
    command = (
        "MEMORY_SUITE=all MEMORY_FIGURES=bench/results/memory_steps.jsonl pytest -m gpu tests/gpu/memory"
    )
    empty = [(NOT_MEASURED,) * len(head)]
    return "\n".join([f"`{command}`{_where(found)}", "", *table(head, rows or empty), ""])


def _shown(value: float | None) -> str:
    return NOT_MEASURED if value is None else _short(value)


def channels_tables(results: Path) -> str:
    """Return the tables of channels for each machine: a row for each limit and pass."""
    lines = []
    for found in by_machine(read(results / "rows" / "channels.jsonl")) or [[]]:
        rows = summarize([record for _, record in found]) or [(NOT_MEASURED,) * len(CHANNELS_HEAD)]
        lines += [f"`python -m bench.channels`{_where(found)}", "", *table(CHANNELS_HEAD, rows), ""]
    return "\n".join(lines)


def whole_tables(results: Path) -> str:
    """Return the figures of whole networks on all machines together, and the tables of each machine."""
    lines = []
    machines = by_machine(read(results / "whole_networks.jsonl"))
    if len(machines) > 1:
        lines += [whole_table.together([[record for _, record in found] for found in machines]), ""]
    for found in machines or [[]]:
        text = whole_table.text(record for _, record in found)
        lines += [f"`python -m bench.whole_networks`{_where(found)}", "", text]
    return "\n".join(lines)


def gpu_tables(results: Path) -> str:
    """Return the text of the GPU tables: one for each GPU, or one without figures if there is no GPU."""
    lines, head = [], ("question", "aim", "figure")
    for folder in sorted(path.parent for path in results.glob("*/gpu.jsonl")):
        found = read(folder / "gpu.jsonl")
        if any(machine["engine"] != HOST.engine for machine, _ in found):  # otherwise it was a dry run
            records = latest(record for _, record in found)
            dates = sorted({machine["date"][:10] for machine, _ in found})
            when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
            title = f"[{folder.name}](results/{folder.name}/summary.md), {when}"
            lines += [title, "", *table(head, questions(records)), ""]
    return "\n".join(lines or [*table(head, questions({})), ""])


def _values(records: Records, bench: str, metric: str = "", case: str = "") -> list[float]:
    """Return the values of a bench's records whose metric and case contain these texts."""
    found = [r for r in records if r.bench == bench and metric in r.metric and case in r.case]
    return [record.value for record in found if record.value is not None]


def _figure(
    bench: str, metric: str = "", case: str = "", unit: str = "", *, form: str = "range", digits: int = 3
) -> Callable[[Records], str]:
    """Make a function that shows a value, or the least and the most of several.

    With the form `mean` the geometric mean comes first, and the number of values last.
    """

    def answer(records: Records) -> str:
        values = _values(records, bench, metric, case)
        if not values:
            return ""
        least, most = (_short(value, digits) for value in (min(values), max(values)))
        text = least if least == most else f"{least} to {most}"
        if form == "mean":
            text = f"{_short(statistics.geometric_mean(values))}, {text}, of {len(values)}"
        return f"{text} {unit}".strip()

    return answer


def _by_case(
    bench: str, metric: str, unit: str, cases: str = ".*", *, digits: int = 3
) -> Callable[[Records], str]:
    """Make a function that shows each case that the pattern `cases` matches, with its value."""

    def answer(records: Records) -> str:
        found = [
            r for r in records if r.bench == bench and metric in r.metric and re.fullmatch(cases, r.case)
        ]
        wanted = {r.case: r.value for r in found if r.value is not None}
        return "; ".join(f"{case}: {_short(value, digits)} {unit}".strip() for case, value in wanted.items())

    return answer


def _recognised(bench: str) -> Callable[[Records], str]:
    """Make a function that shows the share of all calls, the lowest share, and the reasons of the rest."""

    def answer(records: Records) -> str:
        found = [record for record in records if record.bench == bench and record.value is not None]
        if not found:
            return ""
        total, least = found[-1], min(found[:-1], key=lambda record: record.value or 0)
        reasons = {name: count for name, count in total.details.items() if name != "calls"}
        rest = "".join(f"; {count} calls: {name}" for name, count in reasons.items())
        shares = [_short(record.value or 0) for record in (total, least)]
        name, network = total.case.partition(": ")[0], least.case.partition(": ")[2]
        return (
            f"{name}: {shares[0]} % of {total.details['calls']} calls; least, {network}: {shares[1]} %{rest}"
        )

    return answer


def _explained(records: Records) -> str:
    """Return the explanations of the rows above 1.5, one after the other."""
    found = "; ".join(explanations(records))
    return found or ("" if _above("kernels", WORST)(records) != "none" else "no row is above")


def _above(bench: str, bound: float) -> Callable[[Records], str]:
    """Make a function that shows each case of a bench whose value is above a bound, the largest first."""

    def answer(records: Records) -> str:
        found = [(r.value, r.case) for r in records if r.bench == bench and r.value is not None]
        above = [f"{case}: {_short(value)}" for value, case in sorted(found, reverse=True) if value > bound]
        return "; ".join(above) or ("none" if found else "")

    return answer


def _short(value: float, digits: int = 3) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.{digits}g}"


def _cliffs(records: Records) -> str:
    found = [r for r in records if r.bench == "sweep" and "cliffs" in r.metric]
    return "; ".join(f"{r.case}: {r.details['at'] or 'none'}" for r in found)


_SPEEDUP = "speedup at 64 MiB"
_STEP = "speedup over stock PyTorch"
_PEAK = "peak memory of stock"
Row = tuple[str, str, Callable[[Records], str]]
CPU: tuple[tuple[str, str, tuple[Row, ...]], ...] = (
    ("python -m bench.cpu", "cpu.jsonl", (
        ("speedup by division within 64 MiB, N=64, forward: geometric mean, worst to best",
         "above the paper's 1.63", _figure("division", _SPEEDUP, " forward", form="mean")),
        ("the same, backward data", "", _figure("division", _SPEEDUP, " backward_data", form="mean")),
        ("the same, backward filter", "", _figure("division", _SPEEDUP, " backward_filter", form="mean")),
        ("the same, two 3×3 and two 5×5 kernels of DeepBench, forward, N=32", "",
         _figure("deepbench", _SPEEDUP, form="mean")),
        ("time of all forward kernels together within a limit", "", _by_case("limits", "sum", "ms")),
        ("time of WR, with equal shares of a total, relative to that of WD", "at least 1",
         _by_case("totals", "WR", "")),
        ("time of WD with identical kernels together, relative to apart: ResNet-50, three passes, N=16",
         "at least 1", _by_case("shares", "apart", "")),
        ("speed of implicit GEMM, the usual baseline, relative to OpenBLAS's sgemm", "about 1",
         _figure("efficiency")),
        ("speedup of all forward kernels together over PyTorch, one thread", "above 1",
         _figure("torch", case="sum")),
        ("speedup of one sample in tiles over the fastest whole algorithm, both within 64 MiB", "above 1",
         _figure("tiles", "within the limit", form="mean")),
        ("time of these tiles relative to the fastest whole algorithm without a limit", "at most 1.1",
         _figure("tiles", "unlimited", form="mean")),
        ("mini-batch sizes from 1 to 24 at which the time jumps, within 64 MiB", "", _cliffs),
        ("speedup by division at the size with the largest prediction", "above 1", _figure("sweep", "gain")),
        ("error of 2, 4 and 8 slices relative to the undivided error, three types", "at most 2",
         _figure("equality", form="mean")),
        ("different results of one kernel in three processes", "1", _figure("determinism")),
        ("time of a desirable set, N=1024, eight algorithms at all 1024 sizes", "",
         _figure("solver", case="desirable_set, N=1024, all", unit="ms")),
        ("time of WD for 159 kernels with 562 configurations (the paper: 5.46 ms)", "",
         _figure("solver", case="159 kernels", unit="ms")),
        ("time of WD for 150 kernels with 200 configurations each", "",
         _figure("solver", case="150 kernels", unit="ms")),
        ("time of `mucudnn optimize` for ResNet-50, three passes, with a warm cache", "at most 2000 ms",
         _figure("cache", "time", "optimize", "ms")),
        ("time to open a cache of 100,000 rows and read one problem", "at most 20 ms",
         _figure("cache", "time", "open", "ms")),
        ("rate of eight processes that write to one cache", "", _figure("cache", "rate", unit="rows/s")),
        ("drop-in: cost of a call through a trampoline", "at most 5 ns",
         _figure("shim", case="trampoline", unit="ns")),
        ("cost of a program's start", "at most 0.2 ms", _figure("shim", case="never calls", unit="ms")),
        ("cost of a hooked call, mode off", "at most 50 ns", _figure("hooks", case="mode off", unit="ns")),
        ("cost of a hooked call, mode online, left undivided", "",
         _figure("hooks", case="online", unit="ns")),
        ("cost of a slice, compared with the program's own loop", "at most 1000 ns",
         _figure("hooks", "slice", unit="ns")),
        ("graph API: cost of planning a kernel that is new to the process, warm journal", "at most 100 µs",
         _figure("graph", "planning", "meets", "µs")),
        ("the same, a kernel that the process knows", "at most 100 µs",
         _figure("graph", "planning", "is known", "µs")),
        ("the same, the first kernel of a process, which reads a journal of 64 kernels", "",
         _figure("graph", "planning", "reads the journal", "µs")),
        ("cost of an execution, left undivided", "at most 1000 ns",
         _figure("graph", case="undivided", unit="ns")),
        ("cost of a slice, compared with the program's own loop over its plans", "at most 1000 ns",
         _figure("graph", "slice", unit="ns")),
        ("memory of an execution plan that the drop-in makes", "",
         _figure("graph", "memory", "made for one", "bytes")),
    )),
    ("python -m bench.frameworks", "frameworks.jsonl", (
        ("time of a call of the array functions beyond the engine's own", "",
         _figure("overhead", case="convolution_forward", unit="µs")),
        ("the same, `mucudnn.torch.conv2d` without gradient", "at most 20 µs",
         _figure("overhead", case="without gradient", unit="µs")),
        ("the same, `mucudnn.torch.conv2d` with gradient", "",
         _figure("overhead", case="with gradient", unit="µs")),
        ("speedup of a training step of ResNet-18 over stock PyTorch, N=32, one thread", "above 1",
         _by_case("training", _STEP, "", r"resnet18 within \w+")),
        ("its peak memory relative to stock PyTorch's", "at most 1",
         _by_case("training", _PEAK, "", r"resnet18 within \w+")),
        ("speedup of a training step of a 3-D U-Net over stock PyTorch", "above 1",
         _by_case("training", _STEP, "", r"unet3d within \w+")),
        ("its peak memory relative to stock PyTorch's", "at most 1",
         _by_case("training", _PEAK, "", r"unet3d within \w+")),
        ("speedup of one volume through a 3-D U-Net over stock PyTorch", "above 1",
         _by_case("training", _STEP, "", r"volume within \w+")),
        ("speedup of a training step on all cores over stock PyTorch", "above 1",
         _by_case("training", _STEP, "", ".* threads")),
    )),
    ("python -m bench.kernels", "kernels.jsonl", (
        ("time of our fastest algorithm over stock PyTorch's, 36 kernels, one thread: geometric mean, best "
         "to worst", "0.75", _figure("kernels", case="1 thread", form="mean")),
        ("the same, forward", "", _figure("kernels", case="forward, 1 thread", form="mean")),
        ("the same, backward data", "", _figure("kernels", case="backward_data, 1 thread", form="mean")),
        ("the same, backward filter", "", _figure("kernels", case="backward_filter, 1 thread", form="mean")),
        ("the same on two threads, all passes", "0.85", _figure("kernels", case="2 threads", form="mean")),
        ("the same, forward", "", _figure("kernels", case="forward, 2 threads", form="mean")),
        ("the same, backward data", "", _figure("kernels", case="backward_data, 2 threads", form="mean")),
        ("the same, backward filter", "", _figure("kernels", case="backward_filter, 2 threads", form="mean")),
        ("rows above 1.5", "none", _above("kernels", WORST)),
        ("their times, and the least that their arithmetic and their memory need", "", _explained),
    )),
    ("python -m bench.race", "race.jsonl", (
        ("measuring in a race within 64 MiB, in stock PyTorch's times of all convolutions", "at most 4",
         _by_case("race", "race: measuring", "", ".*, 64 MiB")),
        ("the same, measuring everything", "",
         _by_case("race", "everything: measuring", "", ".*, 64 MiB")),
        ("time of the race's choices over the best of all recorded times, within 64 MiB", "at most 1.02",
         _by_case("race", "race: choice", "", ".*, 64 MiB")),
        ("the same, without a limit", "", _by_case("race", "race: choice", "", ".*, none")),
        ("measurements of the drop-in's race within 64 MiB, graph API, in those of everything", "",
         _by_case("race", "drop-in, graph: measurements", "", ".*, 64 MiB")),
        ("the same, legacy API", "", _by_case("race", "drop-in, legacy: measurements", "", ".*, 64 MiB")),
        ("time of the drop-in's choices over the best, graph API", "at most 1.02",
         _by_case("race", "drop-in, graph: choice", "", ".*, 64 MiB")),
        ("the same, legacy API", "at most 1.02",
         _by_case("race", "drop-in, legacy: choice", "", ".*, 64 MiB")),
    )),
    ("python -m bench.peak", "peak.jsonl", (
        ("memory that a call takes beyond its arrays", "the limit", _by_case("peak", "peak", "MiB")),
    )),
    ("python -m bench.memory", "memory.jsonl", (
        ("weights and features twice (vDNN's paper: 1.1 to 28 GB)", "1.15, 2.17, 5.39, 8.3, 15.6, 30.1 GiB",
         _by_case("memory", "baseline", "GiB")),
        ("mean over time of features and their gradients by all(m), relative to features twice",
         "at most -0.7; the paper: -0.89, -0.91, -0.95", _by_case("memory", "average", "")),
        ("simulated time of VGG-16, N=256, within 12 GiB of a Titan X, relative to no limit: joint",
         "at most 1.01", _figure("memory", "time over", "12 GiB, joint", digits=4)),
        ("the same, without division", "", _figure("memory", "time over", "12 GiB, without division")),
        ("the same, without recompute", "",
         _figure("memory", "time over", "12 GiB, without recompute", digits=4)),
        ("the same, without offload", "",
         _figure("memory", "time over", "12 GiB, without offload", digits=4)),
        ("the same, vDNN's dynamic policy (the paper: 1.22)", "1.18 to 1.23",
         _figure("memory", "time over", "12 GiB, dynamic")),
        ("the same, vDNN's all(m)", "", _figure("memory", "time over", "all(m)")),
        ("speedup of joint over dynamic", "at least 1.15", _figure("memory", "speedup of joint", "12 GiB")),
        ("below vDNN's least memory, joint", "runs down to 10.4 GiB: 10.25 GiB without the mini-batch",
         _by_case("memory", "time over", "", ".*, joint", digits=4)),
        ("least memory, with the mini-batch of 0.14 GiB", "", _by_case("memory", "least memory", "GiB")),
        ("time of planning ResNet-50, N=256", "at most 10 s",
         _by_case("memory", "planning", "s", "resnet50.*")),
        ("time of planning VGG-16, N=256", "at most 1 s", _by_case("memory", "planning", "s", "vgg16.*")),
        ("waiting for copies on a GPU, against the prediction", "", _figure("memory", "exposed")),
        ("peak memory on a GPU, against the plan", "", _figure("memory", "peak against")),
        ("time on a GPU against `save_on_cpu`", "", _figure("memory", "time against")),
    )),
    ("python -m bench.picture --measure", "picture.jsonl", (
        ("time of AlexNet forward, run whole within a limit: best undivided algorithms", "",
         _by_case("picture", "undivided", "ms")),
        ("the same, divided", "", _by_case("picture", ", divided", "ms")),
    )),
    ("python -m bench.pipeline", "pipeline.jsonl", (
        ("time of a micro-batch, 8 micro-batches on 4 ranks, in forward passes of a stage (simulated)", "",
         _by_case("pipeline", "simulated", "", r".*D=4, 8 micro-batches")),
        ("largest error of a gradient against the undivided model, f64, all schedules", "at most 1e-14",
         _figure("pipeline", "error")),
        ("measured time of a step over the simulated one, stages that sleep", "0.9 to 1.1",
         _figure("pipeline", "measured over", form="mean")),
    )),
    ("python -m bench.causes", "causes.jsonl", (
        ("share of a constructed cause against the one found, in points", "at most 5",
         _by_case("causes", "difference", "")),
        ("part of a starving step that loader workers save, simulated", "",
         _by_case("causes", "part of a step", "")),
    )),
    ("python -m bench.spatial", "spatial.jsonl", (
        ("44 layers divided over 2 ranks: right", "44", _by_case("spatial", "layers right", "")),
        ("the same: silently wrong", "0", _by_case("spatial", "layers wrong", "")),
        ("the same: refused", "0", _by_case("spatial", "layers refused", "")),
        ("bytes that the largest part saves, times ranks, relative to the undivided model", "at most 1.1",
         _by_case("spatial", "saved bytes of the largest", "")),
        ("processor time of all ranks relative to one process", "at most 1.15",
         _by_case("spatial", "processor time", "")),
        ("bytes of a sample of our CosmoFlow: values and gradients (the paper: 0.82, 6.59, 52.7 GiB)", "",
         _by_case("spatial", "bytes of a sample: values", "GiB")),
    )),
    ("python -m bench.placement", "placement.jsonl", (
        ("random graphs placed as well as the best of all placements", "200",
         _figure("placement", "equal")),
        ("speedup of two devices over one, Titan X modelled", "",
         _by_case("placement", "speedup", "", r".*150 GB/s, 2 devices.*")),
    )),
    ("python -m bench.recognised FOLDER", "recognised.jsonl", (
        ("share of PyTorch's convolution calls that the drop-in recognises, ten networks, all passes, fused",
         "at least 99 %", _recognised("recognised_torch")),
        ("the same, convolutions that cudnn-frontend fuses with addition, bias and RELU, NCHW and NHWC",
         "at least 99 %", _recognised("recognised_frontend")),
        ("the same, convolutions of onnxruntime, also with bias, addition and RELU, and transposed",
         "at least 99 %", _recognised("recognised_onnxruntime")),
        ("the same, convolutions of JAX, all passes, also with addition, bias and RELU",
         "at least 99 %", _recognised("recognised_jax")),
    )),
)  # fmt: skip


def main() -> None:
    """Write the README with new tables."""
    README.write_text(refresh(README.read_text("utf-8"), RESULTS), "utf-8")


if __name__ == "__main__":
    main()
