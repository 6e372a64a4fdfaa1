"""`mucudnn doctor`: check whether `mucudnn run` works on this machine and for a program."""

import argparse
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mucudnn._native import EngineError
from mucudnn.cli import options, outputs
from mucudnn.cli.terminal import show, show_json
from mucudnn.drop_in import doctor, installation
from mucudnn.drop_in.elf import NotElfError
from mucudnn.drop_in.findings import Finding
from mucudnn.drop_in.libraries import (
    FoundLibrary,
    find_libraries,
    format_version,
    known_functions,
    shim_path,
    unknown_functions,
    version_of,
)
from mucudnn.errors import MucudnnError, NoEngineError
from mucudnn.measuring.engines import SONAME, open_engine
from mucudnn.output.files import write_lines

HELP = "see whether `mucudnn run` works, for which programs, and why not"
DESCRIPTION = (
    "Checks the installation, the cache and the way to a GPU. Lists the cuDNN libraries of this machine, "
    "opens one in a child process under mucudnn's own, and says which library each PROGRAM would get, "
    "without starting it: a file, a command or an installed Python package. The exit code is 1 if something "
    "does not work."
)
EXAMPLES = (
    "mucudnn doctor",
    "mucudnn doctor torch python",
)
_MARKS = {True: "works:", False: "does not work:", None: "cannot say:"}
_NO_CALLS = "calls no cuDNN:"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="such as ./train, python or torch")
    described = "write how cuDNN describes the current GPU, for `mucudnn benchmark --device-properties`"
    outputs.add_output(parser, "FILE", described, "--write-device-properties")
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print the findings. Raises MucudnnError if one says that something does not work."""
    if arguments.write_device_properties is not None:
        outputs.check(arguments.write_device_properties, outputs.DEVICE, force=arguments.force)
        _write_device_properties(arguments.write_device_properties)
        return
    checks = (
        installation.check_packages,
        installation.check_cache,
        installation.check_gpu,
        doctor.try_drop_in,
    )
    findings = [check() for check in checks]
    for name in arguments.programs:
        findings += doctor.examine(name)
    if arguments.json:
        show_json(_to_json(findings))
    else:
        _show(findings)
    if any(finding.works is False for finding in findings):
        raise MucudnnError("something does not work: see above")


def _to_json(findings: list[Finding]) -> dict[str, Any]:
    """Return what an issue needs to know of this machine."""
    return {
        "versions": [{"name": name, "version": version} for name, version in installation.versions().items()],
        "processor": {"machine": platform.machine(), "cores": os.cpu_count()},
        "drop_in": {"path": str(shim_path()), "functions": len(known_functions())},
        "libraries": [
            {"path": str(library.path), "description": ", ".join(_describe(library))}
            for library in find_libraries()
        ],
        "findings": [asdict(finding) for finding in findings],
    }


def _show(findings: list[Finding]) -> None:
    show(f"mucudnn's library: {shim_path()}, {len(known_functions())} functions", "")
    libraries = find_libraries()
    if not libraries:
        show(f"No other {SONAME} was found: pip install nvidia-cudnn-cu13, or set MUCUDNN_LIBRARY.")
    for library in libraries:
        show(f"{library.path}\n    {', '.join(_describe(library))}")
    show("")
    for finding in findings:
        mark = _MARKS[finding.works] if finding.uses_cudnn else _NO_CALLS
        show(f"{mark} {finding.subject}\n    {finding.text}")


def _write_device_properties(path: Path) -> None:
    engine = open_engine("cudnn", 1)
    try:
        properties = engine.device_properties()
    except EngineError as error:
        raise NoEngineError(f"{engine.library} does not describe its device: {error}") from None
    write_lines(path, [properties, "\n"])
    show(f"{engine.device}, as {engine.library} describes it: {path}")


def _describe(library: FoundLibrary) -> Iterator[str]:
    version, reason = version_of(library.path)
    yield reason if version is None else f"version {format_version(version)}"
    yield f"found through {library.origin}"
    try:
        unknown = unknown_functions(library.path)
    except (NotElfError, OSError):
        return
    if unknown:
        yield f"{len(unknown)} functions that mucudnn does not know: {', '.join(unknown[:3])}..."
