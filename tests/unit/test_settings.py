import os

import pytest

from mucudnn import _native, settings
from mucudnn.errors import UsageError


@pytest.mark.parametrize("setting", settings.SETTINGS, ids=lambda setting: setting.variable)
def test_without_its_variable_a_setting_has_its_default(
    setting: settings.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(setting.variable, raising=False)
    assert setting.read() == setting.default


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (settings.WORKSPACE_LIMIT, "8MiB", 8 * 2**20),
        (settings.WORKSPACE_LIMIT, "none", None),
        (settings.BATCH_POLICY, "all", "all"),
        (settings.THREADS, "2", 2),
        (settings.LIBRARY, "host", "host"),
        (settings.LIBRARY, "/opt/libcudnn.so.9", "/opt/libcudnn.so.9"),
        (settings.BUDGET, "30s", "30s"),
    ],
)
def test_a_variable_is_read(
    setting: settings.Setting, text: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(setting.variable, text)
    assert setting.read() == value


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (settings.WORKSPACE_LIMIT, "12XB"),
        (settings.BATCH_POLICY, "some"),
        (settings.THREADS, "0"),
        (settings.THREADS, "two"),
        (settings.LIBRARY, "libcudnn.so.9"),
    ],
)
def test_an_unreadable_variable_is_named(
    setting: settings.Setting, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(setting.variable, text)
    with pytest.raises(UsageError, match=f"{setting.variable}: .*{text}"):
        setting.read()


PATHS = [settings.CACHE, settings.LIBRARY, settings.PLAN, settings.RECORD]


@pytest.mark.parametrize("setting", PATHS, ids=lambda setting: setting.variable)
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("~/a file", "/home/me/a file"),
        ("~", "/home/me"),
        ("/b/~", "/b/~"),
        (os.fsdecode(b"/b/\xff\n"), os.fsdecode(b"/b/\xff\n")),
    ],
)
def test_a_path_may_begin_at_home_and_have_any_bytes(
    setting: settings.Setting, text: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv(setting.variable, text)
    assert setting.read() == path


@pytest.mark.parametrize("setting", PATHS, ids=lambda setting: setting.variable)
def test_the_home_of_an_unknown_user_is_an_error(
    setting: settings.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(setting.variable, "~no-such-user/file")
    with pytest.raises(
        UsageError, match=f"{setting.variable}: there is no home directory for '~no-such-user'"
    ):
        setting.read()


# `current_budget` parses the text of a budget.
@pytest.mark.parametrize(
    "setting",
    [s for s in settings.SETTINGS if s not in (*PATHS, settings.BUDGET)],
    ids=lambda s: s.variable,
)
def test_bytes_that_are_not_text_are_named(
    setting: settings.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(setting.variable, os.fsdecode(b"a\xff"))
    with pytest.raises(UsageError, match=rf"{setting.variable}: 'a\\udcff' is not"):
        setting.read()


def test_python_and_the_drop_in_read_the_same_variables() -> None:
    assert {setting.variable: setting.meaning for setting in settings.SETTINGS} == _native.settings()
