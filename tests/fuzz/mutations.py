"""New inputs for the Python harnesses, made of a corpus by a seed. The same seed makes the same inputs."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
ODD = (b"\0", b"\xff", b"\x85", b"\xc2\xa0", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\n", b"-1", b"0", b"1e999",
       b"9223372036854775808", b'"', b"\\ud800")  # fmt: skip


def corpus(name: str) -> list[Path]:
    """Return the committed inputs of a harness, sorted."""
    return sorted((HERE / "corpus" / name).iterdir())


def words(name: str) -> list[bytes]:
    """Return the words of a harness's dictionary, which is written as libFuzzer reads it."""
    file = HERE / "dictionaries" / name
    if not file.exists():
        return []
    lines = file.read_text("ascii").splitlines()
    return [line[1:-1].encode().decode("unicode_escape").encode("latin-1") for line in lines]


def inputs(name: str, seed: int, count: int, *, longest: int = 30000) -> Iterator[bytes]:
    """Yield inputs: each is one of the corpus after some changes at random places."""
    random = Random(seed)
    known = [file.read_bytes() for file in corpus(name)]
    inserted = [*words(name), *ODD]
    for _ in range(count):
        content = bytearray(random.choice(known))
        for _ in range(random.choice((1, 1, 2, 3, 8))):
            _change(random, content, known, inserted)
        yield bytes(content[:longest])


def _change(random: Random, content: bytearray, known: list[bytes], inserted: list[bytes]) -> None:
    at = random.randrange(len(content) + 1)
    end = min(len(content), at + random.choice((1, 1, 4, 16, 64)))
    match random.randrange(7):
        case 0:
            content[at:at] = random.choice(inserted)
        case 1:
            content[at:end] = random.choice(inserted)
        case 2:
            del content[at:end]
        case 3:
            content[at:at] = content[at:end]
        case 4:
            other = random.choice(known)
            begin = random.randrange(len(other) + 1)
            content[at:end] = other[begin : begin + random.choice((4, 16, 64, 256))]
        case 5 if at < len(content):
            content[at] ^= 1 << random.randrange(8)
        case _:
            _exchange_lines(random, content)


def _exchange_lines(random: Random, content: bytearray) -> None:
    lines = bytes(content).split(b"\n")
    first, second = random.randrange(len(lines)), random.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    content[:] = b"\n".join(lines)
