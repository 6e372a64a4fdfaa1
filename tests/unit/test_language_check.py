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
    ["Of the flag.", "whatever fits", "That which runs.", "Under which it runs."],
)
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
    ["Returns the loss.", "The loss.", "Running time.", "`wr` or `wd`.", "Alone and under a tool."],
)
def test_a_function_that_does_not_begin_with_an_imperative_verb_is_refused(
    check: Check, docstring: str
) -> None:
    code, output = check("some.py", f'async def run():\n    """{docstring}"""\n')
    assert code == 1
    assert "begins with a verb in the imperative" in output


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
