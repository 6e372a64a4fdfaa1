"""The stand-in's late streams: forgetting to wait for a copy gives wrong data each time."""

import pytest
from needs_torch import torch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("only_with_late_streams")]

SIZE = 1000


def _copied(wait: bool) -> torch.Tensor:
    """Copy a tensor to the host and back on a side stream, and return what the default stream then reads."""
    ones, back = torch.ones(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    host, side = torch.zeros(SIZE, pin_memory=True), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        host.copy_(ones, non_blocking=True)
        back.copy_(host, non_blocking=True)
    if wait:
        torch.cuda.current_stream().wait_stream(side)
    return back * 1


def test_a_copy_that_nobody_waited_for_has_not_run() -> None:
    assert _copied(wait=False).sum().item() == 0


def test_a_copy_that_the_reader_waited_for_has_run() -> None:
    assert _copied(wait=True).sum().item() == SIZE


def test_a_copy_reads_memory_as_it_is_when_the_copy_runs() -> None:
    source, host, side = (
        torch.ones(SIZE, device="cuda"),
        torch.zeros(SIZE, pin_memory=True),
        torch.cuda.Stream(),
    )
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        host.copy_(source, non_blocking=True)
    source.fill_(7)  # without waiting for the copy
    side.synchronize()
    assert host.sum().item() == 7 * SIZE


def test_a_copy_that_does_not_wait_for_its_source_gets_garbage() -> None:
    source, host, side = (
        torch.ones(SIZE, device="cuda") * 3,
        torch.zeros(SIZE, pin_memory=True),
        torch.cuda.Stream(),
    )
    with torch.cuda.stream(side):
        host.copy_(source, non_blocking=True)
    side.synchronize()
    assert host[0].item() != 3
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        host.copy_(source, non_blocking=True)
    side.synchronize()
    assert host[0].item() == 3


def test_a_copy_that_does_not_wait_for_the_last_use_of_its_destination_writes_garbage() -> None:
    back, host, side = torch.ones(SIZE, device="cuda"), torch.ones(SIZE).pin_memory(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    back.sum()
    with torch.cuda.stream(side):
        back.copy_(host, non_blocking=True)
    side.synchronize()
    assert back[0].item() != 1


def test_an_event_waits_for_the_copies_before_it_only() -> None:
    ones, side = torch.ones(SIZE, device="cuda"), torch.cuda.Stream()
    hosts = [torch.zeros(SIZE, pin_memory=True) for _ in range(2)]
    between = torch.cuda.Event()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        hosts[0].copy_(ones, non_blocking=True)
        between.record()
        hosts[1].copy_(ones, non_blocking=True)
    assert not between.query()
    between.synchronize()
    assert between.query()
    assert [host.sum().item() for host in hosts] == [SIZE, 0]


def test_one_side_stream_can_wait_for_another() -> None:
    ones, back = torch.ones(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    host, out, into = torch.zeros(SIZE, pin_memory=True), torch.cuda.Stream(), torch.cuda.Stream()
    out.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(out):
        host.copy_(ones, non_blocking=True)
    into.wait_stream(out)
    with torch.cuda.stream(into):
        back.copy_(host, non_blocking=True)
    torch.cuda.current_stream().wait_stream(into)
    assert (back * 1).sum().item() == SIZE


def test_an_operator_on_a_side_stream_comes_after_the_copies_on_it() -> None:
    ones, back, side = torch.ones(SIZE), torch.zeros(SIZE, device="cuda"), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        back.copy_(ones.pin_memory(), non_blocking=True)
        doubled = back * 2
    side.synchronize()
    assert doubled.sum().item() == 2 * SIZE
