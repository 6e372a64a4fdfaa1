"""The traces of torch.profiler show the causes for which the traced program idled."""

from __future__ import annotations

from pathlib import Path

import needs_torch  # noqa: F401
import trace_cases as cases
import worlds

from mucudnn.diagnosis.causes import divide
from mucudnn.diagnosis.lateness import late_ranks
from mucudnn.diagnosis.traces import read_traces


def test_only_a_message_between_two_ranks_is_a_receive(tmp_path: Path) -> None:
    worlds.run(2, cases.trace, tmp_path)
    for operation in cases.OPERATIONS:
        sender, receiver = divide(read_traces(tmp_path / f"{operation} {rank}.json" for rank in range(2)))
        for rank in sender, receiver:
            assert rank.steps == cases.STEPS, operation
            assert rank.ms["compute"] > 0, operation
            assert (rank.ms["reduce"] > 0) == (operation != "send and receive"), operation
        assert not sender.waits_for_messages, operation
        assert sender.ms["transfer"] == 0, operation
        receives = receiver.waits_for_messages or receiver.ms["transfer"] > 0
        assert receives == (operation == "send and receive"), operation


def test_a_rank_that_is_late_in_a_sum_of_gradients_is_named_with_its_slow_part(tmp_path: Path) -> None:
    worlds.run(3, cases.train, tmp_path)
    for part in cases.PARTS:
        ranks = divide(read_traces(tmp_path / f"{part} {rank}.json" for rank in range(3)))
        latest = late_ranks(ranks)[0]
        assert (latest.rank, latest.part) == (1, part)
        assert latest.part_ms > latest.usual_ms
