"""Engines of the graph API are measured, chosen and run alongside the legacy algorithms.

The library is the host engine, used like `--engine cudnn`. Its engine n is its legacy algorithm n. Each test
starts processes of its own, because a process keeps the first CUDA runtime that it opens.
"""

import json
import re
from pathlib import Path

import pytest
from cached_rows import change_rows
from command_line import predict_longer
from cudnn_stand_in import check_script, mucudnn, on_stand_in
from programs import host_engine_folders

from mucudnn.costs.cache import Cache
from mucudnn.costs.schema import MEASUREMENT

PROBLEM = "mb12_ic8ih14_oc8_kh3_ph1"
PASSES = ("forward", "backward_data", "backward_filter")
LEGACY = {
    "forward": ["IMPLICIT_GEMM", "GEMM", "FFT_TILING", "WINOGRAD_NONFUSED"],
    "backward_data": ["ALGO_1", "ALGO_0", "FFT_TILING", "WINOGRAD_NONFUSED"],
    "backward_filter": ["ALGO_1", "ALGO_0", "FFT_TILING", "WINOGRAD_NONFUSED"],
}
EXPLICIT = {
    "forward": "eng2",
    "backward_data": "eng0",
    "backward_filter": "eng0",
}  # their knob k2 is the tile size
ENGINES = {
    "forward": ["eng0", "eng2", "eng5", "eng7"],
    "backward_data": ["eng1", "eng0", "eng3", "eng5"],
    "backward_filter": ["eng1", "eng0", "eng6", "eng5"],
}


@pytest.mark.parametrize("pass_", PASSES)
def test_both_are_in_one_list_with_the_same_workspaces(pass_: str) -> None:
    check_script(f"""
problem = Problem(mini_batch=6, in_channels=4, out_channels=5, input=(15, 14), kernel=(3, 3), padding=1)
kernel = Kernel(problem, "{pass_}")
candidates = {{c.algorithm: c for c in cuda.enumerate(kernel) if c.status == "CUDNN_STATUS_SUCCESS"}}
tiled = [f"{EXPLICIT[pass_]}_k2={{size}}" for size in (0, 4)]
assert sorted(candidates) == sorted({LEGACY[pass_] + ENGINES[pass_]} + tiled), sorted(candidates)
assert [candidates[name].workspace for name in tiled][0] == candidates["{EXPLICIT[pass_]}"].workspace
assert candidates[tiled[1]].workspace < candidates[tiled[0]].workspace / 4
for legacy, engine in zip({LEGACY[pass_]}, {ENGINES[pass_]}):
    assert candidates[legacy].workspace == candidates[engine].workspace, engine
notes = [candidates[engine].notes.split() for engine in {ENGINES[pass_]}]
expected = [["deterministic", *more, STRIDED] for more in ([], [], ["fft"], ["winograd"])]
assert notes == expected, notes
assert not [c for c in host.enumerate(kernel) if c.algorithm.startswith("eng")]
""")


@pytest.mark.parametrize("pass_", PASSES)
def test_each_part_of_a_division_may_have_knobs_of_its_own(pass_: str) -> None:
    check_script(f"""
problem = Problem(mini_batch=7, in_channels=4, out_channels=6, input=(15, 14), kernel=(3, 3), padding=1)
def divided(parts):
    def execute(engine, problem, pass_, x, w, y, workspace):
        engine.prepare(Kernel(problem, pass_), parts).execute(x, w, y, workspace, beta=0.5)
    return run(cuda, problem, "{pass_}", execute)
tiled = divided([(4, "{EXPLICIT[pass_]}_k2=4"), (2, "{EXPLICIT[pass_]}_k2=1"), (1, "{EXPLICIT[pass_]}")])
plain = divided([(4, "{EXPLICIT[pass_]}"), (3, "{EXPLICIT[pass_]}")])
for mine, theirs in zip(tiled, plain):
    assert np.allclose(mine, theirs, rtol=1e-5, atol=1e-4)
names = [f"{EXPLICIT[pass_]}_k2={{size}}" for size in range(5)]
needs = [cuda.prepare(Kernel(problem, "{pass_}"), [(7, name)]).workspace for name in names]
assert needs == sorted(needs, reverse=True) and needs[4] < needs[0] / 4, needs
""")


def leave_out(path: Path, pattern: str) -> None:
    """Let the measurements of the algorithms that begin with the pattern decide nothing."""
    with Cache.open(path) as cache:
        change_rows(
            cache,
            MEASUREMENT,
            lambda row: {"status": "left out"} if re.match(pattern, row["algorithm"]) else {},
        )


def test_optimize_decides_on_engines_with_knobs(tmp_path: Path) -> None:
    cache = tmp_path / "cache.sqlite"
    env = on_stand_in(MUCUDNN_CACHE=str(cache))
    env["LD_LIBRARY_PATH"] += f":{host_engine_folders(tmp_path / 'lib')}"
    measured = mucudnn("optimize", "--inference", "--measure-only", PROBLEM, "--engine", "cudnn", env=env)
    assert measured.returncode == 0, measured.stderr
    leave_out(cache, r"(?!eng.*k2=)")
    decided = mucudnn(
        "optimize", PROBLEM, "--inference", "--engine", "cudnn", "--workspace", "64KiB", "--json", env=env
    )
    assert decided.returncode == 0, decided.stderr
    (kernel,) = json.loads(decided.stdout)["kernels"]
    assert all("_k2=" in part["algorithm"] for part in kernel["divided"]["parts"])


@pytest.mark.parametrize("pass_", PASSES)
def test_divided_or_not_they_give_what_legacy_algorithms_give(pass_: str) -> None:
    check_script(f"""
factors = (1.0, 0.0), (1.0, 1.0), (0.5, -2.0)
problems = [
    Problem(mini_batch=7, in_channels=4, out_channels=6, input=(15, 14), kernel=(3, 3), padding=1),
    Problem(mini_batch=7, in_channels=4, out_channels=6, input=(9, 8), kernel=(3, 3), stride=2, groups=2),
    Problem(mini_batch=7, in_channels=4, out_channels=6, input=(9, 8), kernel=(3, 3), layout="nhwc"),
    Problem(mini_batch=7, in_channels=3, out_channels=4, input=(5, 6, 7), kernel=(3, 2, 2), dilation=2),
    Problem(mini_batch=7, in_channels=3, out_channels=5, input=(9, 8), kernel=(1, 1), data_type="f64"),
]
for problem in problems:
    candidates = cuda.enumerate(Kernel(problem, "{pass_}"))
    able = [c.algorithm for c in candidates if c.status == "CUDNN_STATUS_SUCCESS"]
    for legacy, engine in zip({LEGACY[pass_]}, {ENGINES[pass_]}):
        assert (legacy in able) == (engine in able), (problem, engine)
        if engine not in able:
            continue
        def divided(algorithm, alpha, beta):
            def execute(engine, problem, pass_, x, w, y, workspace):
                division = engine.prepare(Kernel(problem, pass_), [(4, algorithm), (3, algorithm)])
                division.execute(x, w, y, workspace, alpha=alpha, beta=beta)
            return run(cuda, problem, "{pass_}", execute)
        for each in factors:
            for mine, theirs in zip(divided(engine, *each), divided(legacy, *each)):
                assert np.array_equal(mine, theirs), (problem, engine, each)
""")


def test_slices_may_begin_at_addresses_that_no_vector_begins_at() -> None:
    # Seven samples of 30 bytes: slices begin at bytes 0, 90, 150 and 180.
    check_script("""
problem = Problem(mini_batch=7, in_channels=3, out_channels=3, input=(5, 1), kernel=(1, 1), data_type="bf16")
def divided(name, pass_, beta):
    def execute(engine, problem, pass_, x, w, y, workspace):
        parts = [(3, name), (2, name), (1, name), (1, name)]
        for _ in range(2):
            engine.prepare(Kernel(problem, pass_), parts).execute(x, w, y, workspace, beta=beta)
    return run(cuda, problem, pass_, execute)
for pass_, legacy, engine in (
    ("forward", "IMPLICIT_GEMM", "eng0"),
    ("backward_data", "ALGO_1", "eng1"),
    ("backward_filter", "ALGO_1", "eng1"),
):
    for beta in (0.0, 0.5):
        for mine, theirs in zip(divided(engine, pass_, beta), divided(legacy, pass_, beta)):
            assert np.array_equal(mine, theirs), (pass_, beta)
""")


def test_a_division_may_mix_both_and_overwrites_nan() -> None:
    check_script("""
problem = Problem(mini_batch=5, in_channels=4, out_channels=6, input=(9, 8), kernel=(3, 3), padding=1)
def mixed(parts):
    def execute(engine, problem, pass_, x, w, y, workspace):
        w.write(problem.data_type, np.full(problem.w_elements, np.nan))
        engine.prepare(Kernel(problem, pass_), parts).execute(x, w, y, workspace)
    return run(cuda, problem, "backward_filter", execute)[1]
both, legacy = mixed([(3, "eng0"), (2, "ALGO_1")]), mixed([(3, "ALGO_0"), (2, "ALGO_1")])
assert np.isfinite(both).all()
assert np.array_equal(both, legacy)
""")


def test_many_threads_run_one_prepared_engine() -> None:
    check_script("""
from concurrent.futures import ThreadPoolExecutor
import ctypes
problem = Problem(mini_batch=8, in_channels=4, out_channels=6, input=(15, 14), kernel=(3, 3), padding=1)
division = cuda.prepare(Kernel(problem, "forward"), [(4, "eng5"), (4, "eng7")])
def convolve(seed):
    arrays = [np.random.default_rng(seed).random(n, dtype=np.float32)
              for n in (problem.x_elements, problem.w_elements, problem.y_elements)]
    for repeat in range(20):
        beta = repeat % 3 / 2
        division.run(*(a.ctypes.data for a in arrays), cuda.allocate(division.workspace), 1.0, beta)
    return arrays[2]
alone = [convolve(seed) for seed in range(4)]
with ThreadPoolExecutor(4) as pool:
    together = list(pool.map(convolve, range(4)))
assert all(np.array_equal(a, b) for a, b in zip(alone, together))
""")


def test_a_fused_convolution_has_engines_alone_and_is_divided_by_them() -> None:
    check_script("""
problem = Problem(mini_batch=7, in_channels=4, out_channels=6, input=(15, 14), kernel=(3, 3), padding=1,
                  epilogue="+add+bias+relu")
kernel = Kernel(problem, "forward")
able = [c.algorithm for c in cuda.enumerate(kernel) if c.status == "CUDNN_STATUS_SUCCESS"]
assert sorted(able) == ["eng0", "eng2", "eng2_k2=0", "eng2_k2=4", "eng5", "eng7"], able
def divided(engine, sizes):
    tensors = [engine.allocate(n * 4) for n in (problem.x_elements, problem.w_elements, problem.y_elements,
                                                *problem.operand_elements)]
    for seed, memory in enumerate(tensors):
        memory.fill_random("f32", memory.size // 4, seed)
    x, w, y, *operands = tensors
    parts = [(size, "eng2") for size in sizes]
    engine.prepare(kernel, parts).execute(x, w, y, engine.allocate(2**24), operands=operands)
    return y.read("f32", problem.y_elements)
whole = divided(host, [7])
assert (whole == 0).any() and (whole > 0).any()
for sizes in ([7], [3, 3, 1], [1] * 7):
    assert np.allclose(divided(cuda, sizes), whole, atol=1e-5), sizes
""")


def test_a_name_that_no_engine_has_is_refused() -> None:
    check_script("""
problem = Problem(mini_batch=5, in_channels=4, out_channels=6, input=(9, 8), kernel=(3, 3), padding=1)
names = "eng eng5_ eng05 eng5_k2 eng4 eng99 eng0_k2=1 eng2_k2=5 eng2_k2=-2 eng2_k3=1"
for name in names.split():
    try:
        cuda.prepare(Kernel(problem, "forward"), [(5, name)])
    except EngineError:
        continue
    raise SystemExit(f"{name} was taken")
""")


def test_a_device_that_the_library_does_not_describe_is_an_error() -> None:
    check_script("""
try:
    cuda.device_properties()
except EngineError as error:
    assert "NOT_SUPPORTED" in str(error)
else:
    raise SystemExit("it was described")
""")


@pytest.mark.parametrize("epilogue", ["", "+add0+bias+relu"])
def test_benchmark_optimize_plan_and_verify_treat_them_as_algorithms(epilogue: str, tmp_path: Path) -> None:
    problem = PROBLEM + epilogue
    cache, plan = tmp_path / "cache.sqlite", str(tmp_path / "net.plan")
    env = on_stand_in(MUCUDNN_CACHE=str(cache))
    env["LD_LIBRARY_PATH"] += f":{host_engine_folders(tmp_path / 'lib')}"
    measured = mucudnn("optimize", "--inference", "--measure-only", problem, "--engine", "cudnn", env=env)
    assert measured.returncode == 0, measured.stderr
    assert " eng7 " in measured.stdout
    assert (" WINOGRAD_NONFUSED " in measured.stdout) == (epilogue == "")

    leave_out(cache, r"(?!eng)")  # only engines remain to choose from
    command = (
        "optimize",
        problem,
        "--inference",
        "--engine",
        "cudnn",
        "--workspace",
        "64KiB",
        "--json",
        "--output",
        plan,
    )
    decided = mucudnn(*command, env=env)
    assert decided.returncode == 0, decided.stderr
    (kernel,) = json.loads(decided.stdout)["kernels"]
    assert all(part["algorithm"].startswith("eng") for part in kernel["divided"]["parts"])
    assert kernel["divided"]["workspace"] <= 64 * 2**10
    again = json.loads(mucudnn(*command, env=env).stdout)
    assert again["new_measurements"] == 0

    shown = mucudnn("plan", "show", plan, env=env)
    assert shown.returncode == 0, shown.stderr
    assert "eng" in shown.stdout
    predict_longer(Path(plan))
    verified = mucudnn("plan", "verify", plan, env=env)
    assert verified.returncode == 0, verified.stdout + verified.stderr
