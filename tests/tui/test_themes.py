"""Theme files: what is refused and how it is said, and that every shipped theme can be read by everyone."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from itertools import combinations
from pathlib import Path

import pytest
from rich.style import Style
from textual.app import App, ComposeResult
from textual.color import Color
from textual.widgets import Static

from ds4chat.tui import themes
from ds4chat.tui.themes import DEFAULT_THEME, OWN_COLORS, TOKEN_STYLES, ThemeFolder, load_themes, parse_theme

SHIPPED, SHIPPED_PROBLEMS = load_themes(None)
BY_NAME = {theme.name: theme for theme in SHIPPED}
RGB_THEMES = [theme for theme in SHIPPED if not theme.ansi]
TOKENS = [name for name in OWN_COLORS if name.startswith("token-")]

# Full deuteranopia, linear RGB: G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, "A Physiologically-based
# Model for Simulation of Color Vision Deficiency", IEEE TVCG 15(6), 2009, table 1, severity 1.0.
DEUTERANOPIA = (
    (0.367322, 0.860646, -0.227968),
    (0.280085, 0.672501, 0.047413),
    (-0.011820, 0.042940, 0.968881),
)


def linear(color: Color) -> tuple[float, float, float]:
    """Linear sRGB components, 0..1 (IEC 61966-2-1)."""

    def one(value: float) -> float:
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    return one(color.r / 255), one(color.g / 255), one(color.b / 255)


def luminance(color: Color) -> float:
    """Relative luminance of WCAG 2."""
    r, g, b = linear(color)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: Color, b: Color) -> float:
    """Contrast ratio of WCAG 2, 1..21."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def as_deuteranope(color: Color) -> tuple[float, float, float]:
    """Linear sRGB of what a deuteranope sees, clipped to the gamut."""
    rgb = linear(color)
    mixed = [sum(weight * value for weight, value in zip(row, rgb)) for row in DEUTERANOPIA]
    return tuple(min(1.0, max(0.0, value)) for value in mixed)  # type: ignore[return-value]


def lab(rgb: tuple[float, float, float]) -> tuple[float, float, float]:
    """CIELAB under D65 of linear sRGB."""
    r, g, b = rgb
    x = (0.4124564 * r + 0.3575761 * g + 0.1804375 * b) / 0.95047
    y = 0.2126729 * r + 0.7151522 * g + 0.0721750 * b
    z = (0.0193339 * r + 0.1191920 * g + 0.9503041 * b) / 1.08883

    def f(t: float) -> float:
        return t ** (1 / 3) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29

    return 116 * f(y) - 16, 500 * (f(x) - f(y)), 200 * (f(y) - f(z))


def difference(a: tuple[float, float, float], b: tuple[float, float, float]) -> float:
    """CIE 1976 colour difference of two linear sRGB colours; about 2.3 is just noticeable."""
    return math.dist(lab(a), lab(b))


def test_the_formulas_give_published_values() -> None:
    """Black on white is 21:1, #777777 on white 4.48:1; sRGB red is Lab 53.24, 80.09, 67.20."""
    white, black = Color.parse("#ffffff"), Color.parse("#000000")
    assert contrast(white, black) == pytest.approx(21)
    assert contrast(Color.parse("#777777"), white) == pytest.approx(4.48, abs=0.005)
    assert lab(linear(Color.parse("#ff0000"))) == pytest.approx((53.24, 80.09, 67.20), abs=0.02)
    grey = as_deuteranope(Color.parse("#808080"))
    assert grey == pytest.approx(linear(Color.parse("#808080")), abs=1e-5)
    assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in DEUTERANOPIA)


def test_all_shipped_themes_are_valid() -> None:
    assert SHIPPED_PROBLEMS == []
    assert set(BY_NAME) == {
        "ansi",
        "ds4-dark",
        "ds4-light",
        "dusk",
        "forest",
        "high-contrast",
        "okabe-ito",
        "paper",
    }
    assert themes.DEFAULT_THEME in BY_NAME
    for theme in SHIPPED:
        assert set(OWN_COLORS) <= set(theme.variables)
        assert {f"{name}-style" for name in TOKEN_STYLES} <= set(theme.variables)


@pytest.mark.parametrize("theme", RGB_THEMES, ids=lambda t: t.name)
def test_token_colours_stand_out_from_every_ground(theme) -> None:
    """At least 4.5:1 (WCAG 2, level AA) on the background and on the surface of panels; charts 3:1."""
    for ground in (theme.background, theme.surface):
        for name in [*TOKENS, "thinking"]:
            assert contrast(Color.parse(theme.variables[name]), Color.parse(ground)) >= 4.5, name
        assert contrast(Color.parse(theme.foreground), Color.parse(ground)) >= 4.5
        for name in OWN_COLORS:
            assert contrast(Color.parse(theme.variables[name]), Color.parse(ground)) >= 3, name


def test_high_contrast_reaches_seven_to_one_everywhere() -> None:
    theme = BY_NAME["high-contrast"]
    texts = [theme.variables[name] for name in OWN_COLORS]
    texts += [theme.primary, theme.secondary, theme.accent, theme.warning, theme.error, theme.success]
    for ground in (theme.background, theme.surface, theme.panel):
        for text in [*texts, theme.foreground]:
            assert contrast(Color.parse(text), Color.parse(ground)) >= 7, (text, ground)


@pytest.mark.parametrize("pair", list(combinations(TOKENS, 2)), ids="/".join)
def test_a_deuteranope_tells_the_origins_apart(pair) -> None:
    """Ten times the just noticeable difference between any two origins of the Okabe-Ito theme."""
    variables = BY_NAME["okabe-ito"].variables
    a, b = (as_deuteranope(Color.parse(variables[name])) for name in pair)
    assert difference(a, b) >= 10 * 2.3


@pytest.mark.parametrize("theme", SHIPPED, ids=lambda t: t.name)
def test_origins_differ_without_any_colour(theme) -> None:
    """In grey, and under NO_COLOR, the text styles still tell the origins apart."""
    looks = {Style.parse(theme.variables[f"{name}-style"].replace("none", "")) for name in TOKENS}
    assert len(looks) == len(TOKENS)


@pytest.mark.parametrize("theme", SHIPPED, ids=lambda t: t.name)
def test_charts_name_every_phase_with_its_own_colour(theme) -> None:
    phases = [theme.variables[f"chart-{p}"] for p in ("draft", "verify", "accept", "rollback", "other")]
    assert len(set(phases)) == 5


def test_all_problems_come_at_once_with_key_and_nearest_key() -> None:
    theme, problems = parse_theme(
        "mine",
        'drak = true\nansi = 3\n[base]\nprimary = "blu-ish"\n[colors]\ntoken-acepted = "#fff"\n'
        '[styles]\ntoken-bonus = "underline"\n[variables]\nbordr = "#fff"\nborder = 3\n',
    )
    assert theme is None
    text = "\n".join(problems)
    assert "unknown key 'drak'; did you mean 'dark'?" in text
    assert "ansi is 3; it takes true or false." in text
    assert "base.primary is 'blu-ish', which is not a colour" in text
    assert "'token-acepted'; did you mean 'token-accepted'?" in text
    assert "[colors] lacks token-accepted, token-corrected" in text
    assert "the same as styles.token-corrected: they must differ" in text
    assert "'bordr'; did you mean 'border'?" in text
    assert "variables.border is 3; it takes a string." in text
    assert all(problem.startswith("Theme mine: ") for problem in problems)


def test_broken_toml_names_the_line() -> None:
    assert parse_theme("mine", "dark = true\n[base\n")[1] == [
        "Theme mine: this is not TOML: Expected ']' at the end of a table declaration (at line 2, column 6)."
    ]


def test_a_palette_colour_needs_an_ansi_theme() -> None:
    text = (themes.shipped_folder() / "ansi.toml").read_text()
    assert parse_theme("mine", text)[1] == []
    _, problems = parse_theme("mine", text.replace("ansi = true", "ansi = false"))
    assert any("base.primary is 'ansi_blue', a colour of the terminal's palette" in p for p in problems)


def test_unknown_theme_names_the_nearest() -> None:
    near = "There is no theme 'ds4dark'. Did you mean ds4-dark or dusk?"
    assert themes.unknown_theme("ds4dark", BY_NAME) == near
    assert "The themes are ansi, ds4-dark" in themes.unknown_theme("zzz", BY_NAME)


def test_a_user_file_takes_the_place_of_a_shipped_theme(tmp_path: Path) -> None:
    text = (themes.shipped_folder() / "dusk.toml").read_text().replace("#1a1626", "#000011")
    (tmp_path / "dusk.toml").write_text(text)
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    loaded, problems = load_themes(tmp_path)
    assert {theme.name: theme.background for theme in loaded}["dusk"] == "#000011"
    assert problems == [f"Theme bad: byte 0 of {tmp_path / 'bad.toml'} is not UTF-8."]
    assert load_themes(tmp_path / "none") == (SHIPPED, [])


class Words(App[None]):
    """One word an origin, styled by the theme alone."""

    CSS = "\n".join(
        f".{name} {{ color: ${name}; text-style: ${name}-style; width: auto; }}" for name in TOKENS
    )

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.variable_defaults()

    def compose(self) -> ComposeResult:
        for name in TOKENS:
            yield Static(name, classes=name)


def drawn_styles(app: App[None]) -> dict[str, Style]:
    """The style with which each word of TOKENS reaches the terminal, after Textual's filters."""
    styles = {}
    for line in app.screen._compositor.render_strips():
        for segment in line.apply_filter(app._filters[-1], Color.parse("#000000")):
            if segment.text.strip() in TOKENS:
                styles[segment.text.strip()] = segment.style
    return styles


@pytest.mark.parametrize("name", ["ds4-dark", "ansi"])
async def test_no_color_leaves_no_hue_and_still_tells_origins(monkeypatch, name: str) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = Words()
    assert app.no_color
    async with app.run_test(size=(40, 10)) as pilot:
        for theme in SHIPPED:
            app.register_theme(theme)
        app.theme = name
        await pilot.pause()
        styles = drawn_styles(app)
    assert set(styles) == set(TOKENS)
    for style in styles.values():
        r, g, b = style.color.get_truecolor()
        assert r == g == b
    assert len({(s.bold, s.italic, s.underline) for s in styles.values()}) == len(TOKENS)


async def test_every_shipped_theme_draws_and_textuals_own_do_too() -> None:
    app = Words()
    async with app.run_test(size=(40, 10)) as pilot:
        for theme in SHIPPED:
            app.register_theme(theme)
        for name in [*BY_NAME, "nord", "textual-light"]:
            app.theme = name
            await pilot.pause()
            expected = app.theme_variables["token-corrected"]
            assert app.query_one(".token-corrected").styles.color == Color.parse(expected)


async def test_a_changed_file_is_drawn_and_a_bad_one_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (themes.shipped_folder() / "dusk.toml").read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(source)
    reported: list[list[str]] = []
    app = Words()
    async with app.run_test(size=(40, 10)) as pilot:
        folder = ThemeFolder(app, tmp_path, reported.append)
        folder.load()
        app.theme = "mine"
        await pilot.pause()
        assert app.query_one(".token-bonus").styles.color == Color.parse("#9ccfd8")

        mine.write_text(source.replace('token-bonus = "#9ccfd8"', 'token-bonus = "#ff0000"'))
        os.utime(mine, ns=(1, 1))
        assert folder.changed()
        monkeypatch.setattr(ThemeFolder, "POLL_SECONDS", 0.01)
        folder.follow()
        while folder.changed():
            await pilot.pause(0.01)
        folder.leave()
        for thread in threading.enumerate():
            if thread.name == "themes":
                await asyncio.to_thread(thread.join, 60)  # it would load the next change too
        await pilot.pause()
        assert app.query_one(".token-bonus").styles.color == Color.parse("#ff0000")
        assert reported == []

        mine.write_text("[base")
        os.utime(mine, ns=(2, 2))
        assert folder.changed()
        folder.load()
        assert not folder.changed()
        assert len(reported) == 1 and "not TOML" in reported[0][0]
        assert app.theme == "mine"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_among_the_themes_is_told_and_hinders_no_other(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    themes_found, problems = load_themes(tmp_path)
    assert [theme.name for theme in themes_found] == [theme.name for theme in load_themes(None)[0]]
    assert problems == [
        f"Theme pipe: {tmp_path / 'pipe.toml'} cannot be read: It is a named pipe, not a regular file."
    ]


async def test_a_folder_that_does_not_answer_is_told_once(tmp_path: Path, monkeypatch) -> None:
    """The shipped themes are there all the same."""
    answers = threading.Event()
    monkeypatch.setattr(themes, "_stamps", lambda folder: answers.wait() and {})
    monkeypatch.setattr(ThemeFolder, "LOAD_SECONDS", 0.05)
    reported: list[list[str]] = []
    async with Words().run_test(size=(40, 10)) as pilot:
        folder = ThemeFolder(pilot.app, tmp_path, reported.append)
        folder.load()
        assert DEFAULT_THEME in [theme.name for theme in folder.themes]
    answers.set()
    assert len(reported) == 1
    assert "did not answer within 0.05 seconds" in reported[0][0]
