"""The page of all commands, their help texts and the completion of shells come from the parsers."""

import argparse
import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mucudnn.cli import main, make_parser
from mucudnn.extras import install_command

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "commands"
Capture = pytest.CaptureFixture[str]


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from parsers(command)


def examples(parser: argparse.ArgumentParser) -> list[str]:
    head, *lines = (parser.epilog or "").split("\n\n")[0].splitlines()
    assert head in ("example:", "examples:"), parser.prog
    return [line.strip() for line in lines]


@pytest.mark.skipif(not SCRIPT.exists(), reason="a source distribution comes without .ci")
def test_the_page_of_all_commands_is_that_of_the_parsers() -> None:
    page = runpy.run_path(str(SCRIPT))["main"]()
    again = "write the page again: .ci/commands > docs/commands.md"
    assert (ROOT / "docs" / "commands.md").read_text() == page, again


def test_each_help_text_has_examples_and_each_example_is_a_command() -> None:
    for parser in parsers(make_parser()):
        shown = examples(parser)
        assert shown, parser.prog
        for example in shown:
            words = shlex.split(example.partition(" > ")[0])
            assert words[: len(parser.prog.split())] == parser.prog.split()
            make_parser().parse_args(words[1:])
        assert all(example in parser.format_help() for example in shown)


def test_each_command_of_the_readme_is_one() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    commands = re.findall(r"`(mucudnn [^`]+)`", readme)
    assert len(commands) > 3
    for command in commands:
        make_parser().parse_args(shlex.split(command)[1:])


def complete(script: Path, *words: str) -> list[str]:
    """Return what bash offers for the last word."""
    typed = " ".join(map(shlex.quote, words))
    command = (
        f"source {shlex.quote(str(script))}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; "
        f'_shtab_mucudnn mucudnn {shlex.quote(words[-1])}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    shell = ["bash", "--norc", "-c", command]
    return subprocess.run(shell, capture_output=True, text=True, check=True).stdout.split()


def test_bash_completes_commands_flags_and_networks(tmp_path: Path, capsys: Capture) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)
    assert complete(script, "mucudnn", "opt") == ["optimize"]
    assert complete(script, "mucudnn", "plan", "ver") == ["verify"]
    assert complete(script, "mucudnn", "optimize", "--total") == ["--total-workspace"]
    assert complete(script, "mucudnn", "optimize", "resnet1") == ["resnet18"]
    assert complete(script, "mucudnn", "optimize", "cosmo") == ["cosmoflow"]
    assert complete(script, "mucudnn", "memory", "googl") == ["googlenet", "googlenet-2014"]
    assert complete(script, "mucudnn", "optimize", "alexnet", "--batch-policy", "und") == ["undivided"]


def test_without_shtab_the_command_says_what_to_install(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mucudnn.cli.completion.find_spec", lambda name: None)
    assert main(["completion", "bash"]) == 1  # 4 means that there is no such engine
    assert install_command("completion") in capsys.readouterr().err
