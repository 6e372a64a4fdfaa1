"""The trampolines of each processor lead to the function of their name and pass on all its arguments.

For another processor the test cross-compiles them and runs them in an emulator.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest
from programs import compile_c, is_missing, run
from shim_clients import HERE, NATIVE
from stand_in_library import build_library

# Debian packages: gcc-aarch64-linux-gnu, qemu-user.
CROSS = {"aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64")}


@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
def test_arguments_and_results_pass_through_every_trampoline(
    processor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator: tuple[str, ...] = ()
    if processor != platform.machine():
        tools = CROSS.get(processor, (f"{processor}-linux-gnu-gcc", f"qemu-{processor}"))
        if not all(map(shutil.which, tools)):
            is_missing(f"needs {' and '.join(tools)} for {processor}'s trampolines")
        compiler, program = tools
        monkeypatch.setenv("CC", compiler)
        emulator = (program, "-L", f"/usr/{processor}-linux-gnu")

    exports = f"-I{NATIVE / 'shim' / 'entry'}"
    real = build_library(HERE / "shim_numbered_library.c", tmp_path / "real.so", exports)
    trampolines = NATIVE / "shim" / "entry" / f"trampoline_{processor}.S"
    build_library(HERE / "shim_resolver.c", tmp_path / "libcudnn.so.9", exports, trampolines, "-ldl")
    client = tmp_path / "client"
    compile_c("-D_GNU_SOURCE", exports, HERE / "shim_numbered_client.c", "-o", client, "-pthread", "-ldl")
    result = run(*emulator, client, REAL=str(real), LD_LIBRARY_PATH=str(tmp_path))
    assert (result.returncode, result.stdout, result.stderr) == (0, "ok\n", "")
