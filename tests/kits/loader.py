"""Loads files in a process of its own, which a file may end."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

PATIENCE = 120.0
"""Seconds for one case; a load of a constructed model takes a thousandth of it."""


class Loader:
    """The child, replaced when it dies."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._child: subprocess.Popen[str] | None = None

    def outcome(self, target: Path, support: Path | str) -> str:
        """What the child says, or how it ended."""
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("loader_child.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log.open("w"),
                text=True,
                errors="surrogateescape",
            )
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        timer = threading.Timer(PATIENCE, child.kill)
        timer.start()
        try:
            child.stdin.write(f"{target}\t{support}\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        except OSError:
            answer = ""
        finally:
            timer.cancel()
        if answer:
            return answer.rstrip("\n")
        code = child.wait()
        self.close()
        words = self._log.read_text(errors="replace").strip().splitlines()[-3:]
        return f"died\t{code}\t{' | '.join(words)}"

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for stream in (self._child.stdin, self._child.stdout):
                assert stream is not None
                with suppress(OSError):  # a case still to be written has no reader
                    stream.close()
            self._child = None
