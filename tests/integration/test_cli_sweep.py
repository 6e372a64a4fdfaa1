import pytest
from command_line import Capture, error_of

from mucudnn.cli import main

pytestmark = pytest.mark.usefixtures("cache_path")

DESCRIPTOR = "mb4_ic8ih14_oc8_kh3_ph1"


def test_each_size_has_a_row(capsys: Capture) -> None:
    assert main(["optimize", DESCRIPTOR, "--inference", "--sizes", "1-3,5"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("Measuring ")
    lines = captured.out.splitlines()
    assert lines[0] == f"{DESCRIPTOR}: within 64 MiB of workspace"
    assert lines[3] == "ic8ih14_oc8_kh3_ph1 forward"
    sizes = [line.split()[0] for line in lines if line[:10].strip().isdigit()]
    assert sizes == ["1", "2", "3", "5"]
    assert lines[-1].startswith(f"Next: mucudnn optimize {DESCRIPTOR}")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--sizes", "4-1"], "the sizes '4-1' must ascend"),
        (["--sizes", "some"], "'some' is not a list of sizes"),
        (["--sizes", "1-4", "--page", "page.html"], "need decisions: omit"),
    ],
)
def test_invalid_arguments_are_named(flags: list[str], complaint: str, capsys: Capture) -> None:
    assert complaint in error_of(capsys, ["optimize", DESCRIPTOR, *flags], 2)
