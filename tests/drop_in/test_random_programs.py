"""Random programs behave under the drop-in as they do without it, by the rules of comparison.py.

Each program is a seed. Processes play it on the host engine alone and under the drop-in in each of its modes.
The test compares statuses, outputs, inputs and the bytes around all buffers. `measured` and `raced` are the
online modes with real times. The other online modes begin with random times, by which any algorithm may be
the fastest. So they divide often, and the same way in each run; the number in their name is the limit in
bytes. A report has the command that runs one program alone.

    TEST_SEED=7     begin with program 7 instead of 215
    TEST_CASES=500  run that many programs of each client
    TEST_LONG=1     run 30 times as many as usual
"""

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
