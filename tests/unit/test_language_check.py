"""The language check refuses comments and docstrings that do not begin with a subject or a verb."""

import runpy
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "language"
Check = Callable[[str, str], tuple[int, str]]

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="a source distribution comes without .ci")


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Return a function that checks one file and gives exit code and output."""
    main = runpy.run_path(str(SCRIPT))["main"]

    def run(name: str, text: str) -> tuple[int, str]:
        path = tmp_path / name
        path.write_text(dedent(text), "utf-8")
        code = main([str(path)])
        return code, capsys.readouterr().out.replace(f"{tmp_path}/", "")

    return run


@pytest.mark.parametrize(
    "opening",
    ["Of the flag.", "of the flag", "By engine.", "As told.", "What it is.", "Whose handle.", "Who asks.",
     "Where it runs.", "Which one.", "Whether it runs.", "whatever fits", "Whoever asks.", "That which runs.",
     "Under which it runs.", "In which it runs.", "For which there is none.", "From which it reads."],
)  # fmt: skip
def test_a_banned_opening_is_refused_everywhere(check: Check, opening: str) -> None:
    first = opening.split()[0]
    for text in (f"# {opening}\n", f"x = 1  # {opening}\n", f'"""{opening}"""\n',
                 f'class A:\n    """{opening}"""\n', f'def run():\n    """{opening}"""\n'):  # fmt: skip
        code, output = check("some.py", text)
        assert code == 1, text
        assert f"opens with '{first}" in output
    for text in (f"// {opening}\n", f"int x;  // {opening}\n", f"/* {opening} */\n", f"/// {opening}\n"):
        code, output = check("some.hpp", text)
        assert code == 1, text
        assert f"opens with '{first}" in output


@pytest.mark.parametrize(
    "docstring",
    ["Returns the loss.", "The loss.", "Its path.", "Allocated, with any values.", "Running time.", "Bytes.",
     "`wr` or `wd`.", "(name, count) of each.", "3x3, 64 channels.", "In a process that ends at once.",
     "Another handle.", "Two convolutions.", "cuDNN on this device.", "Alone and under a tool.",
     "CuPy's stream.", "Equality of results.", "Memory of the device.",
     "Micro-batch sizes."],
)  # fmt: skip
def test_a_function_that_does_not_begin_with_an_imperative_verb_is_refused(
    check: Check, docstring: str
) -> None:
    code, output = check("some.py", f'async def run():\n    """{docstring}"""\n')
    assert code == 1
    assert "begins with a verb in the imperative" in output


@pytest.mark.parametrize(
    "docstring",
    ["Return the loss.", "Measure, decide, show.", "Pass the call on.", "Compress it.", "Embed the font.",
     "Exceed the limit on purpose.", "Bring the tensors.", "Apply the plan.", "Re-measure it.", "Time it."],
)  # fmt: skip
def test_a_function_that_begins_with_an_imperative_verb_is_accepted(check: Check, docstring: str) -> None:
    assert check("some.py", f'def run():\n    """{docstring}"""\n') == (0, "")


def test_modules_classes_and_properties_may_begin_with_a_noun_phrase(check: Check) -> None:
    text = '''
        """The times of a kernel."""

        class Times:
            """A kernel's measured times."""

            @property
            def median(self):
                """The median in ms."""

            @functools.cached_property
            def spread(self):
                """Half the distance of the quartiles."""
    '''
    assert check("some.py", text) == (0, "")


def test_lines_that_continue_a_comment_are_not_openings(check: Check) -> None:
    python = """
        # The engine holds the workspace
        # of the largest kernel.
        x = 1  # the sum
               # of all parts
    """
    assert check("some.py", python) == (0, "")
    c = """
        // The engine holds the workspace
        // of the largest kernel.
        int x;  // the sum
                // of all parts
        /* The first line
           of two. */
    """
    assert check("some.cpp", c) == (0, "")


def test_comments_of_different_columns_or_lines_are_separate(check: Check) -> None:
    code, output = check(
        "some.hpp",
        "int x;  // the sum\n// of all parts\n\n// of none\nint y;  // of one\nint z;  // of two\n",
    )
    assert code == 1
    assert [line.split(": ")[0] for line in output.splitlines()[:-1]] == [
        f"some.hpp:{n}" for n in (2, 4, 5, 6)
    ]


def test_strings_are_not_comments(check: Check) -> None:
    assert check("some.py", 'text = "# of it"\n') == (0, "")
    assert check("some.cpp", 'auto a = "// of it"; auto b = R"x(// of it)x"; int c = 1\'000; // Good.\n') == (
        0,
        "",
    )


def test_a_word_that_only_begins_like_a_banned_one_is_accepted(check: Check) -> None:
    assert check(
        "some.py", "# Offsets are in bytes.\n# \n\n# Asking is cheap.\n\n# Bytes, all of them.\n"
    ) == (0, "")


def test_comments_for_tools_are_accepted(check: Check) -> None:
    assert check("some.py", "#!/usr/bin/env python3\nimport os  # noqa: F401 (of use below)\n") == (0, "")


def test_an_offender_is_shown_with_its_place_its_text_and_what_to_do(check: Check) -> None:
    code, output = check("some.py", '\ndef run():\n    """Whether it runs,\n    and how fast."""\n')
    assert code == 1
    assert output.startswith(
        "some.py:3: 'Whether it runs, and how fast.': opens with 'Whether': 'Return whether ...'"
    )
    assert output.endswith("1 texts to rewrite: subject, verb, object, and the field's words\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [("some.py", 'error = "the file is no cache"'), ("some.py", "so_called = 1  # takes so many steps"),
     ("some.py", "class Judge: pass"), ("some.md", "The log tells which way runs."),
     ("some.hpp", "// Both algorithms take\n// turns.\n"), ("some.cpp", "int rival = 0;")],
)  # fmt: skip
def test_a_phrase_that_is_not_english_or_not_the_fields_is_refused(
    check: Check, name: str, text: str
) -> None:
    code, output = check(name, text)
    assert code == 1
    assert f"{name}:1: " in output
    assert "write " in output


@pytest.mark.parametrize("text", ["There is no cache.", "The second run is no slower.", "It tells lies."])
def test_english_is_accepted(check: Check, text: str) -> None:
    assert check("some.md", text) == (0, "")


def test_folders_are_read_recursively_and_other_files_are_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = tmp_path / "room" / "corner"
    inner.mkdir(parents=True)
    for name in ("a.py", "b.pyi", "c.hpp", "d.md"):
        (inner / name).write_text("# of it\n" if name[2:].startswith("py") else "// of it\n")
    main = runpy.run_path(str(SCRIPT))["main"]
    assert main([str(tmp_path / "room")]) == 1
    assert capsys.readouterr().out.count("opens with 'of'") == 3
    assert main(["--count", str(tmp_path / "room")]) == 0
    assert capsys.readouterr().out == f"    3 {inner}\n    3 in all\n"


def test_a_path_that_was_moved_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runpy.run_path(str(SCRIPT))["main"]([str(tmp_path / "gone")]) == 1
    assert "there is no such path" in capsys.readouterr().out
