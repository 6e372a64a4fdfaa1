"""A file that several processes change is locked only while one of them changes it."""

from pathlib import Path

from programs import run, run_compiler

NATIVE = Path(__file__).parents[2] / "native"


def test_a_forked_child_keeps_no_lock_that_its_parent_released(tmp_path: Path) -> None:
    sources = (Path(__file__).with_name("locked_file.cpp"), NATIVE / "core/locked_file.cpp")
    built = run_compiler("cpp", f"-I{NATIVE}", *sources, NATIVE / "core/log.cpp", "-o", tmp_path / "program")
    assert built.returncode == 0, built.stderr
    done = run(tmp_path / "program", tmp_path / "file")
    assert done.returncode == 0, done.stdout + done.stderr
