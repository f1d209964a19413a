"""What a terminal sends, read as keys and pastes."""

from __future__ import annotations

import itertools

import pytest
from textual import events

from ds4chat.tui.kit.keyboard import InputParser, Key

Read = list[tuple[str, str | None] | str]


def read(*chunks: str) -> Read:
    """Keys as (name, character), pastes as their text."""
    parser = InputParser()
    found: Read = []
    for event in itertools.chain.from_iterable(parser.feed(chunk) for chunk in chunks):
        if isinstance(event, events.Key):
            found.append((event.key, event.character))
        else:
            assert isinstance(event, events.Paste)
            found.append(event.text)
    return found


@pytest.mark.parametrize("chunks", [("\x1b\r",), ("\x1b", "\r"), ("\x1b\n",), ("\x1b[13;3u",)])
def test_alt_enter_is_one_key_in_every_form_that_terminals_send(chunks: tuple[str, ...]) -> None:
    assert read(*chunks) == [("alt+enter", None)]


def test_enter_alone_and_alt_with_a_letter_stay_what_they_are() -> None:
    assert read("\r") == [("enter", "\r")]
    assert read("a\x1b[A") == [("a", "a"), ("up", None)]


@pytest.mark.parametrize(
    "character",
    ["\u200c", "\u200d", "\u00a0", "\u3000", "\u202f", "\u00ad", "\u2060", "\U0001fae8", "\U0001f9d1", "é"],
)
def test_every_character_that_people_write_is_printable(character: str) -> None:
    (key,) = InputParser().feed(character)
    assert isinstance(key, events.Key)
    assert key.is_printable and key.character == character
    assert key.copy().is_printable
    assert key.handler_name == "on_key"


@pytest.mark.parametrize("character", [*map(chr, range(1, 0x1B)), "\x7f", "\x80", "\x9b", "\x9f"])
def test_control_characters_are_not(character: str) -> None:
    for event in InputParser().feed(character):
        assert isinstance(event, Key) and not event.is_printable


PASTE = "one\x1btwo\r\n\x1b[31mthree\x1b[200~\x1b and more than thirty-two characters after an escape"


def test_a_paste_is_whole_and_in_order_whatever_is_in_it() -> None:
    assert read(f"a\x1b[200~{PASTE}\x1b[201~b") == [("a", "a"), PASTE, ("b", "b")]


def test_a_paste_may_come_in_pieces_of_any_length() -> None:
    sent = f"a\x1b[200~{PASTE}\x1b[201~b\x1b[200~\x1b[201~c"
    for size in range(1, 20):
        pieces = [sent[i : i + size] for i in range(0, len(sent), size)]
        assert read(*pieces) == [("a", "a"), PASTE, ("b", "b"), "", ("c", "c")], size


def test_a_paste_drops_nul_characters() -> None:
    assert read("\x1b[200~a\x00b\x1b[201~") == ["ab"]
