"""`mucudnn run`: run a program under the drop-in."""

import argparse
import errno
import os
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from mucudnn import settings
from mucudnn.cli import options, outputs
from mucudnn.cli.terminal import Terminal
from mucudnn.costs.cache import default_path
from mucudnn.costs.file import CacheError
from mucudnn.drop_in.elf import NotElfError
from mucudnn.drop_in.libraries import find_libraries, preloading, shim_path, unknown_functions
from mucudnn.drop_in.older import find_library_for_8
from mucudnn.errors import MucudnnError, NoEngineError, UsageError
from mucudnn.measuring.engines import chosen_library
from mucudnn.output.streams import restore_stdout
from mucudnn.plans.plan import Plan
from mucudnn.sizes import parse_limit, spell_limit

HELP = "run a program with mucudnn in front of its cuDNN"
DESCRIPTION = (
    "Replaces itself with COMMAND, with mucudnn's libcudnn.so.9 preloaded: signals and exit code are the "
    "program's own, and its children run the same way. Convolutions are divided as the plan says. Without a "
    "plan they are measured when the program first asks about them, and the measurements are kept. "
    "Without a limit no convolution takes more workspace than the program's own choice would."
)
EXAMPLES = (
    "mucudnn run --workspace 64MiB -- python train.py",
    "mucudnn run --plan net.plan -- python train.py",
    "mucudnn run --record net.txt -- python train.py",
)


class CannotRunError(MucudnnError):
    """The error of a command that cannot be started, with the exit code that shells and env(1) use."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = (
        "mucudnn run [-h] [--workspace SIZE] [--plan PLAN] [--online] [--numerics fast|strict] "
        "[--batch-invariant] [--thorough] [--record FILE] -- COMMAND..."
    )
    parser.add_argument(
        "--workspace", type=parse_limit, default=argparse.SUPPRESS, metavar="SIZE",
        help="the most workspace of one convolution, such as 64MiB, or none for no limit (default: what the "
        "program's own choice takes)",
    )  # fmt: skip
    options.add_arguments(
        parser,
        ("--plan PLAN", options.parse_path, "follow this plan"),
        ("--online", None, "measure convolutions that are not in the plan (default without a plan)"),
        options.THOROUGH,
        options.numerics("without FFT and Winograd; the program's own math type may allow TF32"),
        options.batch_invariant("each sample runs alone, by one algorithm for all mini-batches"),
        (
            "--record FILE", outputs.CONVOLUTIONS.parse,
            "divide nothing, and add the program's convolutions with the number of their calls to this file, "
            "which `mucudnn optimize` reads",
        ),
    )  # fmt: skip
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="program and its arguments"
    )


def run(arguments: argparse.Namespace) -> None:
    """Replace this process with the command, under the drop-in, and return only by an exception.

    Raises UsageError, NoEngineError, CannotRunError and other MucudnnErrors.
    """
    command = arguments.command
    if command and command[0] == "--":
        command = command[1:]
    if not command:
        raise UsageError("there is no command to run: write mucudnn run -- COMMAND...")
    for setting in settings.SETTINGS:
        setting.read()  # a value that the drop-in would ignore with a warning is an error here
    chosen = chosen_library()
    if chosen and not chosen.is_file():
        raise NoEngineError(f"MUCUDNN_LIBRARY: there is no file {chosen}")
    # The drop-in knows no `~`.
    library = {} if chosen is None else {settings.LIBRARY.variable: settings.LIBRARY.read()}
    refuse_unknown_functions()
    shim = shim_path()
    if re.search(r"[\s:$]", str(shim)):
        raise MucudnnError(f"{shim} cannot be preloaded: LD_PRELOAD takes no path with blanks, ':' or '$'")
    program = shutil.which(command[0])
    if program is None:
        exists = os.path.exists(command[0])
        reason = "is not a program that may be run" if exists else "there is no such command"
        raise CannotRunError(f"{command[0]}: {reason}", 126 if exists else 127)
    if older := find_library_for_8(Path(program), command[1:]):
        raise MucudnnError(
            f"not run: {command[0]} loads {older}, which is written for cuDNN 8; mucudnn stands in for "
            "cuDNN 9 only. Run the program without mucudnn, or use a newer version of it"
        )
    # Only the drop-in in this process, not those in its children, reports that nobody called cuDNN.
    added = {**library, **_variables(arguments), "MUCUDNN_RUN": str(os.getpid())}
    environment = preloading(shim, {**_environment_of_caller(), **added})
    # Python ignores these signals, and the program would inherit that.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    restore_stdout()
    try:
        os.execve(program, command, environment)
    except OSError as error:
        if error.errno != errno.ENOEXEC or _is_binary(program):
            raise CannotRunError(f"{program}: {error.strerror}", 126) from None
    # sh runs a script whose first line names no interpreter, as a shell does.
    os.execve("/bin/sh", ["/bin/sh", program, *command[1:]], environment)


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the variables of the drop-in, from the flags or else the environment."""
    say, variables = Terminal().message, dict[settings.Setting, str]()
    if arguments.record:
        if arguments.plan or arguments.online or "workspace" in arguments:
            raise UsageError("--record divides nothing: omit --workspace, --plan and --online")
        file = str(arguments.record.absolute())
        say(f"Recording into {file}")
        say(f"Next: mucudnn optimize {file}")
        return {settings.RECORD.variable: file, settings.MODE.variable: "record"}
    if "workspace" in arguments:
        variables[settings.WORKSPACE_LIMIT] = spell_limit(arguments.workspace)
    if _disable_autotuning(os.environ.get("XLA_FLAGS", "")):
        # XLA still asks for the workspace of each plan, so the drop-in cannot know this by itself.
        say("Warning: with --xla_gpu_autotune_level=0 XLA provides no workspace: the limit is 0 bytes")
        variables[settings.WORKSPACE_LIMIT] = "0"
    plan = arguments.plan or settings.PLAN.read()
    if arguments.plan or arguments.online:
        variables[settings.MODE] = "online" if arguments.online else "plan"
    elif not os.environ.get(settings.MODE.variable):
        variables[settings.MODE] = "plan" if plan else "online"
    if plan:
        if variables.get(settings.MODE, settings.MODE.read()) in ("plan", "online"):
            Plan.read(plan)  # an error now is better than a warning later
            if not os.path.isfile(plan):
                raise UsageError(f"the plan {plan} cannot be read again by the program: give a file")
        variables[settings.PLAN] = os.path.abspath(plan)
    if arguments.numerics:
        variables[settings.NUMERICS] = arguments.numerics
    if arguments.batch_invariant:
        variables[settings.BATCH_INVARIANT] = "1"
    if arguments.thorough:
        variables[settings.MEASURING] = "thorough"
    try:
        cache = default_path()
    except CacheError as error:
        say(f"Warning: {error}; what is measured is lost afterwards")
    else:
        with suppress(OSError):  # without the folder nothing is kept, and the drop-in warns about that
            cache.parent.mkdir(parents=True, exist_ok=True)
        variables[settings.CACHE] = str(cache)
    return {setting.variable: value for setting, value in variables.items()}


def _disable_autotuning(xla_flags: str) -> bool:
    """Return whether these flags switch XLA's autotuning off. The last of several levels counts."""
    return re.findall(r"--xla_gpu_autotune_level=(\S+)", xla_flags)[-1:] == ["0"]


def _environment_of_caller() -> dict[str, str]:
    """Return the environment without the LC_CTYPE that Python sets for itself in the locale C (PEP 538)."""
    environment = dict(os.environ)
    with suppress(OSError):  # without /proc the program gets Python's locale
        variables = dict(
            line.partition(b"=")[::2] for line in Path("/proc/self/environ").read_bytes().split(b"\0")
        )
        environment.pop("LC_CTYPE", None)
        if b"LC_CTYPE" in variables:
            environment["LC_CTYPE"] = os.fsdecode(variables[b"LC_CTYPE"])
    return environment


def _is_binary(path: str) -> bool:
    """Return whether the first line of a file is not text, which is how shells recognise a binary."""
    with open(path, "rb") as file:
        return b"\0" in file.readline(256)


def refuse_unknown_functions() -> None:
    """Raise MucudnnError if a cuDNN has functions that the drop-in lacks, because a program may need them.

    Only MUCUDNN_LIBRARY is checked if it is set, otherwise every library that can be found.
    """
    libraries = find_libraries()
    if libraries and libraries[0].origin == settings.LIBRARY.variable:
        libraries = libraries[:1]
    for library in libraries:
        try:
            unknown = unknown_functions(library.path)
        except (NotElfError, OSError):
            continue  # if a program takes this library, the loader reports the error
        if unknown:
            some = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
            raise MucudnnError(
                f"not run: {library.path} has {len(unknown)} functions that mucudnn does not know ({some}); "
                "a program that needs one of them would not start. Upgrade mucudnn, or set MUCUDNN_LIBRARY "
                "to the library that the program uses"
            )
