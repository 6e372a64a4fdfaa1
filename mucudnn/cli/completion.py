"""`mucudnn completion`: print what completes commands and flags in a shell."""

import argparse
from collections.abc import Iterator
from importlib.util import find_spec

from mucudnn.errors import MissingExtraError
from mucudnn.extras import install_command
from mucudnn.output.streams import results
from mucudnn.problems.sources import bundled_networks

DESCRIPTION = "Prints the script on the standard output. It knows the commands of this version."
EXAMPLES = (
    "mucudnn completion bash > ~/.local/share/bash-completion/completions/mucudnn",
    "mucudnn completion zsh > ~/.zfunc/_mucudnn",
)

_NETWORKS = "_mucudnn_networks"  # the bash function that completes a network
_FILES = ("PLAN", "FILE", "CACHE", "HTML", "PROGRAM", "OLD", "NEW", "TABLE", "TRACE")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    shells = ("bash", "zsh", "tcsh")
    parser.add_argument("shell", choices=shells, metavar="|".join(shells), help="the shell")


def run(arguments: argparse.Namespace) -> None:
    """Print the script. Raises MissingExtraError."""
    from mucudnn.cli import make_parser

    if find_spec("shtab") is None:
        raise MissingExtraError(f"shtab is not installed: {install_command('completion')}")
    import shtab

    parser = make_parser()
    for action in _actions(parser):
        if action.metavar in (*_FILES, "NETWORK"):
            bash = {"bash": _NETWORKS} if action.metavar == "NETWORK" else {}
            action.complete = {**shtab.FILE, **bash}  # type: ignore[attr-defined]  # shtab reads this
    names = " ".join(bundled_networks())
    function = f'{_NETWORKS}() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}\n'
    script = shtab.complete(parser, arguments.shell, preamble={"bash": function})
    print(script, file=results())


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of all its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
