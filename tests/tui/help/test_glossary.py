"""The words of the panels explain themselves: in the help, beside the pointer and by a key."""

from __future__ import annotations

import pytest
from kits.chat_stage import Chat, Open

from ds4chat.engine.baseline import PlainTime
from ds4chat.engine.events import Phases
from ds4chat.engine.stats import Stats
from ds4chat.settings.schema import TUNING
from ds4chat.tui.chat.legend import ORIGINS
from ds4chat.tui.glossary import INTRODUCTION, LEGEND, TERMS, explain, find
from ds4chat.tui.help.screen import HelpLines, HelpScreen
from ds4chat.tui.kit.lines import LinesView
from ds4chat.tui.panels.acceptance import counter_lines, outcome_lines, speed_lines
from ds4chat.tui.panels.confidence import columns, head_line
from ds4chat.tui.panels.timings import phase_lines
from ds4chat.tui.panels.timings import speed_lines as rate_lines


@pytest.mark.parametrize(
    "word",
    [
        "lossy",
        "judged",
        "mean len",
        "gated",
        "fallback",
        "ratio",
        "gap",
        "d.gap",
        "bonus",
        "rate",
        "ctx",
        "margin",
    ],
)
def test_a_word_is_found_by_its_name(word: str) -> None:
    found = find(word)
    assert found and all(word in (term.name, term.place.lower(), *term.aliases) for term in found)
    assert found == find(word.upper())


def words(lines: list[tuple[tuple[str, str], ...]]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def test_every_label_of_the_panels_is_explained() -> None:
    stats = Stats(plain=PlainTime(20.0))
    rows = {
        "Acceptance": [*counter_lines(stats, stats), *outcome_lines(stats), speed_lines(stats)[0]],
        "Timings": [*phase_lines(Phases(1, 1, 1, 1, 1, 5), stats)[1:], *rate_lines(stats, None, None)],
        "Confidence": [head_line(columns(60))],
    }
    for place, lines in rows.items():
        for line in lines:
            text, at = "", 0
            for label, _ in line:
                at = len(text)
                text += label
                name = label.strip(" ■")
                if name and name[0].isalpha() and name not in ("ms", "tok/s") and place != "Confidence":
                    assert explain(place, "".join(part for part, _ in line), at + len(label) - 1), label
    head = words(rows["Confidence"])[0]
    for name in head.split():
        told = explain("Confidence", head, head.index(f" {name}") + 1)
        assert name in told.partition(":")[0], name


def test_the_word_under_the_pointer_is_explained_not_its_neighbour() -> None:
    row = "judged        12   rate       80.0 %"
    assert explain("Acceptance", row, 2).startswith("judged:")
    assert explain("Acceptance", row, row.index("rate") + 1).startswith("rate:")
    assert explain("Acceptance", row, len(row)).startswith("rate:")
    assert explain("Acceptance", "nothing known", 0) == ""
    # A word is not found inside another.
    assert explain("Acceptance", "unjudged", 3) == ""


def test_terms_are_whole_and_settings_come_from_their_table() -> None:
    assert len(INTRODUCTION) == 6
    assert {role for _, role in ORIGINS} <= LEGEND.keys()
    for option in TUNING:
        (term,) = [term for term in TERMS if term.place == "Tuning" and term.name == option.short]
        assert option.help.removesuffix(".") in term.sentences
    assert len({(term.place, term.name) for term in TERMS}) == len(TERMS)


async def lines(chat: Chat) -> str:
    await chat.pilot.pause()
    assert isinstance(chat.app.screen, HelpScreen)
    return chat.app.screen.query_one(HelpLines).text


async def test_help_opens_with_what_mtp_is_and_the_legend(opened: Open) -> None:
    async with opened(size=(120, 40)) as chat:
        await chat.press("f1")
        shown = await lines(chat)
        assert shown.startswith("What MTP is")
        assert INTRODUCTION[0].split(",")[0] in shown and LEGEND["bonus"] in shown
        roles = {role for line in chat.app.screen.query_one(HelpLines).lines for _, role in line}
        assert LEGEND.keys() <= roles


async def test_help_answers_a_word(opened: Open) -> None:
    async with opened(size=(120, 40)) as chat:
        await chat.type("/help lossy", "escape", "enter")
        shown = await lines(chat)
        assert shown.startswith("Words") and "accepted only by their ratio" in shown
        assert "/margin 1 is exact" in shown and "What MTP is" not in shown


async def test_a_panels_row_explains_itself_to_the_pointer_and_to_a_key(opened: Open) -> None:
    async with opened(size=(140, 45)) as chat:
        view = chat.screen.dock_view.query_one("#acceptance-lines", LinesView)
        y = next(i for i, row in enumerate(view.text.splitlines()) if row.startswith("mean len"))
        await chat.pilot.hover(view, offset=(2, y))
        assert str(view.tooltip).startswith("mean len:")
        chat.screen.dock_view.first_title.focus()
        await chat.pilot.pause()
        await chat.press("question_mark")
        shown = await lines(chat)
        assert "mean len" in shown and "fallback" in shown
        assert chat.prompt == ""
