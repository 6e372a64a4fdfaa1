"""A release names its repository, and the links and the picture of its README work on PyPI."""

import re
import runpy
import shutil
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
SCRIPT = TOP / ".ci" / "urls"
SOURCE = "https://github.com/owner/mucudnn"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(TOP / name, tmp_path)
    runpy.run_path(str(SCRIPT))["main"](tmp_path, "https://github.com", "owner/mucudnn", "abc123")
    return tmp_path


def test_the_project_has_urls(release: Path) -> None:
    project = tomllib.loads((release / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["urls"] == {
        "Documentation": "https://owner.github.io/mucudnn/",
        "Source": SOURCE,
        "Issues": f"{SOURCE}/issues",
        "Changelog": f"{SOURCE}/blob/abc123/CHANGELOG.md",
    }


def test_each_link_of_the_readme_leads_to_a_file_of_the_release(release: Path) -> None:
    shown, written = ((folder / "README.md").read_text("utf-8") for folder in (release, TOP))
    links, former = (re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", text) for text in (shown, written))
    assert len(links) == len(former) > 20
    for (picture, link), (_, target) in zip(links, former, strict=True):
        if target.startswith("http"):
            assert link == target
        else:
            assert link == f"{SOURCE}/{'raw' if picture else 'blob'}/abc123/{target}"
            assert (TOP / target.partition("#")[0]).exists(), target
