"""The build of the native harnesses: with libFuzzer if clang is there, else a program that replays files."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NATIVE = ("descriptor", "plan", "candidates", "journal", "measurements", "sizes", "settings")
SOURCES = (
    *(ROOT / "native" / "core").glob("*.cpp"),
    ROOT / "native" / "shim" / "decisions" / "journal.cpp",
    HERE / "native" / "harnesses.cpp",
)
FLAGS = (
    "-std=c++17", "-g1", "-fno-omit-frame-pointer", "-D_GLIBCXX_ASSERTIONS", f"-I{ROOT / 'native'}",
    "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
)  # fmt: skip


@dataclass(frozen=True)
class NativeHarnesses:
    """A program with all native harnesses."""

    program: Path
    guided: bool  # True if libFuzzer makes new inputs

    def command(self, name: str, *arguments: str | Path) -> tuple[list[str], dict[str, str]]:
        """Return the command that runs a harness, and its environment."""
        # A preloaded library, such as another sanitizer's runtime, must not run in it.
        kept = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        return [str(self.program), *map(str, arguments)], {**kept, "HARNESS": name}


def build_harnesses(folder: Path, optimization: str) -> NativeHarnesses:
    """Build the program under the address and undefined-behaviour sanitizers."""
    folder.mkdir(parents=True, exist_ok=True)
    clang = shutil.which("clang++")
    if clang:
        return NativeHarnesses(_build(folder, [clang, optimization], "fuzzer-no-link", "fuzzer", ()), True)
    compiler = os.environ.get("CXX", "c++").split()
    replay = HERE / "native" / "replay.cpp"
    return NativeHarnesses(_build(folder, [*compiler, optimization], "", "", (replay,)), False)


def _build(folder: Path, compiler: list[str], compiled: str, linked: str, more: tuple[Path, ...]) -> Path:
    variables = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    program = folder / "harnesses"
    headers = (*(ROOT / "native").rglob("*.hpp"), *(HERE / "native").iterdir())
    newest = max(file.stat().st_mtime for file in (*SOURCES, *headers, Path(__file__)))
    if program.exists() and program.stat().st_mtime > newest:
        return program

    def run(*arguments: str | Path) -> None:
        done = subprocess.run(
            [*compiler, *FLAGS, *map(str, arguments)],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr)

    def compile_one(source: Path) -> Path:
        made = folder / f"{source.parent.name}-{source.stem}.o"
        run(*([f"-fsanitize={compiled}"] if compiled else []), "-c", source, "-o", made)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, (*SOURCES, *more)))
    # A running program cannot be overwritten, only replaced.
    made = program.with_suffix(f".{os.getpid()}")
    run(*([f"-fsanitize={linked}"] if linked else []), *objects, "-o", made, "-lpthread")
    return made.replace(program)
