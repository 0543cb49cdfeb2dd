"""Settings: their sources, which source wins, and what is refused."""

from __future__ import annotations

import pytest

from strandline.errors import Invalid
from strandline.settings import Settings


@pytest.fixture
def file(tmp_path):
    def write(text: str):
        path = tmp_path / "strandline.toml"
        path.write_text(text)
        return path

    return write


def load(file=None, env=None, flags=None) -> Settings:
    return Settings.load(file, env or {}, flags)


def test_without_anything_the_defaults_hold():
    """An empty environment gives the declared defaults, and each default is within its limits."""
    assert load() == Settings()
    for setting in Settings.declared():
        assert setting.help.endswith("."), setting.key
        assert setting.minimum is None or setting.default >= setting.minimum
        assert type(setting.default) is setting.type


def test_flag_wins_over_environment_over_file_over_default(file):
    """Each source overrides only the same settings of the sources below it."""
    path = file("[log]\nmax_partitions = 2\nretention_ms = 20\nmax_event_bytes = 200\n")
    env = {"STRANDLINE_LOG__RETENTION_MS": "30", "STRANDLINE_LOG__MAX_EVENT_BYTES": "300"}
    settings = load(path, env, {"log.max_event_bytes": 400}).log
    assert (settings.max_partitions, settings.retention_ms, settings.max_event_bytes) == (2, 30, 400)
    assert settings.max_open_topics == Settings().log.max_open_topics


def test_a_flag_that_was_not_given_hides_nothing(file):
    """None means that a flag was not given."""
    assert load(file("[log]\nmax_partitions = 2\n"), {}, {"log.max_partitions": None}).log.max_partitions == 2


def test_every_setting_can_come_from_every_source(file):
    """The key, environment variable and flag of a setting set the same field."""
    for setting in Settings.declared():
        value = setting.default
        text = f'"{value}"' if setting.type is str else str(value).lower()
        assert load(file(f"[{setting.section}]\n{setting.name} = {text}\n")) == Settings()
        assert load(env={setting.env: str(value)}) == Settings()
        assert load(flags={setting.key: value}) == Settings()
        assert setting.env == f"STRANDLINE_{setting.section}__{setting.name}".upper()
        assert setting.flag == f"--{setting.section}-{setting.name}".replace("_", "-")


@pytest.mark.parametrize(
    ("source", "nearest"),
    [
        ({"flags": {"log.retention": 5}}, "'log.retention_ms'"),
        ({"flags": {"lgo.retention_ms": 5}}, "'log.retention_ms'"),
        ({"env": {"STRANDLINE_LOG__RETENTON_MS": "5"}}, "'STRANDLINE_LOG__RETENTION_MS'"),
        ({"env": {"STRANDLINE_SERVER__THREAD": "5"}}, "'STRANDLINE_SERVER__THREADS'"),
    ],
)
def test_an_unknown_name_is_refused_and_the_nearest_named(source, nearest):
    """A typo is an error, and the message suggests the nearest name."""
    with pytest.raises(Invalid, match=f"did you mean {nearest}"):
        load(**source)


@pytest.mark.parametrize("text", ["[log]\nretention = 5\n", "[lgo]\nretention_ms = 5\n", "[lgo]\n"])
def test_an_unknown_name_in_the_file_is_refused(file, text):
    """Unknown sections are refused as well, even empty ones."""
    with pytest.raises(Invalid, match="is not a se"):
        load(file(text))


def test_a_name_like_no_other_is_refused_without_a_guess():
    """The message makes no suggestion if no name is similar."""
    with pytest.raises(Invalid) as caught:
        load(flags={"qqqq": 1})
    assert "did you mean" not in caught.value.detail


def test_other_variables_are_none_of_our_business():
    """Other variables are ignored, also those that an orchestrator sets for a service called strandline."""
    env = {"PATH": "/bin", "STRANDLINE_DATA": "d", "STRANDLINE_PORT_8080_TCP": "tcp://10.0.0.1:8080"}
    assert load(env=env) == Settings()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("log.retention_ms", "soon", "whole number"),
        ("log.retention_ms", "1.5", "whole number"),
        ("log.retention_ms", "", "whole number"),
        ("log.retention_ms", "9" * 5000, "whole number"),
        ("log.retention_ms", 1.5, "type int"),
        ("log.retention_ms", True, "type int"),
        ("log.retention_ms", {"x": 1}, "type int"),
        ("log.retention_ms", 0, "at least 1"),
        ("log.retention_ms", "-5", "at least 1"),
        ("logs.level", 5, "type str"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(key, value, message):
    """The message names the setting and the expected type or minimum."""
    with pytest.raises(Invalid, match=message) as caught:
        load(flags={key: value})
    assert key in caught.value.detail
    assert len(caught.value.detail) < 300


def test_numbers_may_be_grouped_by_underscores():
    """`50_000_000` is valid, as in TOML."""
    assert load(env={"STRANDLINE_LOG__RETENTION_MS": "50_000_000"}).log.retention_ms == 50_000_000


def test_a_value_can_refer_to_the_environment(file):
    """`env:NAME` reads the variable NAME, so that files contain no secrets."""
    path = file('[log]\nretention_ms = "env:KEEP"\n[logs]\nlevel = "env:LEVEL"\n')
    settings = load(path, {"KEEP": "77", "LEVEL": "error"})
    assert (settings.log.retention_ms, settings.logs.level) == (77, "error")


def test_a_reference_to_nothing_is_refused(file):
    """The message names the setting and the variable."""
    with pytest.raises(Invalid, match=r"logs\.level refers to the environment variable LEVEL"):
        load(file('[logs]\nlevel = "env:LEVEL"\n'))


def test_the_process_environment_is_the_default(monkeypatch):
    """`load()` without an environment reads the real one."""
    monkeypatch.setenv("STRANDLINE_LOG__MAX_PARTITIONS", "env:MANY")
    monkeypatch.setenv("MANY", "12")
    assert Settings.load().log.max_partitions == 12


@pytest.mark.parametrize("text", ["[log", "retention_ms = 5\n", "[log]\nretention_ms = 5\nretention_ms = 6\n"])
def test_a_broken_file_is_refused_by_name(file, text):
    """Syntax errors and keys outside a section are refused, and the message names the file."""
    path = file(text)
    with pytest.raises(Invalid, match=r"strandline\.toml"):
        load(path)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    """A file that is not UTF-8 and a directory are refused."""
    path = tmp_path / "strandline.toml"
    path.write_bytes(b"\xff\xfe")
    for bad in (path, tmp_path):
        with pytest.raises(Invalid, match="cannot be read"):
            load(bad)


def test_a_missing_file_is_refused(tmp_path):
    """A settings file that is named but does not exist is an error."""
    with pytest.raises(Invalid, match="there is no settings file"):
        load(tmp_path / "none.toml")


@pytest.mark.parametrize(("text", "value"), [("true", True), ("On", True), ("off", False), ("FALSE", False)])
def test_a_switch_can_be_written_as_text(text, value):
    assert load(env={"STRANDLINE_FEEDS__RECORD": text}).feeds.record is value


def test_a_switch_is_true_or_false(file):
    assert load(file("[feeds]\nrecord = false\n")).feeds.record is False
    with pytest.raises(Invalid, match="must be true or false, not '1'"):
        load(env={"STRANDLINE_FEEDS__RECORD": "1"})
    with pytest.raises(Invalid, match="bool"):
        load(file("[feeds]\nrecord = 1\n"))
