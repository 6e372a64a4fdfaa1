"""The includes of native/ point down, as the imports of mucudnn/ do (pyproject.toml, import-linter)."""

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
MAY_INCLUDE = {
    "abi": set(),
    "core": set(),
    "cudnn": {"abi", "core"},
    "host": {"abi", "core"},
    "shim": {"abi", "core", "cudnn"},
    "bindings": {"core", "cudnn"},
}
# Each room of a folder includes itself and the rooms before it.
INNER_ROOMS = {
    "host": ("transforms", "threads", "lowering", "algorithms", "abi", "graph"),
    "shim": ("decisions", "state", "execution", "graph", "entry"),
}
INCLUDE = re.compile(r'^#include "([\w/]+)\.(?:h|hpp|def)"', re.MULTILINE)


def sources(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in {".c", ".cpp", ".h", ".hpp", ".S"}]


def includes(path: Path) -> list[str]:
    return [name for name in INCLUDE.findall(path.read_text()) if "/" in name]


def test_every_room_is_in_the_table() -> None:
    assert {path.name for path in NATIVE.iterdir() if path.is_dir()} == set(MAY_INCLUDE)


@pytest.mark.parametrize("room", MAY_INCLUDE)
def test_a_room_includes_its_own_headers_and_those_of_the_rooms_below(room: str) -> None:
    allowed = MAY_INCLUDE[room] | {room}
    wrong = [
        f"{path.relative_to(NATIVE)} includes {name}"
        for path in sources(NATIVE / room)
        for name in includes(path)
        if name.split("/")[0] not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("room", MAY_INCLUDE)
def test_the_files_of_a_room_do_not_include_each_other_in_a_circle(room: str) -> None:
    """Take a header and the source of the same name as one unit, because the header stands for both."""
    units: dict[str, set[str]] = {}
    for path in sources(NATIVE / room):
        unit = str(path.relative_to(NATIVE).with_suffix(""))
        units.setdefault(unit, set()).update(set(includes(path)) - {unit})
    try:
        TopologicalSorter(units).prepare()
    except CycleError as error:
        pytest.fail(" includes ".join(error.args[1]))


@pytest.mark.parametrize("folder", INNER_ROOMS)
def test_every_file_of_a_folder_with_inner_rooms_is_in_a_room(folder: str) -> None:
    assert {path.name for path in (NATIVE / folder).iterdir()} == {*INNER_ROOMS[folder], "CMakeLists.txt"}


@pytest.mark.parametrize(
    ("folder", "room"), [(f, room) for f, rooms in INNER_ROOMS.items() for room in rooms]
)
def test_an_inner_room_includes_itself_and_the_rooms_before_it(folder: str, room: str) -> None:
    rooms = INNER_ROOMS[folder]
    wrong = [
        f"{path.relative_to(NATIVE)} includes {name}"
        for path in sources(NATIVE / folder / room)
        for name in includes(path)
        if name.startswith(f"{folder}/") and name.split("/")[1] not in rooms[: rooms.index(room) + 1]
    ]
    assert wrong == []
