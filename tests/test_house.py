"""The rules of the house: form, types, which part may import which, what each start loads, and sizes."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ds4chat.settings.save import document

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "ds4chat").rglob("*.py"))
MAX_CLASS = 480
MAX_FUNCTION = 80

LINT_IMPORTS = "from importlinter.cli import lint_imports_command as main; main(['--no-cache'])"


def python(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], cwd=ROOT, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(("-m", "ruff", "check", "."), id="lint"),
        pytest.param(("-m", "ruff", "format", "--check", "."), id="format"),
        pytest.param(("-m", "mypy"), id="types"),
        pytest.param(("-c", LINT_IMPORTS), id="imports"),
    ],
)
def test_the_code_passes(argv: tuple[str, ...]) -> None:
    done = python(*argv)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("ds4chat.tui", ("llama_cpp",)),
        ("ds4chat.tui.app", ("llama_cpp",)),
        ("ds4chat.engine", ("textual", "rich", "sqlite3", "argparse")),
        ("ds4chat.engine.events", ("llama_cpp", "textual", "numpy")),
        ("ds4chat.engine.client", ("llama_cpp", "textual")),
        ("ds4chat.engine.child", ("llama_cpp", "textual", "numpy")),
        ("ds4chat.servers.session", ("llama_cpp", "textual", "numpy", "sqlite3")),
        ("ds4chat.commands.bench.remote", ("llama_cpp", "textual", "numpy")),
        ("ds4chat.commands.main", ("llama_cpp", "textual", "numpy", "gguf", "msgspec")),
        ("ds4chat.settings.load", ("ds4chat.engine", "ds4chat.models", "llama_cpp", "textual", "numpy")),
    ],
)
def test_importing_one_part_does_not_load_another(module: str, unwanted: tuple[str, ...]) -> None:
    assert find_spec(module), f"{module} is gone: this test proves nothing of it any more"
    code = f"import sys, {module}; print(*sorted(set({unwanted!r}) & set(sys.modules)))"
    done = python("-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_the_example_settings_file_is_the_document_that_is_saved() -> None:
    """Make it anew with ``ds4chat config defaults > config.example.toml``."""
    assert (ROOT / "config.example.toml").read_text(encoding="utf-8") == document()


def test_no_class_and_no_function_is_too_long_to_be_read_at_once() -> None:
    long = {
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}": length
        for file in SOURCES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and (length := (node.end_lineno or 0) - node.lineno + 1)
        > (MAX_CLASS if isinstance(node, ast.ClassDef) else MAX_FUNCTION)
    }
    assert long == {}


def test_the_ci_runs_the_command_that_the_readme_gives() -> None:
    """.ci/run takes it from the README, by its end; there must be one to take."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if line.strip().endswith("-m pytest")]
    assert len(found) == 1
    assert '-e ".[test]"' in found[0]
