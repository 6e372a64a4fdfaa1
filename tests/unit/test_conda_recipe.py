"""The conda package has the version and the requirements of the one that pip installs."""

import re
import tomllib
from pathlib import Path

import mucudnn

TOP = Path(__file__).parents[2]
RECIPE = (TOP / "conda" / "recipe.yaml").read_text()
OPENBLAS = "scipy-openblas32"


def required() -> dict[str, str]:
    """Return the bounds of each package that mucudnn needs, as pyproject.toml has them."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    pairs = (re.match(r"([\w-]+)(.*)", requirement) for requirement in project["dependencies"])
    return {pair[1]: pair[2] for pair in pairs if pair}


def test_it_has_the_version() -> None:
    assert f'version: "{mucudnn.__version__}"' in RECIPE


def test_it_requires_what_pip_requires() -> None:
    run = RECIPE.split("  run:\n")[1].split("\n\n")[0]
    packages = dict(re.findall(r"- ([\w-]+)(?: (.*))?", run))
    assert packages.pop("python") == ""
    assert packages == {name: bounds for name, bounds in required().items() if name != OPENBLAS}


def test_its_openblas_is_new_enough() -> None:
    version = re.search(r'openblas: "([\d.]+)"', RECIPE)
    least = required()[OPENBLAS].removeprefix(">=")
    assert version
    assert [int(part) for part in version[1].split(".")] >= [int(part) for part in least.split(".")]
