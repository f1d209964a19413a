"""Text of others made unable to drive a terminal, in its two renderings, and the streams that ask for it."""

from __future__ import annotations

import io
import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len, get_character_cell_size

from ds4chat.text import (
    PrintableStream,
    counted,
    drawn,
    encodable,
    json_text,
    one_line,
    printable,
    printable_streams,
    redraw_line,
    shortened,
    unguarded,
    unmoving,
    with_short_paths,
    without_controls,
)


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
    assert drawn(raw) == shown


@given(st.text())
def test_nothing_that_acts_is_left_and_widths_add_up(raw: str) -> None:
    shown = drawn(raw)
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


def test_a_pasted_text_keeps_its_characters_and_loses_its_escapes() -> None:
    assert (
        without_controls("\x1b[1mbold\x1b[0m\r\nnext\rlast\x07 👨\u200d👩") == "bold\nnext\nlast 👨\u200d👩"
    )


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain é 解 🙂\n\tx", "plain é 解 🙂\n\tx"),
        ("a\r\nb\rc", "a\nb\\rc"),
        ("\x00\x07\x1b\x7f\x9b", "\\x00\\x07\\x1b\\x7f\\x9b"),
        ("\u202e\u2066\u200b\ufeff\u2028\u00ad", "\\u202e\\u2066\\u200b\\ufeff\\u2028\\xad"),
        ("\U000e0041", "\\U000e0041"),
        ("👩\u200d🔬 ❤\ufe0f", "👩\u200d🔬 ❤\ufe0f"),
        ("pass\u200dword", "pass\\u200dword"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_would_act_on_a_terminal_is_an_escape_in_a_sentence(raw: str, shown: str) -> None:
    assert printable(raw) == shown
    assert one_line(raw) == shown.replace("\n", " ").replace("\t", " ")


def test_printable_json_is_the_same_json() -> None:
    value = {"k\u202e": ["\x1b\x7f\x9b\u200b", "\U000e0041🙂é"]}
    document = json_text(value)
    assert printable(document) == document
    assert json.loads(document) == value


def test_a_value_in_a_sentence_is_short_and_on_one_line() -> None:
    assert shortened("a" * 100) == "a" * 59 + "…"
    assert shortened("a\nb\x1b") == "a b\\x1b"
    assert shortened("\r\n" * 100) == " " * 59 + "…"
    assert shortened("\r\n" * 60) == " " * 60
    assert one_line(b"\xff") == r"\xff"
    assert one_line("\udcff") == r"\udcff"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("/home/me/models/deep/x.gguf is cut off.", "/home/…/x.gguf is cut off."),
        ("Get ~/models/a/b.gguf, or models/a/b.gguf", "Get ~/…/b.gguf, or models/…/b.gguf"),
        ("of '/mnt/big disk/a/b/x y.gguf' (/m/a/b/c)", "of '/mnt/big disk/…/x y.gguf' (/m/…/c)"),
        ("/x.gguf and a/x.gguf, 3 tokens/step", "/x.gguf and a/x.gguf, 3 tokens/step"),
        ("http://host:8080/v1/a/b is not one", "http://host:8080/v1/a/b is not one"),
    ],
)
def test_a_short_path_keeps_its_first_folder_and_the_name(text: str, short: str) -> None:
    assert with_short_paths(text) == short


def test_a_long_value_is_cut_before_it_is_made_printable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file's megabytes would take seconds."""
    lengths: list[int] = []

    def measured(value: str) -> str:
        lengths.append(len(value))
        return value

    monkeypatch.setattr("ds4chat.text.printable", measured)
    assert len(shortened("\x1b" * 10_000_000)) == 60
    assert lengths == [122]


@given(st.text())
def test_a_still_row_keeps_its_width(raw: str) -> None:
    row = unmoving(raw)
    assert not {unicodedata.category(char) for char in row} & {"Cc", "Cs", "Zl", "Zp"}
    assert cell_len(row) == cell_len(raw)


def test_a_row_without_such_characters_is_the_same_object() -> None:
    row = "é 👩\u200d🔬"
    assert unmoving(row) is row


def test_surrogates_become_replacement_characters_of_the_same_length() -> None:
    assert encodable("a\ud800b\udcff") == "a\ufffdb\ufffd"


def test_a_stream_passes_printable_text_alone_and_joins_what_comes_in_pieces() -> None:
    out = io.StringIO()
    stream = PrintableStream(out)
    for piece in ("a\x1b[2J", "👩", "\u200d", "🔬", "x", "\u200d", "\n"):
        assert stream.write(piece) == len(piece)
    stream.writelines(["\x07", "z"])
    assert out.getvalue() == "a\\x1b[2J👩\u200d🔬x\\u200d\n\\x07z"


def test_own_sequences_pass_beside_the_gate_and_what_stands_in_the_line_does_not() -> None:
    out = io.StringIO()
    redraw_line(PrintableStream(out), "loading \x1b]0;x\x07")
    assert out.getvalue() == "\r\x1b[Kloading \\x1b]0;x\\x07"


def test_both_streams_are_guarded_while_it_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with printable_streams():
        print("out\x1b")
        print("err\x9b", file=sys.stderr)
        with printable_streams():
            print("twice\x1b")
        print("raw\x1b", file=unguarded(sys.stdout))
    assert (sys.stdout, sys.stderr) == before
    said = capsys.readouterr()
    assert said.out == "out\\x1b\ntwice\\x1b\nraw\x1b\n" and said.err == "err\\x9b\n"


def test_a_noun_has_the_number_of_its_count() -> None:
    assert [counted(n, "message") for n in (0, 1, 2, 2000)] == [
        "0 messages",
        "1 message",
        "2 messages",
        "2,000 messages",
    ]
