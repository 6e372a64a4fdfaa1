"""Random programs do under the drop-in what they do without it: see comparison.py for the rules.

Each program is a seed. It is played once on the host engine alone and once under the drop-in in each of its
modes, every time in another process; statuses, outputs, inputs and the bytes beside all buffers are compared.
`measured` is the online mode as it is. The other online modes begin with the times of a made-up machine on
which anything may be the fastest, so that they divide much and always the same way; the number is the limit
in bytes. What is reported comes with the command that runs one program alone.

    TEST_SEED=7     begin with program 7 instead of 215
    TEST_CASES=500  run that many programs of each client
    TEST_LONG=1     run 30 times as many as usual
"""

from __future__ import annotations

import pytest
from processes import Mode
from runs import CLIENTS, MODES, Runs


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_program_does_under_the_drop_in_what_it_does_without_it(
    client: str, mode: Mode, runs: Runs
) -> None:
    report = runs.report(client, mode)
    assert not report, f"\n{report}"
