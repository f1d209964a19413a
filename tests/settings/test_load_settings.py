"""Where a setting's value comes from, and everything that can be wrong with a settings file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4chat.settings import toml_lines
from ds4chat.settings.load import LoadedSettings, load, merge, parse
from ds4chat.settings.schema import OPTIONS, Settings
from ds4chat.settings.toml_lines import Lines, statements
from ds4chat.settings.validate import SettingError


def loaded(
    tmp_path: Path, text: str | bytes = "", env: dict[str, str] | None = None, **cli: object
) -> LoadedSettings:
    file = tmp_path / "config.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load({key.replace("_", "-"): value for key, value in cli.items()}, file, env or {})


def test_without_any_source_the_defaults_hold(tmp_path: Path) -> None:
    result = load({}, None, {"DS4CHAT_HOME": str(tmp_path)})
    assert result.settings == Settings()
    assert (result.warnings, result.problems) == ([], [])
    assert result.config_path == tmp_path / "config.toml"
    assert set(result.sources.values()) == {"default"}


def test_the_command_line_is_above_the_environment_is_above_the_file(tmp_path: Path) -> None:
    text = "mtp-strict = true\nmtp-draft = 3\nmtp-probe = true\n"
    result = loaded(tmp_path, text, {"DS4_MTP_STRICT": "0", "DS4_MTP_PROBE": "0"}, mtp_probe=True)
    assert (result.settings.mtp_draft, result.settings.mtp_strict, result.settings.mtp_probe) == (
        3,
        False,
        True,
    )
    assert result.sources["mtp-draft"] == "file"
    assert result.sources["mtp-strict"] == "environment"
    assert result.sources["mtp-probe"] == "command line"
    assert result.sources["temp"] == "default"


@pytest.mark.parametrize(
    ("raw", "on"), [(None, False), ("", False), ("0", False), ("1", True), ("x", True), ("00", True)]
)
@pytest.mark.parametrize("key", ["mtp_strict", "mtp_probe", "mtp_full_logits"])
def test_a_switch_is_off_when_unset_empty_or_0(tmp_path: Path, key: str, raw: str | None, on: bool) -> None:
    env = {} if raw is None else {f"DS4_{key.upper()}": raw}
    assert getattr(loaded(tmp_path, env=env).settings, key) is on


@pytest.mark.parametrize(("raw", "on"), [(None, True), ("", True), ("0", False), ("1", True)])
def test_accepted_tokens_are_kept_unless_the_variable_is_0(tmp_path: Path, raw: str | None, on: bool) -> None:
    env = {} if raw is None else {"DS4_MTP_KEEP_ACCEPTED": raw}
    assert loaded(tmp_path, env=env).settings.mtp_keep_accepted is on


@pytest.mark.parametrize("raw", ["", None])
def test_an_empty_variable_leaves_the_files_value(tmp_path: Path, raw: str | None) -> None:
    env = {} if raw is None else {"DS4_MTP_STRICT": raw, "DS4_MTP_MIN_MARGIN": raw}
    result = loaded(tmp_path, "mtp-strict = true\nmtp-margin = 0.5", env)
    assert (result.settings.mtp_strict, result.settings.mtp_margin, result.warnings) == (True, 0.5, [])


def test_a_switch_set_to_a_word_for_off_is_on_and_says_so(tmp_path: Path) -> None:
    result = loaded(tmp_path, env={"DS4_MTP_STRICT": "off"})
    assert result.settings.mtp_strict
    assert result.warnings == [
        "DS4_MTP_STRICT=off switches it on: to switch it off, set it to 0 or unset it."
    ]


def test_the_margins_variable_wins_over_the_command_line_and_says_so(tmp_path: Path) -> None:
    result = loaded(tmp_path, env={"DS4_MTP_MIN_MARGIN": "0.25"}, mtp_margin="0.9")
    assert result.settings.mtp_margin == 0.25
    assert result.sources["mtp-margin"] == "environment"
    assert result.warnings == [
        "DS4_MTP_MIN_MARGIN=0.25 wins over --mtp-margin 0.9, as in ds4: unset the variable to use the option."
    ]


@pytest.mark.parametrize("raw", ["3", "-0.1", "nan", "inf", "high", "0.5x"])
def test_a_margins_variable_that_is_no_ratio_is_told_and_ignored(tmp_path: Path, raw: str) -> None:
    result = loaded(tmp_path, env={"DS4_MTP_MIN_MARGIN": raw}, mtp_margin="0.9")
    assert result.settings.mtp_margin == 0.9
    assert len(result.warnings) == 1
    assert result.warnings[0].startswith(f"DS4_MTP_MIN_MARGIN={raw} is ")
    assert result.warnings[0].endswith("It is ignored.")


def test_a_bad_value_on_the_command_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^--mtp-draft 17 is out of range"):
        loaded(tmp_path, mtp_draft="17")


BROKEN = '''\
# a comment
mtp-draft = 17

system-prompt = """
mtp-margin = 3
"""
mtp_margin = 0.5
temp = nan
top-k = 7

[keys]
retry = 3
quit = "ctrl+q"

[presets.fast]
mtp-draft = "auto"
mtp-margin = 2
'''


def test_every_problem_of_a_file_comes_at_once_with_its_line_and_key(tmp_path: Path) -> None:
    result = loaded(tmp_path, BROKEN)
    begins = ["mtp-draft = 17", "mtp_margin is", "temp = nan", "keys.retry", "presets.fast: mtp-margin = 2"]
    assert [p.line for p in result.problems] == [2, 7, 8, 12, 17]
    assert all(p.message.startswith(begin) for p, begin in zip(result.problems, begins))
    assert str(result.problems[1]).endswith(
        "config.toml, line 7: mtp_margin is not a known key; did you mean mtp-margin?"
    )


def test_a_bad_key_has_its_default_and_the_good_ones_their_values(tmp_path: Path) -> None:
    settings = loaded(tmp_path, BROKEN).settings
    assert (settings.mtp_draft, settings.mtp_margin, settings.temp) == ("auto", 1.0, 0.0)
    assert (settings.top_k, settings.system_prompt) == (7, "mtp-margin = 3\n")
    assert settings.keys == {"quit": "ctrl+q"}
    assert settings.presets == {"fast": {"mtp-draft": "auto"}}


@pytest.mark.parametrize(
    ("data", "line", "part"),
    [
        (
            b"temp = 1\nmtp-draft = = 2\n",
            2,
            "not TOML: Invalid value at column 13; text goes between quotes.",
        ),
        (b'temp = 1\nsystem-prompt = "open\n', 2, "not TOML"),
        (b"temp = 1\n\n[keys", 3, "at its end; fix it there."),
        (b"temp = 1\ntemp = 2\n", 2, "not TOML"),
        (
            b"temp = 1\ntheme = '\xff'\n",
            2,
            "not UTF-8 text: byte 18 (0xff) is out of place. Save it as UTF-8.",
        ),
        (b"seed = " + b"9" * 5000, None, "not TOML"),
        (b"theme = " + b"[" * 5000, None, "nested too deeply"),
    ],
)
def test_a_file_that_is_no_toml_gives_the_line_and_the_defaults(
    tmp_path: Path, data: bytes, line: int | None, part: str
) -> None:
    result = loaded(tmp_path, data)
    assert [p.line for p in result.problems] == [line]
    assert part in result.problems[0].message
    assert result.settings == Settings()


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    result = loaded(tmp_path, b"\xef\xbb\xbftemp = 0.5\r\nmtp-draft = 40\r\n")
    assert result.settings.temp == 0.5
    assert [p.line for p in result.problems] == [2]


def test_an_unknown_table_is_a_warning_and_an_unknown_key_a_problem(tmp_path: Path) -> None:
    result = loaded(tmp_path, "flavour = 1\n[preset.a]\ntemp = 1\n")
    assert [p.message for p in result.problems] == [
        "flavour is not a known key; ds4chat config defaults lists them."
    ]
    assert result.warnings == [
        f"{tmp_path / 'config.toml'}: The table [preset] is unknown and is ignored; did you mean [presets]?"
    ]


@pytest.mark.parametrize("kind", ["missing", "folder", "huge"])
def test_a_named_file_that_cannot_be_read_is_a_problem(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "named.toml"
    if kind == "folder":
        file.mkdir()
    elif kind == "huge":
        file.write_bytes(b"#" * (1 << 20) + b"#")
    problems = load({}, file, {}).problems
    said = {"missing": "does not exist", "folder": "not a file", "huge": "larger than 1 MiB"}
    assert len(problems) == 1
    assert said[kind] in str(problems[0])
    assert str(file) in str(problems[0])


def test_relative_paths_of_a_file_are_meant_from_its_folder(tmp_path: Path) -> None:
    result = loaded(tmp_path, 'model = "m/a.gguf"\nmtp = "embedded"\nlog-file = "/var/x"', mtp="b.gguf")
    assert result.settings.model == str(tmp_path / "m/a.gguf")
    assert result.settings.mtp == "b.gguf"
    assert result.settings.log_file == "/var/x"
    assert loaded(tmp_path, 'mtp = "embedded"').settings.mtp == "embedded"


@pytest.mark.parametrize(
    ("value", "is_file"),
    [
        ("chatml", False),
        ("granite-4.0", False),
        ("mistral-v3-tekken", False),
        ("chatml.jinja", True),
        ("templates/chatml", True),
        ("notes.txt", True),
    ],
)
def test_a_template_is_a_name_or_a_file(tmp_path: Path, value: str, is_file: bool) -> None:
    settings = loaded(tmp_path, f'chat-template = "{value}"').settings
    assert settings.chat_template == (str(tmp_path / value) if is_file else value)


def test_the_demo_brings_depth_2_unless_a_depth_is_set(tmp_path: Path) -> None:
    assert loaded(tmp_path, demo=True).settings.mtp_draft == 2
    assert loaded(tmp_path, demo=True, mtp_draft=1).settings.mtp_draft == 1
    assert loaded(tmp_path, "mtp-draft = 5", demo=True).settings.mtp_draft == 5
    assert loaded(tmp_path, "mtp-draft = 1", demo=True).settings.mtp_draft == 1


def test_of_demo_and_model_the_stronger_source_holds(tmp_path: Path) -> None:
    file = f'model = "{tmp_path}/a.gguf"\nmtp = "{tmp_path}/b.gguf"'
    demo = loaded(tmp_path, file, demo=True).settings
    assert (demo.demo, demo.model, demo.mtp) == (True, "", "")
    assert loaded(tmp_path, file, demo=True, mtp="c.gguf").settings.mtp == "c.gguf"
    model = loaded(tmp_path, "demo = true", model="x.gguf").settings
    assert (model.demo, model.model, model.mtp_draft) == (False, "x.gguf", "auto")
    both = loaded(tmp_path, f"{file}\ndemo = true")
    assert [(p.line, p.message.split(" =")[0]) for p in both.problems] == [(3, "demo")]
    assert both.settings.model == f"{tmp_path}/a.gguf"


def test_merging_nothing_gives_the_defaults() -> None:
    settings, sources, warnings = merge({}, {}, {})
    assert (settings, warnings) == (Settings(), [])
    assert list(sources) == [option.key for option in OPTIONS]


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    read = parse(data, Path("/"))
    assert all(problem.message and "\n" not in problem.message for problem in read.problems)


KEYS = st.sampled_from(
    ["mtp-draft", "temp", "theme", "keys", "presets", "a", '"x y"', "presets.p.temp", "a.b"]
)
VALUES = st.sampled_from(
    ["1", "nan", '"t"', "[\n1,\n2]", "{b = {c = 1}}", '"""\n[x]\ny = 1\n"""', "true", "1979-05-27"]
)
LINES = st.one_of(
    st.builds("{} = {}".format, KEYS, VALUES),
    st.builds("[{}]".format, st.sampled_from(["keys", "presets.fast", "u", "presets", "v.w"])),
    st.sampled_from(["[[list]]", "# comment", ""]),
)


def test_a_document_is_gone_through_once_for_all_its_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the time grows with its length and not with its square; a long array is one statement."""
    parsed: list[str] = []
    loads = tomllib.loads

    def counted(text: str) -> dict[str, object]:
        parsed.append(text)
        return loads(text)

    monkeypatch.setattr(toml_lines.tomllib, "loads", counted)
    array = "long = [\n" + "\n".join(f"  {n}, # ]" for n in range(500)) + "\n]"
    text = "\n".join([*(f"unknown{n} = {n}" for n in range(800)), array, "last = 1"])
    read = parse(text.encode(), Path("/"))
    assert [problem.line for problem in read.problems] == [*range(1, 802), 1303]
    # Once as a whole, which goes through the same module, and once for each of 802 statements.
    assert len(parsed) == 803
    assert sum(map(len, parsed)) < 3 * len(text)


@given(st.lists(LINES, max_size=8))
def test_every_key_of_a_valid_document_has_the_line_on_which_it_is_written(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    physical = text.split("\n")
    for key in document:
        line = Lines(text).of((key,))
        assert line is not None
        assert key in physical[line - 1]
    for statement in statements(text):
        assert physical[statement.first - 1].strip()
        assert statement.header == physical[statement.first - 1].startswith("[")
    parse(text.encode(), Path("/"))
