"""`mucudnn doctor`: check whether `mucudnn run` works on this machine and for a program."""

import argparse
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mucudnn._native import EngineError
from mucudnn.cli import options, outputs
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
from mucudnn.errors import NoEngineError
from mucudnn.measuring.engines import SONAME, open_engine
from mucudnn.output.answers import Answer, Lines, show
from mucudnn.output.files import write_lines

HELP = "see whether `mucudnn run` works, for which programs, and why not"
DESCRIPTION = (
    "Checks the installation, the cache and the way to a GPU. Lists the cuDNN libraries of "
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


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    described = "write how cuDNN describes the current GPU, for `mucudnn optimize --device-properties`"
    flag = "--write-device-properties FILE"
    programs = ("programs PROGRAM*", str, "such as ./train, python or torch")
    options.add_arguments(parser, programs, (flag, outputs.DEVICE.parse, described), options.JSON)


@dataclass(frozen=True)
class Diagnosis(Answer):
    """The versions, libraries and findings that an issue needs to name."""

    versions: Sequence[dict[str, str]]
    processor: dict[str, Any]
    drop_in: dict[str, Any]
    libraries: Sequence[dict[str, str]]
    findings: Sequence[Finding]
    slower: Sequence[str]

    @property
    def failure(self) -> str:  # type: ignore[override]
        """Return that something does not work, if a finding says so."""
        broken = any(finding.works is False for finding in self.findings)
        return "something does not work: see above" if broken else ""

    def lines(self) -> Lines:
        """Yield the versions, the libraries and the findings."""
        yield ", ".join(f"{package['name']} {package['version']}" for package in self.versions)
        yield ""
        yield "mucudnn's library, the drop-in:"
        yield f"    {self.drop_in['path']}"
        yield f"    stands in for {self.drop_in['functions']} functions of cuDNN"
        yield ""
        for library in self.libraries:
            yield library["path"]
            yield f"    {library['description']}"
        if not self.libraries:
            advice = (
                "pip install nvidia-cudnn-cu13, or set MUCUDNN_LIBRARY. Programs without cuDNN need none."
            )
            yield f"No other {SONAME} was found: {advice}"
        yield ""
        for finding in self.findings:
            yield f"{_MARKS[finding.works] if finding.uses_cudnn else _NO_CALLS} {finding.subject}"
            yield f"    {finding.text}"
        yield from (f"slower: {text}" for text in self.slower)


def run(arguments: argparse.Namespace) -> Answer | None:
    """Find what works, or describe the device."""
    if arguments.write_device_properties:
        _write_device_properties(arguments.write_device_properties)
        return None
    checks = (
        installation.check_engine,
        installation.check_cache,
        installation.check_gpu,
        doctor.try_drop_in,
    )
    findings = [check() for check in checks]
    for name in arguments.programs:
        findings += doctor.examine(name)
    return Diagnosis(
        [{"name": name, "version": version} for name, version in installation.versions().items()],
        {"machine": platform.machine(), "cores": os.cpu_count()},
        {"path": str(shim_path()), "functions": len(known_functions())},
        [{"path": str(x.path), "description": ", ".join(_describe(x))} for x in find_libraries()],
        findings,
        [*installation.list_slowing_variables()] if findings[0].works else [],
    )


def _write_device_properties(path: Path) -> None:
    engine = open_engine("cudnn", 1)
    try:
        properties = engine.device_properties()
    except EngineError as error:
        raise NoEngineError(f"{engine.library} does not describe its device: {error}") from None
    write_lines(path, [properties, "\n"])
    show(f"{engine.device}, as {engine.library} describes it")


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
