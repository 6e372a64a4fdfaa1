"""The vector code of each instruction set agrees with plain loops, and keeps to its arrays."""

from pathlib import Path

import pytest
from programs import run, run_compiler

NATIVE = Path(__file__).parents[2] / "native"
AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
SETS = {"baseline": (4, ()), "avx2": (8, ("avx2", "fma")), "avx512": (16, AVX512)}


@pytest.mark.parametrize("name", SETS)
def test_conversions_strided_copies_and_transforms_of_lines_agree_with_plain_loops(
    name: str, tmp_path: Path
) -> None:
    lanes, needed = SETS[name]
    if not set(needed) <= set(Path("/proc/cpuinfo").read_text("utf-8").split()):
        pytest.skip(f"this processor has no {name}")
    # -O2 takes the compiler five times as long under the sanitizers.
    built = run_compiler(
        "cpp", "-O1", "-ffp-contract=fast", "-Wno-psabi", "-fsanitize=address,undefined", f"-I{NATIVE}",
        f"-DMUCUDNN_ISA={name}", f"-DMUCUDNN_LANES={lanes}", *(f"-m{flag}" for flag in needed),
        Path(__file__).with_name("vectors.cpp"), "-o", tmp_path / "vectors",
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    done = run(tmp_path / "vectors", LD_PRELOAD="", ASAN_OPTIONS="detect_leaks=0")
    assert done.returncode == 0, done.stdout + done.stderr
