"""The status line: what always shows, and what gives way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kits.chat import PIECES, ended, loaded, steps_of
from kits.chat_stage import Open

from ds4chat.engine.events import DrafterInfo, Loading, Prefill, Tuning
from ds4chat.engine.stats import Stats
from ds4chat.tui.chat.legend import legend_line, legend_words
from ds4chat.tui.chat.status_line import Status, status_lines


def stats() -> Stats:
    found = Stats()
    for event in (loaded(), *steps_of(1, PIECES), ended(1)):
        found.fold(event)
    return found


READY = Status("ready", None, "Tiny Chat", loaded(), Tuning(depth=2), stats())


def lines(status: Status, width: int) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in status_lines(status, width)]


def test_a_wide_line_has_everything() -> None:
    assert lines(READY, 120) == [
        " ● ready     Tiny Chat  eagle3 depth 2  exact   88.0 tok/s  1.76× plain at load   80% accepted"
        "  ctx 62/2,048"
    ]


def test_no_context_is_shown_that_a_server_does_not_tell() -> None:
    told = Stats()
    for event in steps_of(1, PIECES):
        told.fold(replace(event, context_used=0))
    assert lines(replace(READY, stats=told), 120)[0].endswith("ctx –/2,048")
    assert lines(replace(READY, stats=Stats()), 120)[0].endswith("ctx 0/2,048")


def test_a_long_name_takes_the_room_that_a_wide_line_has() -> None:
    named = replace(READY, model="A rather long name of a model, and more")
    assert "A rather long name of a mod…  eagle3" in lines(named, 140)[0]
    assert "A rather long name of a model, and more  eagle3" in lines(named, 160)[0]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_parts_give_way_before_the_line_is_too_long(width: int) -> None:
    (line,) = lines(READY, width)
    assert len(line) <= width
    assert "● ready" in line and "depth 2" in line and "exact" in line
    assert ("eagle3" in line) == (width > 40) and "ctx 62/2,048" in line


def test_approximate_is_loud_at_every_width() -> None:
    for width in (40, 80, 120):
        spans = status_lines(replace(READY, tuning=Tuning(depth=2, margin=0.8)), width)[0]
        assert (" APPROXIMATE ≥0.80 ", "approximate") in spans


def test_the_reason_has_lines_of_its_own() -> None:
    reason = "The target has no NextN block and no support file was given. /mtp chooses one."
    shown = lines(replace(READY, loaded=loaded(off_reason=reason)), 60)
    assert "MTP off" in shown[0]
    assert " ".join(line.strip() for line in shown[1:]) == f"MTP is off: {reason}"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_long_path_is_shortened_before_the_reason_behind_it(width: int) -> None:
    reason = f"/home/{'a-long-folder/' * 12}support.gguf was made for another model: it has 4 layers. /mtp"
    shown = lines(replace(READY, loaded=loaded(off_reason=f"{reason} chooses one.")), width)[1:]
    assert " ".join(line.strip() for line in shown) == (
        "MTP is off: /home/…/support.gguf was made for another model: it has 4 layers. /mtp chooses one."
    )
    shown = lines(replace(READY, loaded=loaded(off_reason="a sentence without an end " * 20)), width)[1:]
    assert shown[-1].endswith(" …") and len(shown) == (4 if width == 40 else 2)


@pytest.mark.parametrize(
    ("note", "said"),
    [
        (
            "batches of up to 17 rows are bit-equal to single decodes here",
            [" Strict mode: batches of up to 17 rows are bit-equal to single decodes here."],
        ),
        (
            "verification is one token at a time: batches of 4 are not bit-equal to single decodes here "
            "(after 48 tokens)",
            [
                " Strict mode: verification is one token at a time: batches of 4 are not bit-",
                " equal to single decodes here (after 48 tokens).",
            ],
        ),
        (
            "",  # turned on in the chat: the load tested nothing
            [
                " Strict mode: verification is one token at a time until /model loads the model",
                " again and tests batches.",
            ],
        ),
    ],
)
def test_strict_mode_says_how_it_verifies(note: str, said: list[str]) -> None:
    tested = replace(READY, loaded=replace(loaded(), strict_note=note))
    assert lines(replace(tested, tuning=Tuning(depth=2, strict=True)), 80)[1:] == said
    assert lines(tested, 80)[1:] == []
    paused = lines(replace(tested, tuning=Tuning(depth=0, strict=True)), 80)
    assert paused[1:] == [" MTP is off: paused by you. Ctrl+T or /mtp on resumes it."]


async def test_the_chat_says_how_strict_mode_verifies_as_soon_as_it_is_on(opened: Open) -> None:
    note = "batches of up to 17 rows are bit-equal to single decodes here"
    async with opened(load=replace(loaded(), strict_note=note)) as chat:
        assert "Strict mode" not in chat.shown()
        await chat.type("/set mtp-strict on", "enter")
        assert f"Strict mode: {note}." in chat.shown().splitlines()[-1]
        assert chat.app.settings.mtp_strict


def test_loading_and_reading_show_how_far_they_are() -> None:
    loading = replace(READY, state="loading", loaded=None, progress=Loading("reading tensors", 0.5))
    assert "50%" in lines(loading, 80)[0] and "reading tensors" in lines(loading, 80)[0]
    reading = replace(READY, state="reading", progress=Prefill(1, 256, 1024, 0, 1.0))
    assert "256/1,024" in lines(reading, 120)[0]


def test_a_nearly_full_context_stays_and_warns() -> None:
    nearly = stats()
    nearly.context_used = 2000
    spans = status_lines(replace(READY, stats=nearly), 70)[0]
    assert ("2,000/2,048", "warning") in spans


def test_the_legend_explains_what_is_shown() -> None:
    def text(**shown: bool) -> str:
        return "".join(t for t, _ in legend_line(legend_words(**shown), 80))

    assert text().split() == ["accepted", "corrected", "bonus", "plain", "F1", "help"]
    assert text(unknown=True).split() == ["accepted", "corrected", "bonus", "plain", "unknown", "F1", "help"]
    assert "by ratio alone" in text(approximate=True)
    assert "unknown" in text(unknown=True)
    assert text(two_colours=True).split()[:2] == ["accepted", "fallback"]
    assert "Markdown" in text(markdown=True)


def test_a_note_stands_at_the_right_of_the_words_that_fit_beside_it() -> None:
    def text(width: int, note: str) -> str:
        return "".join(t for t, _ in legend_line(legend_words(), width, note))

    assert legend_line(legend_words(), 80, "depth 2→3")[-1] == (" depth 2→3 ", "note")
    for width in (30, 80, 200):
        assert text(width, "depth 2→3").endswith(" depth 2→3 ") and len(text(width, "depth 2→3")) == width
    assert text(30, "depth 2→3").split() == ["accepted", "depth", "2→3"]
    assert text(80, "depth 2→3").split()[-4:] == ["F1", "help", "depth", "2→3"]


async def test_a_note_comes_and_goes_without_a_layout(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as chat:
        row, laid_out = chat.screen.legend_row, []
        monkeypatch.setattr(row, "SAY_SECONDS", 0.01)
        monkeypatch.setattr(type(chat.screen), "_refresh_layout", lambda *_: laid_out.append(1))
        row.say("a note")
        assert row.legend.text.endswith(" a note ")
        while "a note" in row.legend.text:
            await chat.pilot.pause(0.01)
        await chat.pilot.pause()
        assert not laid_out and "plain" in row.legend.text


def test_a_depth_beyond_what_was_loaded_shows_the_one_that_runs() -> None:
    drafter = DrafterInfo("nextn-embedded", "", 2, "as many as this load keeps copies of")
    status = replace(READY, loaded=replace(loaded(), drafter=drafter), tuning=Tuning(depth=8))
    assert "nextn-embedded depth 2 of 8 asked  exact" in lines(status, 140)[0]
    for depth in (1, 2, "auto"):
        shown = lines(replace(status, tuning=Tuning(depth=depth)), 140)[0]  # type: ignore[arg-type]
        assert f"nextn-embedded depth {depth}  exact" in shown
