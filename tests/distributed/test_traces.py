"""The traces of torch.profiler show the causes for which the traced program idled."""

from __future__ import annotations

from pathlib import Path

import needs_torch  # noqa: F401
import trace_cases as cases
import worlds

from mucudnn.diagnosis.causes import divide
from mucudnn.diagnosis.traces import read_traces


def test_only_a_message_between_two_ranks_is_a_receive(tmp_path: Path) -> None:
    worlds.run(2, cases.trace, tmp_path)
    for operation in cases.OPERATIONS:
        sender, receiver = divide(read_traces(tmp_path / f"{operation} {rank}.json" for rank in range(2)))
        for rank in sender, receiver:
            assert rank.steps == cases.STEPS, operation
            assert rank.ms["compute"] > 0, operation
            assert (rank.ms["reduce"] > 0) == (operation != "send and receive"), operation
        assert sender.ms["wait"] + sender.ms["transfer"] == 0, operation
        assert (receiver.ms["wait"] + receiver.ms["transfer"] > 0) == (operation == "send and receive")
