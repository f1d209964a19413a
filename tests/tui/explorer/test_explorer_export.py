"""Export: the rows shown, in their order, whole or not at all, and never over a file unasked."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
from kits.explorer_stage import steps_from

from ds4chat.analysis.rows import rows_from_steps
from ds4chat.tui.explorer import export as explorer_export
from ds4chat.tui.explorer.export import ExportError, FileExistsAlready, export_rows

ROWS = rows_from_steps(steps_from(("++", "-")))
CHOSEN = np.array([2, 0])


def test_csv_holds_the_rows_in_the_order_shown(tmp_path: Path) -> None:
    path, count = export_rows(ROWS, CHOSEN, str(tmp_path / "rows.csv"))
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert count == len(rows) == 2
    assert [(row["step"], row["draft_text"], row["accepted"]) for row in rows] == [
        ("1", " model", "0"),
        ("0", " the", "1"),
    ]


def test_jsonl_holds_one_object_a_row(tmp_path: Path) -> None:
    path, _ = export_rows(ROWS, CHOSEN, f" {tmp_path / 'rows.JSONL'} ")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["draft"], row["ratio"]) for row in rows] == [(2, 0.25), (0, 1.0)]


def test_a_file_that_is_there_is_kept_until_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("mine")
    with pytest.raises(FileExistsAlready, match=r"exists already\. Enter again overwrites it"):
        export_rows(ROWS, CHOSEN, str(path))
    assert path.read_text() == "mine"
    export_rows(ROWS, CHOSEN, str(path), overwrite=True)
    assert path.read_text().startswith("reply,step,position,")


def test_a_file_that_comes_while_the_rows_are_written_is_kept(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "rows.csv"

    def slow(rows, file, indices) -> int:
        path.write_text("theirs")
        return 0

    monkeypatch.setitem(explorer_export.WRITERS, ".csv", slow)
    with pytest.raises(FileExistsAlready):
        export_rows(ROWS, CHOSEN, str(path))
    assert path.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["rows.csv"]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch) -> None:
    def full(rows, file, indices) -> int:
        file.write("half a")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(explorer_export.WRITERS, ".csv", full)
    with pytest.raises(ExportError, match=r"rows\.csv cannot be written: No space left on device\."):
        export_rows(ROWS, CHOSEN, str(tmp_path / "rows.csv"))
    assert os.listdir(tmp_path) == []


def test_without_hard_links_the_file_is_renamed_into_place(tmp_path: Path, monkeypatch) -> None:
    def no_links(source: str, target: str) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    path, _ = export_rows(ROWS, CHOSEN, str(tmp_path / "rows.csv"))
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "Give the name of a file that ends in .csv or .jsonl."),
        ("rows.parquet", "rows.parquet ends in neither .csv nor .jsonl. The ending decides the format."),
        ("no/such/rows.csv", "no/such/rows.csv cannot be written: No such file or directory."),
        ("folder.csv", "folder.csv is a folder. Give the name of a file."),
    ],
)
def test_a_name_that_cannot_be_is_refused_in_a_sentence(name, sentence, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.csv").mkdir()
    with pytest.raises(ExportError) as caught:
        export_rows(ROWS, CHOSEN, name, overwrite=True)
    assert str(caught.value) == sentence
