"""Whatever runs the engine loads llama.cpp before numpy.

A llama.cpp that holds libstdc++ within itself crashes while it loads a vocabulary if numpy has brought the
shared libstdc++ before: std::regex then mixes the two.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

ROOT = Path(__file__).resolve().parent.parent.parent

REPORT = """
import json, sys
print(json.dumps([name for name in sys.modules if name.split(".")[0] in ("numpy", "llama_cpp")]))
"""
"""sys.modules has a module at the place where its import was done, so numpy's inner modules before numpy."""

CHILD = """
import io, os, threading
from ds4chat.engine.child import Engine
from ds4chat.engine.events import Load, Quit
from ds4chat.engine.wire import encode
read, write = os.pipe()
os.write(write, encode(Load({model!r})) + encode(Quit()))
Engine(os.fdopen(read, "rb"), io.BytesIO()).run()
"""

TOOL = """
import importlib.util
spec = importlib.util.spec_from_file_location("tool", {path!r})
tool = importlib.util.module_from_spec(spec)
sys.modules["tool"] = tool
spec.loader.exec_module(tool)
"""


def loaded(code: str) -> list[str]:
    """Modules of numpy and llama_cpp in the order in which a new process that runs this code loaded them."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\n{REPORT}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def assert_llama_first(code: str) -> None:
    found = loaded(code)
    assert "llama_cpp.llama_cpp" in found and "numpy" in found, found
    assert next(name for name in found if name.startswith(("llama_cpp.llama_cpp", "numpy"))) == (
        "llama_cpp.llama_cpp"
    )


def command(*argv: str) -> str:
    """Code that runs ds4chat with these arguments."""
    return (
        "from ds4chat.commands.main import main\n"
        f"try:\n    main({list(argv)!r})\nexcept SystemExit:\n    pass"
    )


def test_the_order_shows_which_came_first() -> None:
    """What the other tests here rest upon."""
    first = loaded("import numpy, llama_cpp.llama_cpp")
    assert first.index("numpy") < first.index("llama_cpp.llama_cpp")
    assert first[0].startswith("numpy")
    first = loaded("import llama_cpp.llama_cpp, numpy")
    assert first.index("llama_cpp.llama_cpp") < first.index("numpy")


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(("-p", "hello", "-n", "2"), id="one shot"),
        pytest.param(("-p", "hello", "-n", "2", "--lookup"), id="one shot with lookup"),
        pytest.param(("check", "-p", "hello", "-n", "2", "--lookup"), id="check"),
    ],
)
def test_a_command_that_answers(tiny_dir: Path, argv: tuple[str, ...]) -> None:
    model = str(tiny.build("llama", tiny_dir))
    assert_llama_first(command(*argv, "-m", model, "-c", "256", "-t", "1"))


def test_the_prompts_of_a_file(tiny_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("hello\nhello again\n", encoding="utf-8")
    model = str(tiny.build("llama", tiny_dir))
    assert_llama_first(command("--prompts-file", str(file), "-n", "2", "-m", model, "-c", "256", "-t", "1"))


def test_bench(tmp_path: Path) -> None:
    """It has imported all it needs when it finds that there is no such file."""
    assert_llama_first(command("bench", "-m", str(tmp_path / "none.gguf"), "--quick"))


def test_the_engine_process(tiny_dir: Path) -> None:
    assert_llama_first(CHILD.format(model=str(tiny.build("llama", tiny_dir))))


@pytest.mark.parametrize("module", ["opening", "session", "llama", "replay", "measure"])
def test_a_module_of_the_engine_that_is_imported_first(module: str) -> None:
    """Tools and the engine process's two threads import these in an order that nobody fixes."""
    assert_llama_first(f"import ds4chat.engine.{module}")


def test_the_tool_that_evaluates_a_support_model() -> None:
    assert_llama_first(TOOL.format(path=str(ROOT / "tools" / "evaluate_support.py")))


def test_the_bare_loop_that_decoding_is_measured_against() -> None:
    """It is another process's code: its imports are run as they stand."""
    code = TOOL.format(path=str(ROOT / "tools" / "measure.py"))
    imports = 'exec("\\n".join(line for line in tool.BARE.splitlines() if line.startswith("import ")))'
    assert_llama_first(f"{code}\n{imports}")
