"""The archive of sources has what a build needs, and stays small."""

import tarfile
from pathlib import Path

import pytest
from programs import is_missing

TOP = Path(__file__).parents[2]
LIMIT = 900_000  # bytes; the sources alone take 780,000
CODE = {"CMakeLists.txt", "mucudnn", "native", "pyproject.toml"}
TEXTS = {
    "CHANGELOG.md", "CITATION.cff", "CODE_OF_CONDUCT.md", "LICENSE", "PKG-INFO", "README.md", "SECURITY.md",
}  # fmt: skip


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the archive that a release uploads, and return its path."""
    try:
        from scikit_build_core.build import build_sdist
    except ImportError:
        is_missing("needs scikit-build-core: pip install scikit-build-core")
    folder = tmp_path_factory.mktemp("archive")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(TOP)
        return folder / build_sdist(str(folder))


@pytest.fixture(scope="module")
def files(archive: Path) -> set[str]:
    """Return the paths in the archive, without the folder that holds all of them."""
    with tarfile.open(archive) as opened:
        assert not [member.name for member in opened if member.issym() or member.islnk()]
        return {member.name.partition("/")[2] for member in opened if member.isfile()}


def test_it_is_small(archive: Path) -> None:
    assert archive.stat().st_size < LIMIT


def test_it_has_nothing_but_the_code_and_what_a_visitor_reads(files: set[str]) -> None:
    assert {path.partition("/")[0] for path in files} == CODE | TEXTS
    assert not [path for path in files if path.endswith((".so", ".pyc"))]


def test_it_has_every_file_that_the_package_consists_of(files: set[str]) -> None:
    # mucudnn/solver is a link here, and a folder in the archive.
    folders = {"mucudnn": "mucudnn", "solver": "mucudnn/solver", "native": "native"}
    wanted = {
        f"{place}/{path.relative_to(TOP / folder)}"
        for folder, place in folders.items()
        for path in (TOP / folder).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".so")
    }
    assert len(wanted) > 500
    assert wanted - files == set()
