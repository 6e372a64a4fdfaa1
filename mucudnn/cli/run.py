"""`mucudnn run`: a program under the drop-in."""

import argparse
import os
import re
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress

from mucudnn import settings
from mucudnn.cli import options
from mucudnn.costs.cache import default_path
from mucudnn.drop_in.elf import NotElfError
from mucudnn.drop_in.libraries import chosen_library, find_libraries, preloading, shim_path, unknown_functions
from mucudnn.errors import MucudnnError, NoEngineError, UsageError
from mucudnn.plans.plan import read_plan
from mucudnn.sizes import parse_limit

HELP = "run a program with mucudnn in front of its cuDNN"
DESCRIPTION = (
    "Replaces itself by COMMAND, with mucudnn's libcudnn.so.9 preloaded: signals and exit code are the "
    "program's own, and its children are run the same way. Convolutions are divided as the plan says or, "
    "without one, as measuring them when the program first asks about them says; what was measured is kept. "
    "Without a limit none takes more workspace than the program's own choice would."
)
UNSET = object()


class CannotRunError(MucudnnError):
    """The command cannot be started; codes as of shells and env(1)."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "mucudnn run [-h] [--workspace SIZE] [--plan PLAN] [--online] -- COMMAND..."
    parser.add_argument(
        "--workspace", type=options.checked(parse_limit), default=UNSET, metavar="SIZE",
        help="the most workspace of one convolution, such as 64MiB, or none for no limit (default: what the "
        "program's own choice takes)",
    )  # fmt: skip
    parser.add_argument("--plan", type=options.checked(options.path), metavar="PLAN", help="follow this plan")
    parser.add_argument(
        "--online", action="store_true", help="measure what is not in the plan (default without a plan)"
    )
    add_command(parser)


def run(arguments: argparse.Namespace) -> None:
    """Become the command. Returns only by an exception."""
    become("run", arguments.command, lambda: _variables(arguments))


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    """What the flags, or without them the environment, ask of the drop-in."""
    variables = {}
    if arguments.workspace is not UNSET:
        size = arguments.workspace
        variables[settings.WORKSPACE_LIMIT.variable] = "none" if size is None else str(size)
    if arguments.plan:
        read_plan(arguments.plan)  # an error now is better than a warning later
        variables[settings.PLAN.variable] = str(arguments.plan.absolute())
    if arguments.plan or arguments.online:
        variables[settings.MODE.variable] = "online" if arguments.online else "plan"
    elif not os.environ.get(settings.MODE.variable):
        variables[settings.MODE.variable] = "plan" if settings.PLAN.read() else "online"
    cache = default_path().absolute()
    with suppress(OSError):  # then nothing is kept, and the drop-in says so
        cache.parent.mkdir(parents=True, exist_ok=True)
    variables[settings.CACHE.variable] = str(cache)
    return variables


def add_command(parser: argparse.ArgumentParser) -> None:
    """The command to become."""
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="program and its arguments"
    )


def become(name: str, command: list[str], variables: Callable[[], dict[str, str]]) -> None:
    """Become the command that `mucudnn NAME` was given, with the drop-in and these variables.

    Returns only by an exception.
    """
    if command and command[0] == "--":
        command = command[1:]
    if not command:
        raise UsageError(f"no command: write mucudnn {name} -- COMMAND...")
    for setting in settings.SETTINGS:
        setting.read()  # what the shim would ignore with a warning is an error here
    chosen = chosen_library()
    if chosen and not chosen.is_file():
        raise NoEngineError(f"MUCUDNN_LIBRARY: there is no file {chosen}")
    refuse_unknown_functions()
    shim = shim_path()
    if re.search(r"[\s:$]", str(shim)):
        raise MucudnnError(f"{shim} cannot be preloaded: LD_PRELOAD takes no path with blanks, ':' or '$'")
    program = shutil.which(command[0])
    if program is None:
        exists = os.path.exists(command[0])
        reason = "is not a program that may be run" if exists else "there is no such command"
        raise CannotRunError(f"{command[0]}: {reason}", 126 if exists else 127)
    environment = preloading(shim, {**os.environ, **variables()})
    # Python ignores this signal, and a program would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execve(program, command, environment)
    except OSError as error:
        raise CannotRunError(f"{program}: {error.strerror}", 126) from None


def refuse_unknown_functions() -> None:
    """Raise MucudnnError where a program could miss a function of a newer cuDNN.

    With MUCUDNN_LIBRARY that library is looked at, without it all that can be found.
    """
    libraries = find_libraries()
    if libraries and libraries[0].origin == settings.LIBRARY.variable:
        libraries = libraries[:1]
    for library in libraries:
        try:
            unknown = unknown_functions(library.path)
        except (NotElfError, OSError):
            continue  # the loader will say so, if it comes to that
        if unknown:
            some = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
            raise MucudnnError(
                f"not run: {library.path} has {len(unknown)} functions that mucudnn does not know ({some}); "
                "a program that needs one would not start. Take a newer mucudnn, or set MUCUDNN_LIBRARY to "
                "the library that the program uses"
            )
