"""The flags --numerics, --batch-invariant and --choice of the commands, and the plans that keep them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from cached_rows import times_in

import mucudnn
from mucudnn._native import Engine, host_library
from mucudnn.cli import main
from mucudnn.costs.cache import Cache
from mucudnn.errors import UsageError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.runners import Exhaustive
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.plan import Plan
from mucudnn.problems.layers import Layers
from mucudnn.promises import Promise

NETWORK = "mb{}_ic16ih14_oc16_kh3_ph1"
LIMIT = 2**20


def plan_for(mini_batch: int, folder: Path, *flags: str) -> Path:
    path = folder / f"{mini_batch}.plan"
    command = ["optimize", NETWORK.format(mini_batch), "--engine", "host", "--workspace", str(LIMIT), *flags]
    assert main([*command, "--output", str(path)]) == 0
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUCUDNN_CACHE", str(tmp_path / "cache.sqlite"))
    monkeypatch.setenv("MUCUDNN_LIBRARY", "host")


def test_a_batch_invariant_plan_has_one_algorithm_for_each_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = [Plan.read(plan_for(n, tmp_path, "--batch-invariant")) for n in (1, 3, 8, 64)]
    assert {plan.promise for plan in plans} == {Promise(batch_invariant=True)}
    algorithms = [
        [{part.algorithm for part in kernel.chosen.parts} for kernel in plan.kernels[:2]] for plan in plans
    ]
    assert all(each == algorithms[0] for each in algorithms)
    assert all(len(names) == 1 for names in algorithms[0])
    capsys.readouterr()
    assert main(["plan", "show", str(tmp_path / "8.plan")]) == 0
    assert "promise: batch_invariant" in capsys.readouterr().out
    assert main(["plan", "verify", str(tmp_path / "8.plan")]) == 0, "modelled times are not compared"


def test_a_call_follows_only_a_plan_that_keeps_its_promise(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    x, w = (random.standard_normal(shape, np.float32) for shape in ((8, 16, 14, 14), (16, 16, 3, 3)))
    kept = plan_for(8, tmp_path, "--batch-invariant")
    whole = mucudnn.convolution_forward(x, w, padding=1, plan=kept, batch_invariant=True)
    for n in (1, 3):
        part = mucudnn.convolution_forward(x[:n], w, padding=1, workspace=LIMIT, batch_invariant=True)
        np.testing.assert_array_equal(part, whole[:n])
    other = plan_for(16, tmp_path, "--choice", "fixed")
    twice = np.concatenate([x, x])
    with pytest.raises(UsageError, match="the plan does not promise batch_invariant"):
        mucudnn.convolution_forward(twice, w, padding=1, plan=other, batch_invariant=True)
    mucudnn.convolution_forward(twice, w, padding=1, plan=other)


def test_fixed_choices_are_the_same_with_another_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = plan_for(8, tmp_path, "--choice", "fixed").read_text()
    monkeypatch.setenv("MUCUDNN_CACHE", str(tmp_path / "other.sqlite"))
    assert plan_for(8, tmp_path, "--choice", "fixed").read_text() == first


def test_the_json_and_the_next_command_name_the_promise(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["optimize", NETWORK.format(4), "--engine", "host", "--batch-invariant"]
    assert main([*command, "--numerics", "strict", "--json"]) == 0
    promise = {"numerics": "strict", "batch_invariant": True, "choice": "measured"}
    assert json.loads(capsys.readouterr().out)["promise"] == promise
    assert main([*command, "--choice", "fixed"]) == 0
    shown = capsys.readouterr().out
    assert "batch_invariant, choice=fixed" in shown
    assert "Times are modelled" in shown
    assert "--batch-invariant --choice fixed" in shown


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--total-workspace", "1MiB"], "give a limit for each kernel"),
        (
            ["--replay", "cache.sqlite"],
            "--replay decides by recorded times, which 'batch_invariant' excludes",
        ),
    ],
)
def test_what_cannot_be_promised_is_refused(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_for(4, tmp_path)
    flags = [str(tmp_path / flag) if flag == "cache.sqlite" else flag for flag in flags]
    assert main(["optimize", NETWORK.format(4), "--engine", "host", "--batch-invariant", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_memory_plan_keeps_the_words_of_flags_and_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network, path = tmp_path / "net.network", tmp_path / "net.memory"
    layers = Layers(6, 16, 14, 14)
    layers.finish(layers.convolution("conv", layers.input, 16, 3, padding=1)).write(network)
    command = ["memory", str(network), "--memory", "1GiB", "--output", str(path)]

    def plan(*flags: str) -> MemoryPlan:
        assert main([*command, *flags]) == 0
        return MemoryPlan.read(path)

    strict = plan("--numerics", "strict")
    assert strict.header["promise"] == "numerics=strict"
    assert {kernel.kernel.problem.math for kernel in strict.kernels} == {"strict"}
    assert "numerics=strict" in capsys.readouterr().out
    measured = plan("--device", "measured", "--workspace", str(LIMIT), "--batch-invariant")
    assert measured.header["promise"] == "batch_invariant"
    assert main(["plan", "show", str(path)]) == 0
    assert "batch_invariant" in capsys.readouterr().out
    for flags in ([], ["--device", "measured", "--no-divide"]):
        assert main([*command, "--batch-invariant", *flags]) == 2
    monkeypatch.setenv("MUCUDNN_NUMERICS", "strict")
    assert plan() == strict


@pytest.mark.parametrize("more", [(), ("--batch-invariant",)])
def test_a_memory_plan_with_fixed_choices_measures_nothing(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = tmp_path / "net.network"
    layers = Layers(6, 16, 14, 14)
    layers.finish(layers.convolution("conv", layers.input, 16, 3, padding=1)).write(network)
    command = [
        "memory",
        str(network),
        "--memory",
        "1GiB",
        "--workspace",
        str(LIMIT),
        "--choice",
        "fixed",
        *more,
    ]
    plans = []
    for name in ("one", "other"):
        path = tmp_path / f"{name}.sqlite"
        monkeypatch.setenv("MUCUDNN_CACHE", str(path))
        output = tmp_path / f"{name}.memory"
        assert main([*command, "--device", "measured", "--output", str(output)]) == 0
        with Cache.read_only(path) as cache:
            assert times_in(cache) == []
        plans.append(MemoryPlan.read(output))
    assert plans[0] == plans[1]
    assert Promise(batch_invariant=bool(more), choice="fixed") == plans[0].for_module("conv").promise
    assert plans[0].sources["kernels"] == "modelled"
    assert "choice=fixed" in capsys.readouterr().out
    with Cache.open(tmp_path / "one.sqlite") as cache:
        bench = Bench(Engine(host_library()), cache, Listener(), Exhaustive())
        for kernel in plans[0].kernels:
            slices = kernel.chosen.slices
            assert bench.engine.prepare(kernel.kernel, slices).workspace == kernel.workspace <= LIMIT


def test_a_choice_without_a_memory_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "vgg16", "--choice", "fixed"]) == 2
    assert "--choice is for a plan" in capsys.readouterr().err


def test_run_passes_the_words_to_the_drop_in(capfd: pytest.CaptureFixture[str]) -> None:
    from programs import run

    program = "import os; print(os.environ['MUCUDNN_NUMERICS'], os.environ['MUCUDNN_BATCH_INVARIANT'])"
    command = [sys.executable, "-m", "mucudnn", "run", "--numerics", "strict", "--batch-invariant", "--"]
    result = run(*command, sys.executable, "-c", program, MUCUDNN_LIBRARY="host")
    assert result.stdout == "strict 1\n"
