"""A call of the host engine that finds no memory leaves its output as it was.

The drop-in relies on that where a call adds to its output: it computes the slice or the tile again.
"""

import sys
from pathlib import Path

import pytest
from programs import compile_c, preload, run

HERE = Path(__file__).parent
PROBLEMS = (
    "mb2_g2ic6ih19iw9_oc4_kh3_ph1",
    "mb2_g3ic3ih19iw9_oc3_kh3_ph1",
    "mb2_ic3ih19iw9_oc4_kh3_ph1",
    "bf16:nhwc:default:mb2_g2ic6ih19iw9_oc4_kh3_ph1",
    "mb2_g2ic6ih19iw9_oc4_kh3_sh2_ph1",
    "mb2_g3ic3ih19iw9_oc3_kh3_sh2_ph1",
    "mb2_ic3ih19iw9_oc4_kh3_sh2_ph1",
    "bf16:nhwc:default:mb2_ic3ih19iw9_oc4_kh3_sh2_ph1",
    "mb2_g2ic6ih15iw15_oc4_kh3_ph12_dh12",
    "nhwc:mb2_ic64ih15iw15_oc64_kh3_ph12_dh12",
)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_call_that_finds_no_memory_leaves_its_output_as_it_was(problem: str, tmp_path: Path) -> None:
    library = tmp_path / "failing_malloc.so"
    compile_c("-shared", "-fPIC", HERE / "failing_malloc.c", "-o", library, "-ldl")
    result = run(
        sys.executable, HERE / "host_allocations.py", library, problem,
        LD_PRELOAD=preload(library), PYTHONPATH=str(HERE.parent / "native"), OPENBLAS_NUM_THREADS="1",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    outcomes = [line.split() for line in result.stdout.splitlines()]
    assert len(outcomes) >= 3
    for pass_, algorithm, _, wrong in outcomes:
        assert int(wrong) == 0, (pass_, algorithm)
    assert any(int(allocations) > 0 for *_, allocations, _ in outcomes)  # some calls allocate nothing
