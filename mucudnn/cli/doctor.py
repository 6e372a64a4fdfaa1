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
from mucudnn.cli.terminal import prose, show, show_json
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
    "Checks the installation, its packages, the cache and the way to a GPU. Lists the cuDNN libraries of "
    "this machine, opens one in a child process under mucudnn's own, and says which library each PROGRAM "
    "would get, without starting it: a file, a command or an installed Python package. The exit code is 1 "
    "if something does not work."
)
EXAMPLES = (
    "mucudnn doctor",
    "mucudnn doctor torch python",
)
_MARKS = {True: "works:", False: "does not work:", None: "not checked:"}
_NO_CALLS = "calls no cuDNN:"
_INDENT = " " * 4
_TIE = "\xa0"  # a space at which no line is broken


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
        installation.check_engine,
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
    # A line must not end between a name and its version.
    packages = [f"{name}{_TIE}{version}" for name, version in installation.versions().items()]
    show(prose(", ".join(packages)).replace(_TIE, " "), "")
    show("mucudnn's library, the drop-in:", f"    {shim_path()}")
    show(prose(f"stands in for {len(known_functions())} functions of cuDNN", _INDENT), "")
    libraries = find_libraries()
    if not libraries:
        advice = "pip install nvidia-cudnn-cu13, or set MUCUDNN_LIBRARY. Programs without cuDNN need none."
        show(prose(f"No other {SONAME} was found: {advice}"))
    for library in libraries:
        show(str(library.path), prose(", ".join(_describe(library)), _INDENT))
    show("")
    for finding in findings:
        mark = _MARKS[finding.works] if finding.uses_cudnn else _NO_CALLS
        show(f"{mark} {finding.subject}", prose(finding.text, _INDENT))


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
