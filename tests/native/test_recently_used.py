"""Tables of limited size forget what was used longest ago, and no workspace size that a program has read."""

from pathlib import Path

from programs import run, run_compiler

NATIVE = Path(__file__).parents[2] / "native"


def test_the_least_recently_used_value_is_forgotten_and_no_answer_about_a_workspace(tmp_path: Path) -> None:
    sources = (Path(__file__).with_name("recently_used.cpp"), NATIVE / "shim/decisions/workspace_answers.cpp")
    built = run_compiler("cpp", "-O1", "-pthread", f"-I{NATIVE}", *sources, "-o", tmp_path / "program")
    assert built.returncode == 0, built.stderr
    done = run(tmp_path / "program")
    assert done.returncode == 0, done.stdout + done.stderr
