"""Hints name what can be installed, and where from; a folder of sources does not pass for an installation."""

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from mucudnn.extras import install_command

ROOT = Path(__file__).parents[2]


def install(monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None) -> None:
    """Pretend that pip installed mucudnn from an origin, which its file direct_url.json describes."""
    text = None if origin is None else json.dumps(origin)
    distribution = type("Distribution", (), {"read_text": lambda self, name: text})
    monkeypatch.setattr(metadata, "distribution", lambda name: distribution())


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'mucudnn[report]'"),
        ({"url": "https://example.org/mucudnn.whl", "archive_info": {}}, "pip install 'mucudnn[report]'"),
        ({"url": "file:///tmp/mucudnn-0.1.0.whl", "archive_info": {}}, "pip install 'mucudnn[report]'"),
        ({"url": "file:///home/me/a%20b", "dir_info": {}}, "pip install '/home/me/a b[report]'"),
        ({"url": "file:///src/mu", "dir_info": {"editable": True}}, "pip install -e '/src/mu[report]'"),
    ],
)
def test_a_clone_is_installed_again_from_its_folder(
    origin: dict[str, Any] | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, origin)
    assert install_command("report") == command


def test_several_extras_are_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    assert install_command("report", "torch") == "pip install 'mucudnn[report,torch]'"


def test_sources_without_the_compiled_part_say_that_they_hide_the_installed_package(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "mucudnn", tmp_path / "mucudnn", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    # -S, because an editable installation would find the compiled part.
    ended = subprocess.run(
        [sys.executable, "-S", "-c", "import mucudnn"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
    )
    (*_, last) = ended.stderr.splitlines()
    assert last.startswith(
        f"ImportError: mucudnn is imported from {tmp_path}/mucudnn, which holds its sources"
    )
    assert "pip install -e ." in last
