"""One check for every source: what a value means, and the sentence for one that means nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ds4chat.settings.schema import BY_KEY, OPTIONS, PRESET_KEYS
from ds4chat.settings.validate import SettingError, check, range_of


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("mtp-draft", "1", 1),
        ("mtp-draft", 16, 16),
        ("mtp-draft", " AUTO ", "auto"),
        ("mtp-margin", "0.5", 0.5),
        ("mtp-margin", 1, 1.0),
        ("mtp-margin", "1e-3", 0.001),
        ("mtp-draft", f"{'0' * 30}7", 7),
        ("mtp-strict", "on", True),
        ("mtp-strict", "No", False),
        ("mtp-strict", 1, True),
        ("seed", 2**32 - 2, 4294967294),
        ("predict", "-1", -1),
        ("split-mode", "Row", "row"),
        ("flash-attn", True, "on"),
        ("panels", "tuning, timings tuning", "tuning timings"),
        ("panels", ["confidence"], "confidence"),
        ("panels", "", ""),
        ("mtp", "embedded", "embedded"),
        ("mtp", "none", ""),
        ("mtp", "./none", "./none"),
        ("system-prompt", "é\n", "é\n"),
    ],
)
def test_a_value_is_taken_as_text_and_typed(key: str, raw: object, value: object) -> None:
    checked = check(BY_KEY[key], raw)
    assert checked == value
    assert type(checked) is type(value)


@pytest.mark.parametrize(
    ("key", "raw", "sentence"),
    [
        ("mtp-draft", "17", "--mtp-draft 17 is out of range: it takes 1 to 16, or auto."),
        ("mtp-draft", "0", "--mtp-draft 0 is out of range: it takes 1 to 16, or auto."),
        (
            "mtp-draft",
            "x",
            "--mtp-draft x is neither a whole number nor auto: it takes 1 to 16, or auto.",
        ),
        (
            "mtp-margin",
            "2",
            "--mtp-margin 2 is out of range: it is a probability ratio from 0 to 1; ds4's logit gap is "
            "--mtp-gate here.",
        ),
        ("mtp-margin", "nan", "--mtp-margin nan is not a finite number: it takes 0 to 1."),
        ("temp", "inf", "--temp inf is not a finite number: it takes 0 to 10."),
        ("temp", "1_0", "--temp 1_0 is not a number: it takes 0 to 10."),
        ("temp", "", '--temp "" is not a number: it takes 0 to 10.'),
        ("temp", "hot", "--temp hot is not a number: it takes 0 to 10."),
        ("threads", "2.5", "--threads 2.5 is not a whole number: it takes 0 to 512."),
        ("threads", True, "--threads True is not a whole number: it takes 0 to 512."),
        (
            "ctx-size",
            str(2**31),
            "--ctx-size 2147483648 is out of range: it takes 0 or more, 2147483647 at most.",
        ),
        ("mtp-draft", "9" * 20, f"--mtp-draft {'9' * 20} is out of range: it takes 1 to 16, or auto."),
        (
            "mtp-draft",
            f"-{'9' * 5000}",
            f"--mtp-draft -{'9' * 58}… is out of range: it takes 1 to 16, or auto.",
        ),
        ("threads", 10**30, f"--threads {10**30} is out of range: it takes 0 to 512."),
        ("think", "maybe", "--think maybe is neither on nor off: it takes on or off."),
        (
            "split-mode",
            "tensors",
            "--split-mode tensors is not known: it takes none, layer, row or tensor. Did you mean tensor?",
        ),
        (
            "panels",
            "acceptence",
            "--panels acceptence names acceptence, which is not known: it takes acceptance, timings, "
            "confidence or tuning. Did you mean acceptance?",
        ),
        ("theme", 3, '--theme 3 is not text: write it between quotes, as in "...".'),
        ("model", "a\0b", "--model a\\x00b holds a NUL character, which no text here may."),
    ],
)
def test_a_bad_value_is_told_with_what_its_option_takes(key: str, raw: object, sentence: str) -> None:
    with pytest.raises(SettingError) as refused:
        check(BY_KEY[key], raw)
    assert str(refused.value) == sentence


def test_a_sentence_spells_the_setting_as_its_source_does() -> None:
    margin = BY_KEY["mtp-margin"]
    for source, spelled in (
        ("file", "mtp-margin = 2 is out"),
        ("env", "DS4_MTP_MIN_MARGIN=2 is out"),
        ("cli", "--mtp-margin 2 is out"),
    ):
        with pytest.raises(SettingError, match=f"^{spelled}"):
            check(margin, 2, source)  # type: ignore[arg-type]


def test_a_sentence_is_safe_for_a_terminal_and_short() -> None:
    with pytest.raises(SettingError) as refused:
        check(BY_KEY["mtp-draft"], "\x1b[2J" + "9" * 5000)
    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 200


def test_a_path_beginning_with_a_tilde_is_the_home_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert check(BY_KEY["model"], "~/a.gguf") == "/home/someone/a.gguf"


def test_bytes_that_are_no_utf8_are_refused() -> None:
    with pytest.raises(SettingError, match=r"^--system-prompt \\udcff is not valid UTF-8: convert the text"):
        check(BY_KEY["system-prompt"], b"\xff".decode(errors="surrogateescape"))


@given(
    st.sampled_from(OPTIONS),
    st.one_of(
        st.text(),
        st.integers(),
        st.floats(),
        st.booleans(),
        st.none(),
        st.lists(st.text(), max_size=3),
        st.dictionaries(
            st.text(), st.one_of(st.text(), st.integers(), st.dictionaries(st.text(), st.text()))
        ),
    ),
)
@example(BY_KEY["servers"], {"\n": 0})
@example(BY_KEY["presets"], {"\n": 0})
@example(BY_KEY["keys"], {"\n": 0})
def test_any_value_is_either_good_and_stays_good_or_refused_in_one_line(option, raw) -> None:
    try:
        value = check(option, raw)
    except SettingError as error:
        assert "\n" not in str(error)
        assert str(error).strip()
    else:
        assert check(option, value) == value
        if isinstance(value, float):
            assert math.isfinite(value)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_every_option_takes_its_own_default_and_says_what_it_takes(option) -> None:
    assert check(option, option.default) == option.default
    assert range_of(option)
    assert option.help.endswith(".")


def test_a_preset_holds_only_speculation_and_sampling() -> None:
    assert "mtp-draft" in PRESET_KEYS
    assert "theme" not in PRESET_KEYS
    presets = BY_KEY["presets"]
    assert check(presets, {"a": {"mtp-draft": "2", "temp": 1}}) == {"a": {"mtp-draft": 2, "temp": 1.0}}
    with pytest.raises(SettingError, match=r"^presets.a: theme is not an option of speculation or sampling"):
        check(presets, {"a": {"theme": "paper"}})
    with pytest.raises(SettingError, match="did you mean mtp-margin"):
        check(presets, {"a": {"mtp-margn": 1}})


def test_a_number_has_no_sign_where_it_is_zero() -> None:
    assert math.copysign(1.0, check(BY_KEY["mtp-margin"], "-0.0")) == 1.0
