"""`mucudnn completion`: print what completes commands and flags in a shell, or the manual page."""

import argparse
from collections.abc import Iterator
from importlib.util import find_spec

from mucudnn.errors import MissingExtraError
from mucudnn.extras import install_command
from mucudnn.output.streams import results
from mucudnn.problems.sources import TRAINABLE, bundled_networks

HELP = "print a script that completes commands and flags in a shell, or the manual page"
DESCRIPTION = "Prints the script or the page on the standard output. It knows the commands of this version."
EXAMPLES = (
    "mucudnn completion bash > ~/.local/share/bash-completion/completions/mucudnn",
    "mucudnn completion zsh > ~/.zfunc/_mucudnn",
    "mucudnn completion man > ~/.local/share/man/man1/mucudnn.1",
)

_HEADLINE = "make convolutions as fast as they can be within the memory that you allow"
_FILES = ("PLAN", "FILE", "CACHE", "HTML", "PROGRAM", "OLD", "NEW")
# The bash function that completes an argument, by the argument's name in the help text.
_NETWORKS = {"NETWORK|FILE|DESCRIPTOR": "_mucudnn_networks", "NETWORK|FILE": "_mucudnn_trainable"}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "kind", choices=("bash", "zsh", "tcsh", "man"), metavar="bash|zsh|tcsh|man",
        help="the shell, or `man` for the manual page",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Print the script or the page. Raises MissingExtraError."""
    from mucudnn.cli import make_parser

    package = "argparse_manpage" if arguments.kind == "man" else "shtab"
    if find_spec(package) is None:
        raise MissingExtraError(f"{package} is not installed: {install_command('completion')}")
    page = _manual_page if arguments.kind == "man" else _script
    print(page(make_parser(), arguments.kind), file=results())


def _manual_page(parser: argparse.ArgumentParser, _: str) -> str:
    """Return the page in the language of man."""
    from argparse_manpage.manpage import Manpage

    parser.man_short_description = _HEADLINE  # type: ignore[attr-defined]  # the page's first line
    return str(Manpage(parser, format="single-commands-section"))


def _script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for a shell."""
    import shtab

    for action in _actions(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab reads this attribute
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif isinstance(action.metavar, str) and action.metavar in _NETWORKS:
            bash = {"bash": _NETWORKS[action.metavar]}
            action.complete = {**shtab.FILE, **bash}  # type: ignore[attr-defined]
    script: str = shtab.complete(parser, shell, preamble={"bash": _bash_networks()})
    return script


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of all its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


def _bash_networks() -> str:
    """Return the functions for bash that complete networks and files."""
    return "".join(
        f'{function}() {{ compgen -W "{" ".join(names)}" -- "$1"; compgen -f -- "$1"; }}\n'
        for function, names in zip(_NETWORKS.values(), (bundled_networks(), TRAINABLE), strict=True)
    )
