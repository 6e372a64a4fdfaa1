"""Processes that measure into one cache at once lose no row and measure nothing twice."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cached_rows import times_in
from recorder import Recorder

from mucudnn.costs import claims as claiming
from mucudnn.costs.cache import Cache
from mucudnn.costs.claims import Claims, tries_until_stalled
from mucudnn.costs.schema import COMPARISON

pytestmark = pytest.mark.usefixtures("cache_path")

NETWORK = "\n".join(f"ic4ih{size}_oc4_kh3" for size in range(8, 16))


@pytest.fixture
def network(tmp_path: Path) -> str:
    file = tmp_path / "network.txt"
    file.write_text(NETWORK)
    return str(file)


def test_eight_processes_measure_everything_once(network: str, cache_path: Path) -> None:
    command = [sys.executable, "-m", "mucudnn", "optimize", network, "--batch", "4", "--json"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    results = [json.loads(process.communicate()[0]) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    with Cache.read_only(cache_path) as cache:
        measured, compared = len(times_in(cache)), len(cache.select(COMPARISON))
    assert compared >= 8  # if a division misses its prediction, other candidates run whole too
    assert sum(result["new_measurements"] for result in results) == measured + compared
    # All processes took the same decisions, because all used the same measurements.
    assert len({json.dumps({**result, "new_measurements": 0}) for result in results}) == 1


def test_a_claim_belongs_to_one_process_until_it_ends_in_any_way(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    script = (
        "import signal, sys; from pathlib import Path; from mucudnn.costs.claims import Claims\n"
        "with Claims(Path(sys.argv[1])).claim('a kernel'):\n"
        "    print('mine', flush=True)\n    signal.pause()"
    )
    owner = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "mine\n"
    claims = Claims(path)
    with claims.claim("a kernel") as ours:
        assert not ours
    with claims.claim("another kernel") as ours:
        assert ours
    owner.send_signal(signal.SIGKILL)
    with claims.claim("a kernel", tries_until_stalled("it works", print)) as ours:
        assert ours
    owner.communicate()
    claims.close()


def test_a_process_that_makes_no_progress_is_not_waited_for(
    cache_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "PATIENCE_SECONDS", 1.5)
    listener = Recorder()
    with Cache.open(cache_path) as owner, Cache.open(cache_path, listener=listener) as other:
        held = owner.claimed("a", str)
        assert next(held) == "a"
        assert list(other.claimed("ab", str)) == ["b", "a"]
        held.close()
    assert listener.messages == [
        "Waiting for another process: it is to a",
        "Going on without it: nothing has changed for 2 s",
    ]


def test_kernels_that_others_measure_come_last(cache_path: Path) -> None:
    with Cache.open(cache_path) as cache, Cache.open(cache_path) as other_cache:
        own, others = cache.claimed("abc", str), other_cache.claimed("abc", str)
        assert [next(others), next(own), next(others)] == ["a", "b", "c"]
        others.close()
        assert list(own) == ["c", "a"]
