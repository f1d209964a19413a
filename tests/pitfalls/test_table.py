"""The table in README.md and the tests agree: no row without its tests, no test named that does not exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = range(1, 32)
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def table() -> dict[int, list[tuple[str, str]]]:
    """Row -> (file, test) of the tests that it names."""
    rows: dict[int, list[tuple[str, str]]] = {}
    for line in (ROOT / "tests/pitfalls/README.md").read_text(encoding="utf-8").splitlines():
        if number := re.match(r"\| (\d+) \|", line):
            row = int(number[1])
            assert row not in rows, f"row {row} stands twice"
            rows[row] = _NAMED.findall(line)
    return rows


@cache
def functions_of(file: str) -> dict[str, str]:
    """Name -> docstring of the test functions at the top of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {
        node.name: ast.get_docstring(node) or ""
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def rows_of(docstring: str) -> list[int]:
    """The rows that a docstring names: "Pitfall 9: ...", "Pitfalls 28 and 29: ..."."""
    head = re.match(r"Pitfalls? ([\d, and]+)", docstring)
    return [int(n) for n in re.findall(r"\d+", head[1])] if head else []


def test_every_row_is_listed_once_and_names_a_test() -> None:
    rows = table()
    assert list(rows) == list(ROWS)
    assert not [row for row, tests in rows.items() if not tests]


@pytest.mark.parametrize("row", ROWS)
def test_the_tests_of_a_row_exist(row: int) -> None:
    missing = [f"{file}::{name}" for file, name in table()[row] if name not in functions_of(file)]
    assert not missing


def test_every_test_of_this_folder_that_names_a_row_stands_in_it() -> None:
    """Both ways: a test named by a row of this folder says the row's number in its docstring."""
    rows = table()
    said = {
        (row, f"tests/pitfalls/{path.name}", name)
        for path in Path(__file__).parent.glob("test_pitfalls_*.py")
        for name, docstring in functions_of(f"tests/pitfalls/{path.name}").items()
        for row in rows_of(docstring)
    }
    listed = {
        (row, file, name)
        for row, tests in rows.items()
        for file, name in tests
        if file.startswith("tests/pitfalls/")
    }
    assert said == listed


def test_docstrings_are_read_as_they_are_written() -> None:
    assert rows_of("Pitfall 9: a row") == [9]
    assert rows_of("Pitfalls 28 and 29.") == [28, 29]
    assert rows_of("Pitfalls 18, 22, 24: x") == [18, 22, 24]
    assert rows_of("Ctrl-C at 12") == []
