"""Model text on the screen: harmless, and as wide as it is said to be."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len, get_character_cell_size

from ds4chat.tui.transcript.safe import clean_input, expand_tabs, safe_text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("a\x1b[31mb", "a␛[31mb"),
        ("nul\x00", "nul␀"),
        ("del\x7f", "del␡"),
        ("c1\x9b2J", "c1▯2J"),
        ("rtl\u202eevil", "rtl▯evil"),
        ("zero\u200bwidth", "zero▯width"),
        ("bom\ufeff", "bom▯"),
        ("tag\U000e0041", "tag▯"),
        ("a\r\nb\rc", "a\nb␍c"),
        ("line\u2028sep", "line\nsep"),
        ("👨\u200d👩", "👨👩"),
        ("❤\ufe0f", "❤"),
        ("می\u200cروم", "می\u200cروم"),
        ("ab\u200ccd", "ab▯cd"),
        ("tab\tstays", "tab\tstays"),
        ("\ud800", "\ufffd"),
    ],
)
def test_what_would_act_on_the_screen_is_a_visible_symbol(raw: str, shown: str) -> None:
    assert safe_text(raw) == shown


@given(st.text())
def test_nothing_that_acts_is_left_and_widths_add_up(raw: str) -> None:
    shown = safe_text(raw)
    for char in shown:
        assert char in "\n\t" or unicodedata.category(char) != "Cc"
        assert unicodedata.bidirectional(char) not in {
            "LRE",
            "RLE",
            "LRO",
            "RLO",
            "PDF",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        }
    plain = shown.replace("\n", "").replace("\t", "")
    assert cell_len(plain) == sum(get_character_cell_size(char) for char in plain)
    shown.encode()  # a lone surrogate would raise


def test_tabs_go_to_the_next_stop_of_their_line() -> None:
    assert expand_tabs("a\tb\n\tc", 0) == "a   b\n    c"
    assert expand_tabs("\tx", 3) == " x"


def test_a_pasted_text_keeps_its_characters_and_loses_its_escapes() -> None:
    assert clean_input("\x1b[1mbold\x1b[0m\r\nnext\rlast\x07 👨\u200d👩") == "bold\nnext\nlast 👨\u200d👩"
