import pytest
from runs import CLIENTS, Runs

from mucudnn._native import Engine

_done: list[Runs] = []


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Runs:
    """Return the random programs of all clients. Print a summary of them at the end."""
    made = Runs(tmp_path_factory.mktemp("random_programs"), engine)
    for client in CLIENTS.values():
        made.add(client)
    _done.append(made)
    return made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for made in _done:
        for line in made.summary():
            terminalreporter.write_line(line)
