"""Runs ``python -m ds4chat`` as a user does, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def ds4chat(*arguments: str | Path, env: dict[str, str] | None = None, before: str = "") -> Ran:
    """Run the command line; ``env`` is added to the environment, ``before`` is Python run in the process
    first, for faults that only come from inside."""
    start = ["-c", f"{before}\nimport sys\nfrom ds4chat.commands.main import main\nsys.exit(main())"]
    done = subprocess.run(
        [sys.executable, *(start if before else ["-m", "ds4chat"]), *map(str, arguments)],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)
