"""The settings file as it is written: documented, whole or not at all, and never over what could be lost."""

from __future__ import annotations

import dataclasses
import os
import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4chat.settings.load import DEMO_DEPTH, load, parse
from ds4chat.settings.model_sampling import for_file
from ds4chat.settings.save import SaveError, document, edited, save, save_preset
from ds4chat.settings.schema import OPTIONS, Settings
from ds4chat.settings.validate import check

CHANGED = Settings(
    model="/models/a b.gguf",
    mtp="embedded",
    mtp_draft="auto",
    mtp_margin=0.5,
    seed=4294967294,
    system_prompt='Say "no".\n\\ and é',
    think=False,
    panels="",
    keys={"chat.retry": "ctrl+r, f5"},
    presets={"two words": {"mtp-draft": 3, "mtp-margin": 0.25, "mtp-strict": True}},
)


def test_every_option_is_documented_and_a_default_is_a_comment() -> None:
    text = document()
    assert tomllib.loads(text) == {}
    for option in OPTIONS:
        assert option.help.split(". ")[0].split()[0] in text
        if option.kind != "table":
            assert f"\n# {option.key} = " in text
        if option.env:
            assert option.env in text


def test_every_commented_line_of_the_document_is_a_valid_setting() -> None:
    """Taking the "# " away is all it takes."""
    for line in document().splitlines():
        if line.startswith("# ") and line[2:].split(" = ")[0] in {
            o.key for o in OPTIONS if o.kind != "table"
        }:
            read = parse(line[2:].encode(), Path("/"))
            assert (read.problems, len(read.values)) == ([], 1)


def test_what_was_saved_is_what_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "config.toml"
    save(CHANGED, file)
    result = load({}, file, {})
    assert result.settings == CHANGED
    assert (result.problems, result.warnings) == ([], [])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@given(st.data())
def test_any_settings_survive_being_saved_and_loaded(data: st.DataObject) -> None:
    strategies = {
        "bool": lambda o: st.booleans(),
        "int": lambda o: st.integers(int(o.low), int(o.high or 2**31 - 1)),
        "float": lambda o: st.floats(o.low, o.high),
        "depth": lambda o: st.one_of(st.just("auto"), st.integers(1, 16)),
        "choice": lambda o: st.sampled_from(o.choices),
        "names": lambda o: st.lists(st.sampled_from(o.choices), unique=True).map(" ".join),
        "str": lambda o: st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    }
    values = {
        o.attribute: data.draw(strategies[o.kind](o)) for o in OPTIONS if o.kind not in ("path", "table")
    }
    settings = Settings(**values)
    read = parse(edited(document(), settings, {}).encode(), Path("/"))
    assert read.problems == []
    back = dataclasses.replace(Settings(), **{k.replace("-", "_"): v for k, v in read.values.items()})
    assert back == settings


def test_tables_of_another_version_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('temp = 0.5\n[future]\nlist = [1, 2]\n[future.deep]\nx = "y"\n')
    save(dataclasses.replace(load({}, file, {}).settings, top_k=3), file)
    written = tomllib.loads(file.read_text())
    assert written == {"temp": 0.5, "top-k": 3, "future": {"list": [1, 2], "deep": {"x": "y"}}}


@pytest.mark.parametrize("text", ["mtp-draft = 99\n", "mtp-drat = 2\n", "broken =\n", "\xff"])
def test_a_file_with_problems_is_written_over_only_when_forced(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(SaveError, match="line 1"):
        save(Settings(temp=0.5), file)
    assert file.read_bytes() == text.encode("latin-1")
    save(Settings(temp=0.5), file, force=True)
    assert tomllib.loads(file.read_text()) == {"temp": 0.5}


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    save(Settings(temp=0.5), file)
    before = file.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SaveError, match="No space left on device"):
        save(Settings(temp=0.75), file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_settings_that_a_load_would_refuse_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="mtp-draft = 0 is out of range"):
        save(Settings(mtp_draft=0), tmp_path / "config.toml")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match="were not saved"):
        save(Settings(), tmp_path / "file" / "config.toml")


def test_a_link_stays_a_link_to_the_file_that_was_changed(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("temp = 0.25\n")
    link = tmp_path / "config.toml"
    link.symlink_to(real)
    save(Settings(temp=0.5), link)
    assert link.is_symlink()
    assert tomllib.loads(real.read_text()) == {"temp": 0.5}


def test_relative_paths_are_saved_as_what_they_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    settings = Settings(model="a.gguf", mtp="embedded", chat_template="granite-4.0")
    save(settings, tmp_path / "config.toml")
    assert tomllib.loads((tmp_path / "config.toml").read_text()) == {
        "model": str(tmp_path / "here" / "a.gguf"),
        "mtp": "embedded",
        "chat-template": "granite-4.0",
    }


def test_the_examples_of_tables_are_valid_when_uncommented() -> None:
    lines = document().splitlines()
    tables = [line[2:] for line in lines[lines.index("# [keys]") :] if line.startswith("# ")]
    body = [line for line in tables if line.startswith("[") or " = " in line]
    body = [line for line in body if not line.startswith("Key bindings")]
    read = parse("\n".join(body).encode(), Path("/"))
    assert read.problems == []
    assert set(read.values) == {"keys", "presets", "servers"}
    assert all(check(o, read.values[o.key]) for o in OPTIONS if o.kind == "table")


MINE = """\
# My settings.
temp = 0.5      # warm
[keys]          # as at work
"chat.retry" = "f5"
# one more
"""


def test_a_save_changes_only_the_lines_of_what_changed(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(MINE)
    save(dataclasses.replace(load({}, file, {}).settings, temp=0.75), file)
    assert file.read_text() == MINE.replace("0.5 ", "0.75 ")


def test_a_value_takes_the_place_of_the_line_that_shows_its_default_and_gives_it_back(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(document())
    save(Settings(top_k=7), file)
    assert file.read_text() == document().replace("\n# top-k = 40\n", "\ntop-k = 7\n")
    save(Settings(), file)
    assert file.read_text() == document()


def test_a_comment_beside_a_value_stays_where_the_value_goes_back_to_its_default(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(MINE)
    save(dataclasses.replace(load({}, file, {}).settings, temp=0.0), file)
    assert file.read_text() == MINE.replace("temp = 0.5      # warm", "# temp = 0.0  # warm")


def test_a_switch_in_the_file_goes_back_to_its_default(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("lookup = true  # for code\n")
    save(Settings(), file)
    assert file.read_text() == "# lookup = false  # for code\n"


def test_a_new_key_comes_before_the_first_table(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(MINE)
    save(dataclasses.replace(load({}, file, {}).settings, seed=3), file)
    assert parse(file.read_bytes(), tmp_path).values == {"temp": 0.5, "seed": 3, "keys": {"chat.retry": "f5"}}
    assert [line for line in MINE.splitlines() if line not in file.read_text().splitlines()] == []


def test_a_line_that_only_looks_like_a_default_is_left_alone(tmp_path: Path) -> None:
    """Inside a text of several lines, and inside a table, it is no place for a value."""
    file = tmp_path / "config.toml"
    text = 'system-prompt = """\n# seed = -1\n"""\n[keys]\n# temp = 0.0\n"chat.retry" = "f5"\n'
    file.write_text(text)
    before = load({}, file, {}).settings
    save(dataclasses.replace(before, seed=3, temp=0.5), file)
    assert load({}, file, {}).settings == dataclasses.replace(before, seed=3, temp=0.5)
    assert "# temp = 0.0" in file.read_text()


def test_the_entries_of_a_table_come_and_go_and_the_others_keep_their_comments(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[presets.a]  # the first\ntemp = 0.5  # warm\nseed = 1\n[presets.b]\nseed = 2\n")
    presets = {"a": {"temp": 0.25}, "c": {"mtp-draft": "auto"}}
    save(Settings(presets=presets), file)
    assert tomllib.loads(file.read_text())["presets"] == presets
    assert "[presets.a]  # the first\ntemp = 0.25  # warm\n" in file.read_text()


@given(st.data())
def test_any_change_of_any_file_is_what_is_loaded_afterwards(data: st.DataObject) -> None:
    values = {
        "temp": st.floats(0, 10),
        "seed": st.integers(-1, 9),
        "lookup": st.booleans(),
        "system_prompt": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
        "keys": st.dictionaries(st.sampled_from(["chat.retry", "chat.view"]), st.just("f5")),
        "presets": st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
            st.fixed_dictionaries({}, optional={"temp": st.floats(0, 1), "mtp-strict": st.booleans()}),
            max_size=3,
        ),
    }
    first, second = (Settings(**{k: data.draw(v) for k, v in values.items()}) for _ in range(2))
    text = edited(document(), first, {})
    read = parse(edited(text, second, parse(text.encode(), Path("/")).values).encode(), Path("/"))
    assert read.problems == []
    back = dataclasses.replace(Settings(), **{k.replace("-", "_"): v for k, v in read.values.items()})
    assert back == second


def test_a_preset_is_saved_alone(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    text = "# mine\ntemp = 0.25\n\n[presets.old]\ntemp = 1.0\n"
    file.write_text(text)
    save_preset("fast", {"mtp-draft": 4, "mtp-margin": 0.5}, file)
    written = file.read_text()
    assert written.startswith(text.rstrip("\n"))
    assert tomllib.loads(written) == {
        "temp": 0.25,
        "presets": {"old": {"temp": 1.0}, "fast": {"mtp-draft": 4, "mtp-margin": 0.5}},
    }
    save_preset("first", {"temp": 0.5}, tmp_path / "new.toml")
    assert tomllib.loads((tmp_path / "new.toml").read_text()) == {"presets": {"first": {"temp": 0.5}}}


def test_the_demos_own_depth_is_not_saved_for_other_models() -> None:
    demo = Settings(demo=True, mtp_draft=DEMO_DEPTH)
    assert for_file(demo, demo, {"demo": "command line"}) == Settings(demo=True)
    assert for_file(demo, demo, {"demo": "file", "mtp-draft": "file"}) == demo
    assert for_file(dataclasses.replace(demo, mtp_draft=5), demo, {}) == dataclasses.replace(
        demo, mtp_draft=5
    )
    assert for_file(Settings(mtp_draft=DEMO_DEPTH), Settings(), {}).mtp_draft == DEMO_DEPTH
