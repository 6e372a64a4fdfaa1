"""`mucudnn completion`: print what completes commands and flags in a shell."""

import argparse
from collections.abc import Iterator
from importlib.util import find_spec

from mucudnn.errors import MissingExtraError
from mucudnn.extras import install_command
from mucudnn.output.streams import results
from mucudnn.problems.sources import TRAINABLE, bundled_networks

DESCRIPTION = "Prints the script on the standard output. It knows the commands of this version."
EXAMPLES = (
    "mucudnn completion bash > ~/.local/share/bash-completion/completions/mucudnn",
    "mucudnn completion zsh > ~/.zfunc/_mucudnn",
)

# The bash function that completes an argument, by the argument's name in the help text.
_NETWORKS = {"NETWORK|FILE|DESCRIPTOR": "_mucudnn_networks", "NETWORK|FILE": "_mucudnn_trainable"}
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
        if action.metavar in (*_FILES, *_NETWORKS):
            bash = {"bash": _NETWORKS[action.metavar]} if action.metavar in _NETWORKS else {}
            action.complete = {**shtab.FILE, **bash}  # type: ignore[attr-defined]  # shtab reads this
    networks = zip(_NETWORKS.values(), (bundled_networks(), TRAINABLE), strict=True)
    functions = (
        f'{function}() {{ compgen -W "{" ".join(names)}" -- "$1"; compgen -f -- "$1"; }}\n'
        for function, names in networks
    )
    script = shtab.complete(parser, arguments.shell, preamble={"bash": "".join(functions)})
    print(script, file=results())


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of all its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
