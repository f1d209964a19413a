"""Runs the command line: as a user does, in a process of its own, or in the process of the tests."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ds4chat.commands.main import main

PATIENCE_S = 120


@dataclass(frozen=True)
class Ran:
    """What one run left: its exit code and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output as the one object that it must be."""
        answer = json.loads(self.out)
        assert isinstance(answer, dict)
        return answer

    @property
    def ids(self) -> list[int]:
        return [t["id"] for t in self.json["tokens"]]


def ds4chat(
    *arguments: str | Path, env: dict[str, str] | None = None, before: str = "", stdin: str | None = None
) -> Ran:
    """Run the command line in a process of its own; ``env`` is added to the environment, ``before`` is Python
    run in the process first, for faults that only come from inside, and ``stdin`` comes through a pipe."""
    start = ["-c", f"{before}\nimport sys\nfrom ds4chat.commands.main import main\nsys.exit(main())"]
    done = subprocess.run(
        [sys.executable, *(start if before else ["-m", "ds4chat"]), *map(str, arguments)],
        env={**os.environ, **(env or {})},
        **({"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


RunHere = Callable[..., Ran]


@contextmanager
def running_here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[RunHere]:
    """Runs the command line in this process, which has all of it imported, with the null device as standard
    input; whoever logs afterwards does so as before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def run(*arguments: str | Path) -> Ran:
        capfd.readouterr()
        code = main([*map(str, arguments)])
        out, err = capfd.readouterr()
        assert "Traceback" not in err, err
        return Ran(code, out, err)

    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield run
    for handler in set(root.handlers).difference(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
