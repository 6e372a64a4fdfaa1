"""`mucudnn run`: a program under the drop-in."""

import argparse
import os
import re
import shutil
import signal

from mucudnn import settings
from mucudnn.elf import NotElfError
from mucudnn.errors import MucudnnError, NoEngineError, UsageError
from mucudnn.libraries import chosen_library, find_libraries, preloading, shim_path, unknown_functions

HELP = "run a program with mucudnn in front of its cuDNN"
DESCRIPTION = (
    "Replaces itself by COMMAND, with mucudnn's libcudnn.so.9 preloaded: signals and exit code are the "
    "program's own, and its children are run the same way. This version passes every call on to the real "
    "library, unchanged."
)


class CannotRunError(MucudnnError):
    """The command cannot be started; codes as of shells and env(1)."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "mucudnn run [-h] -- COMMAND..."
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="program and its arguments"
    )


def run(arguments: argparse.Namespace) -> None:
    """Become the command. Returns only by an exception."""
    command: list[str] = arguments.command
    if command and command[0] == "--":
        command = command[1:]
    if not command:
        raise UsageError("no command: write mucudnn run -- COMMAND...")
    for setting in settings.SHIM:
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
    # Python ignores this signal, and a program would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execve(program, command, preloading(shim, dict(os.environ)))
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
