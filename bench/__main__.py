"""The one door to the bench: `python -m bench list | run NAME... | tables`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.lib.record import put, read_own
from bench.programs import PROGRAMS, Program


def list_programs() -> None:
    """Print the programs with the minutes that they take, about."""
    rows = Table(box=None)
    for column in ("suite", "name", "minutes", "measures"):
        rows.add_column(column, justify="right" if column == "minutes" else "left")
    for program in PROGRAMS.values():
        rows.add_row(program.suite, program.name, f"{program.minutes:g}", program.about)
    Console(width=120).print(rows)


def run(program: Program, words: Sequence[str]) -> None:
    """Measure the figures of a program, and write each of them as soon as it is there.

    A figure of a busy machine is printed as such and replaces no earlier one.
    """
    module = program.load()
    if program.suite == "gpu":
        module.main(words)
        return
    from bench.lib.host import describe_host  # `list` and `tables` need no engine

    parser = argparse.ArgumentParser(prog=f"python -m bench run {program.name}", description=program.about)
    if hasattr(module, "add_options"):
        module.add_options(parser)
    resumes = getattr(module, "RESUMES", False)
    if resumes:
        parser.add_argument("--again", action="store_true", help="measure what this machine has, too")
    options = parser.parse_args(words)
    options.program = program.name
    machine = describe_host()
    former = [] if not resumes or options.again else read_own(program.records, machine)
    options.done = {record.case for record in former if program.owns(record)}
    is_complete = bool(options.done)
    for record in module.measure(options):
        is_complete = False
        if not record.is_busy:
            put(program.records, machine, record)
        print(record, flush=True)
    if is_complete:
        print(f"{program.name}: this machine has its figures; --again measures them again")


def without_openblas_environment() -> None:
    """Start this program again without its OPENBLAS_* variables, if any is set.

    OPENBLAS_CORETYPE or OPENBLAS_L2_SIZE can make OpenBLAS 1.6 times as slow, and division look better than
    it is.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    if len(kept) != len(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], kept)


def main() -> None:
    """Read the command, and do it."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the programs, with about the minutes that they take")
    running = commands.add_parser("run", help="measure; NAME --help shows a program's own options")
    running.add_argument("names", nargs="+", choices=PROGRAMS, metavar="NAME")
    commands.add_parser("tables", help="make the tables and pictures of the committed records")
    words = sys.argv[1:]
    # The first flag behind a name and everything after it belong to the program.
    own = next((at for at, word in enumerate(words) if at > 1 and word.startswith("-")), len(words))
    arguments = parser.parse_args(words[:own])
    if arguments.command == "list":
        list_programs()
    elif arguments.command == "tables":
        from bench.tables import write_tables

        write_tables()
    else:
        if own < len(words) and len(arguments.names) > 1:
            parser.error("options belong to one program: name it alone")
        without_openblas_environment()
        for name in arguments.names:
            run(PROGRAMS[name], words[own:])


if __name__ == "__main__":
    main()
