"""An event of a trace counts once and as its own kind: a collective is not a message between ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from mucudnn.diagnosis import traces
from mucudnn.diagnosis.causes import CAUSES, Shares, divide
from mucudnn.diagnosis.collectives import explain_collectives
from mucudnn.diagnosis.lateness import late_ranks
from mucudnn.diagnosis.remedies import remedies
from mucudnn.diagnosis.traces import RankTrace, read_traces
from mucudnn.errors import MucudnnError

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
DATA = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
HOST, GPU = {"pid": 4711, "tid": 4711}, {"pid": 0, "tid": 20}


def event(name: str, category: str, start: float, length: float, **others: Any) -> dict[str, Any]:
    """Return an event, whose times are in milliseconds, as torch.profiler writes it."""
    lane = GPU if category in ("kernel", "gpu_user_annotation") else HOST
    times = {"ts": start * 1e3, "dur": length * 1e3}
    return {"ph": "X", "name": name, "cat": category} | lane | times | others


def mirrored(name: str, start: float, length: float) -> list[dict[str, Any]]:
    """Return a range of the program and its mirror around the kernels that it launched."""
    mirror = event(name, "gpu_user_annotation", start + 1, length)
    return [event(name, "user_annotation", start, 1), mirror]


def write(path: Path, *events: dict[str, Any], rank: int = 0) -> Path:
    content = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": events}
    path.write_text(json.dumps(content))
    return path


def shares(path: Path, *events: dict[str, Any]) -> Shares:
    return divide(read_traces([write(path, *events)]))[0]


def causes(rank: Shares) -> dict[str, float]:
    """Return the causes that take time."""
    return {cause: round(rank.ms[cause]) for cause in CAUSES if round(rank.ms[cause])}


def test_a_range_and_its_mirror_on_the_gpu_count_once(tmp_path: Path) -> None:
    events = [event("gemm", "kernel", 0, 40), event("aten::mm", "cpu_op", 0, 100)]
    for step in range(4):
        events += mirrored(f"ProfilerStep#{step}", 10 * step, 9)
    rank = shares(tmp_path / "0.json", *events, *mirrored(DATA, 0, 30), *mirrored("FSDP::all_gather", 0, 30))
    assert rank.steps == 4
    assert causes(rank) == {"data": 1, "compute": 39, "rest": 60}


MULTIPLE = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@pytest.mark.parametrize("loader", [DATA, MULTIPLE])
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_fetch_that_finds_the_end_of_an_epoch_is_not_a_step(
    loader: str, epochs: int, tmp_path: Path
) -> None:
    events = []
    for epoch in range(epochs):
        for batch in range(8):
            begin = 100 * epoch + 10 * batch
            events += [event(loader, "user_annotation", begin, 3), event("aten::mm", "cpu_op", begin + 3, 5)]
            if loader == DATA:
                events.append(event("aten::stack", "cpu_op", begin + 1, 1))
        events.append(event(loader, "user_annotation", 100 * epoch + 80, 1))
        if loader == DATA:  # something of an epoch's end, such as the mean of its losses
            events.append(event("aten::mean", "cpu_op", 100 * epoch + 85, 1))
    # The backward passes run in another thread.
    events += [event("aten::mm", "cpu_op", 95, 1, tid=9)]
    assert shares(tmp_path / "0.json", *events).steps == 8 * epochs


@pytest.mark.parametrize("events", [[], ["ProfilerStep#1"], [DATA], ["ProfilerStep#1", DATA, "my range"]])
def test_a_trace_without_operations_is_refused(events: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "0.json", *(event(name, "user_annotation", 0, 9) for name in events))
    with pytest.raises(MucudnnError, match="has no operations: record it with ProfilerActivity"):
        read_traces([path])


def test_steps_are_counted_once_for_all_threads_and_optimizers(tmp_path: Path) -> None:
    numbered = [
        event(f"ProfilerStep#{step}", "user_annotation", 10 * step, 10, tid=thread)
        for step in range(3)
        for thread in (1, 2)
    ]
    optimizers = [
        event(f"Optimizer.step#{name}.step", "user_annotation", 10 * step, 1)
        for step in range(5)
        for name in ("ZeroRedundancyOptimizer", "Adam")
    ]
    work = event("aten::mm", "cpu_op", 0, 1)
    assert shares(tmp_path / "0.json", *numbered, *optimizers, work).steps == 3
    assert shares(tmp_path / "0.json", *optimizers, work).steps == 5


KINDS = [
    ("send", None),
    ("recv", "wait"),
    ("all_to_all", "reduce"),
    ("_allgather_base", "reduce"),
]


@pytest.mark.parametrize(("operation", "cause"), KINDS)
def test_nccls_kernel_for_sends_and_receives_counts_as_the_operation_that_launched_it(
    operation: str, cause: str | None, tmp_path: Path
) -> None:
    compute = event("gemm", "kernel", 0, 10)
    expected = {"compute": 10, cause or "rest": 10}
    collective = {"Collective name": operation, "Group size": 4}
    named = event(SEND_RECV, "kernel", 10, 10, args=collective)
    assert causes(shares(tmp_path / "0.json", compute, named)) == expected
    # Older profilers name the operation only on the CPU, or only around the kernel.
    launch = event("record_param_comms", "cpu_op", 1, 1, args=collective | {"External id": 7})
    linked = event(SEND_RECV, "kernel", 10, 10, args={"External id": 7})
    assert causes(shares(tmp_path / "0.json", compute, launch, linked)) == expected
    around = event(f"nccl:{operation} 1<-0", "gpu_user_annotation", 10, 10)
    bare = event(SEND_RECV, "kernel", 10, 10)
    assert causes(shares(tmp_path / "0.json", compute, around, bare)) == expected


@pytest.mark.parametrize(
    ("name", "arguments", "cause"),
    [
        # NCCL 2.14 and 2.17, as in the traces that HolisticTraceAnalysis publishes
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", {}, "reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", {}, "reduce"),
        (SEND_RECV, {}, "reduce"),  # nothing says that two ranks alone take part
        # RCCL, which has one kernel for all operations, and kernels for its MSCCL algorithms
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", {"Collective name": "recv"}, "wait"),
        ("mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", {}, "reduce"),
        ("onecclKernel", {"Collective name": "allreduce"}, "reduce"),
    ],
)
def test_other_kernels_count_as_their_name_or_the_profiler_says(
    name: str, arguments: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    assert causes(shares(tmp_path / "0.json", event(name, "kernel", 0, 10, args=arguments))) == {cause: 10}


def test_short_kernels_keep_their_length_long_after_the_epoch(tmp_path: Path) -> None:
    kernels = [event("gemm", "kernel", number / 100, 0.0013) for number in range(100)]
    paths = []
    for rank in range(2):
        paths.append(write(tmp_path / f"{rank}.json", *kernels, rank=rank))
        content = json.loads(paths[-1].read_text()) | {"baseTimeNanoseconds": 1_735_632_360 * 10**9 + rank}
        paths[-1].write_text(json.dumps(content))
    for rank in divide(read_traces(paths)):
        assert rank.ms["compute"] == pytest.approx(0.13, rel=1e-6)


def test_a_batch_of_sends_and_receives_is_a_receive(tmp_path: Path) -> None:
    around = event("nccl:coalesced", "gpu_user_annotation", 0, 30)
    batch = event(SEND_RECV, "kernel", 0, 10)
    others = event("ncclDevKernel_AllReduce_Sum_f32", "kernel", 10, 20)
    assert causes(shares(tmp_path / "0.json", around, batch, others)) == {"wait": 10, "reduce": 20}


def test_a_range_names_the_kernels_of_its_own_stream_and_time_only(tmp_path: Path) -> None:
    around = event("nccl:recv 1<-0", "gpu_user_annotation", 0, 10)
    kernels = [event(SEND_RECV, "kernel", 20, 10), event(SEND_RECV, "kernel", 0, 10, tid=21)]
    assert causes(shares(tmp_path / "0.json", around, *kernels)) == {"reduce": 20, "rest": 10}


@pytest.mark.parametrize(("operation", "is_pipeline"), [("recv", True), ("all_to_all", False)])
def test_only_ranks_that_wait_for_messages_are_advised_to_use_micro_batches(
    operation: str, is_pipeline: bool, tmp_path: Path
) -> None:
    def rank(number: int) -> Path:
        work = event("gemm", "kernel", 50 * number, 40)
        args = {"Collective name": operation}
        wait = event(SEND_RECV, "kernel", 50 * (1 - number), 40, args=args)
        return write(tmp_path / f"{number}.json", work, wait, rank=number)

    changes = [remedy.change for remedy in remedies(divide(read_traces([rank(0), rank(1)])))]
    assert any(change.startswith("GPipe") for change in changes) == is_pipeline


@pytest.mark.parametrize("is_inside", [False, True])
def test_ranks_whose_operations_exchange_rows_are_no_pipeline(is_inside: bool, tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        around = [event("SomeConvolution", "cpu_op", 50 * rank, 50)] if is_inside else []
        events = [
            event("c10d::recv_", "cpu_op", 50 * rank, 40),
            event("gloo:recv", "user_annotation", 50 * rank, 40),
            event("aten::mm", "cpu_op", 50 * rank + 40, 10),
        ]
        paths.append(write(tmp_path / f"{rank}.json", *around, *events, rank=rank))
    ranks = divide(read_traces(paths))
    assert [causes(rank)["wait"] for rank in ranks] == [40, 40]
    changes = [remedy.change for remedy in remedies(ranks)]
    assert any(change.startswith("GPipe") for change in changes) != is_inside


@pytest.mark.parametrize("name", ["all_to_all", "barrier", "sparse_all_reduce"])
def test_on_a_cpu_all_but_sends_and_receives_are_collectives(name: str, tmp_path: Path) -> None:
    rank = shares(tmp_path / "0.json", event(f"gloo:{name}", "user_annotation", 0, 10))
    assert causes(rank) == {"reduce": 10}


def test_waiting_for_a_collective_is_not_computation(tmp_path: Path) -> None:
    rank = shares(
        tmp_path / "0.json",
        event("_c10d_functional::wait_tensor", "cpu_op", 0, 90),
        event("gloo:all_gather", "user_annotation", 0, 90),
        event("aten::mm", "cpu_op", 90, 10),
    )
    assert causes(rank) == {"compute": 10, "reduce": 90}


def test_an_operation_waits_for_the_message_of_its_own_thread_only(tmp_path: Path) -> None:
    rank = shares(
        tmp_path / "0.json",
        event("aten::conv2d", "cpu_op", 0, 90, tid=1),
        event("c10d::recv_", "cpu_op", 10, 10, tid=2),
    )
    assert causes(rank) == {"compute": 90}


def test_the_profilers_own_work_is_outside_the_trace(tmp_path: Path) -> None:
    rank = shares(
        tmp_path / "0.json",
        event("Activity Buffer Request", "overhead", 0, 500, pid=-1, tid=0),
        event("PyTorch Profiler (0)", "Trace", 0, 900, pid="Spans", tid="PyTorch Profiler"),
        event("aten::mm", "cpu_op", 500, 10),
    )
    assert rank.total_ms == pytest.approx(10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tid": [1]}, "'pid' or 'tid' of event 0 is neither a number nor text"),
        ({"name": {}}, "the name or category of event 0 is not text"),
        ({"ts": 10**400}, "'ts' or 'dur' of event 0 is not a number of microseconds"),
        ({"dur": float("inf")}, "it is not JSON"),
        ({"ts": "0"}, "'ts' or 'dur' of event 0"),
        ({"dur": -1}, "it has no operations"),
        ({"cat": "gpu_user_annotation"}, "it has no operations"),
    ],
)
def test_an_event_that_cannot_be_used_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "0.json", event("aten::mm", "cpu_op", 0, 1) | changes)
    with pytest.raises(MucudnnError, match=f"0.json is not a trace of torch.profiler: {message}"):
        read_traces([path])


def test_odd_remarks_of_the_profiler_are_ignored(tmp_path: Path) -> None:
    odd = [{"External id": [1], "Collective name": {}}, [], "text", None]
    events = [event("record_param_comms", "cpu_op", 0, 1, args=args) for args in odd]
    kernels = [event("gemm", "kernel", 10 * i, 10, args=args) for i, args in enumerate(odd)]
    assert causes(shares(tmp_path / "0.json", *events, *kernels)) == {"compute": 40}


def test_the_ranks_of_one_file_are_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path / "all.json", *(event("aten::mm", "cpu_op", 0, 1, pid=process) for process in (1, 2))
    )
    with pytest.raises(MucudnnError, match="holds the work of 2 processes: give each rank's own file"):
        read_traces([path])


def test_a_trace_of_the_launches_alone_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "0.json", event("aten::mm", "cpu_op", 0, 1))
    content = json.loads(path.read_text())
    content["distributedInfo"]["backend"] = "nccl"
    path.write_text(json.dumps(content))
    with pytest.raises(MucudnnError, match="lacks the GPU's work: record it"):
        read_traces([path])


def test_a_trace_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST_BYTES", 2**20)
    with pytest.raises(MucudnnError, match="/dev/zero is too large: it may have 1 MiB at most"):
        read_traces([Path("/dev/zero")])


def late(tmp_path: Path, delays: list[list[float]], name: str = "gloo:all_reduce") -> list[RankTrace]:
    """Return the traces of ranks that compute and then reduce, each step as late as a delay in ms says."""
    steps = len(delays[0])
    starts = [max(rank[step] for rank in delays) for step in range(steps)]
    paths = []
    for rank, own in enumerate(delays):
        events, now = [], 0.0
        for step in range(steps):
            events.append(event(f"ProfilerStep#{step}", "user_annotation", now, 100))
            events.append(event("aten::mm", "cpu_op", now, 10 + own[step]))
            arrival = now + 10 + own[step]
            events.append(event(name, "user_annotation", arrival, now + 15 + starts[step] - arrival))
            now += 100
        paths.append(write(tmp_path / f"{rank}.json", *events, rank=rank))
    return read_traces(paths)


def test_in_a_collective_ranks_wait_for_the_last_one(tmp_path: Path) -> None:
    ranks = divide(late(tmp_path, [[0, 0], [0, 40], [20, 0]]))
    assert [round(rank.ms["wait"]) for rank in ranks] == [60, 20, 40]
    assert [round(rank.ms["reduce"]) for rank in ranks] == [10, 10, 10]
    latest, second = late_ranks(ranks)
    assert (latest.rank, round(latest.ms), latest.part) == (1, 20, "forward")
    assert (round(latest.part_ms), round(latest.usual_ms)) == (30, 15)
    assert (second.rank, round(second.ms)) == (2, 10)
    assert [remedy.change for remedy in remedies(ranks)] == ["rank 1 on time", "rank 2 on time"]


@pytest.mark.parametrize(
    ("delays", "reason"),
    [
        ([0] * 6, "transfer"),
        ([40] * 6, "arrival skew"),
        ([5] * 6, "mixed"),
        ([0, 40] * 3, "undecided"),
        ([40] * 2, "undecided"),
    ],
)
def test_a_collective_is_long_for_the_reason_that_most_of_its_calls_show(
    delays: list[float], reason: str, tmp_path: Path
) -> None:
    # After the last rank has arrived, each call takes 5 ms.
    (collective,) = explain_collectives(late(tmp_path, [[0] * len(delays), delays]))
    skew = sum(delays) / len(delays)
    assert (round(collective.ms - skew, 3), round(collective.skew_ms, 3)) == (5, skew)
    assert collective.reason == reason


def test_collectives_that_only_some_ranks_run_are_not_matched(tmp_path: Path) -> None:
    first = write(
        tmp_path / "0.json", *[event("gloo:all_reduce", "user_annotation", 10 * i, 5) for i in (0, 1)]
    )
    second = write(tmp_path / "1.json", event("gloo:all_reduce", "user_annotation", 4, 1), rank=1)
    both = read_traces([first, second])
    assert late_ranks(divide(both)) == []
    assert [(c.ms, c.reason) for c in explain_collectives(both)] == [(10, "undecided")]


def test_ranks_do_not_wait_for_a_rank_of_another_group(tmp_path: Path) -> None:
    # Ranks 0 and 1 sum among themselves, and so do ranks 2 and 3. Rank 1 alone is late.
    paths = []
    for rank, (group, arrival, end) in enumerate(
        [("[0, 1]", 10, 60), ("[0, 1]", 50, 60), ("[2, 3]", 10, 22), ("[2, 3]", 12, 22)]
    ):
        arguments = {"Collective name": "allreduce", "Process Group Ranks": group}
        work = event("gemm", "kernel", 0, arrival)
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        reduce = event(name, "kernel", arrival, end - arrival, args=arguments)
        paths.append(write(tmp_path / f"{rank}.json", work, reduce, rank=rank))
    ranks = divide(read_traces(paths))
    assert [round(rank.ms["wait"]) for rank in ranks] == [40, 0, 2, 0]
    assert [(late.rank, round(late.ms)) for late in late_ranks(ranks)] == [(1, 40), (3, 2)]
