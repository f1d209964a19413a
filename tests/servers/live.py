"""llama.cpp's own server on loopback, and what it logs of its steps."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ds4chat.engine.events import Origin

_STEP = re.compile(r"add accepted tokens: sampled=-?\d+, ids\.size=(\d+), n_draft=(\d+)")


@dataclass
class Server:
    """A running server."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]

    def steps(self) -> list[tuple[int, int]]:
        """(drafted, accepted) of every step with drafts so far, by the server's own log."""
        text = self.log.read_text("utf-8", "replace")
        return [(int(drafted), int(ids) - 1) for ids, drafted in _STEP.findall(text)]


@contextmanager
def serve(
    folder: Path, model: Path | str, kind: str, draft: Path | str = "", key: str = ""
) -> Iterator[Server]:
    """A server of this model; ``kind``: plain, eagle3, ngram or mtp."""
    log = folder / f"{kind}.log"
    with log.open("wb") as err:
        process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("llama_host.py")),
                str(model),
                kind,
                str(draft),
                key,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            url = process.stdout.readline().decode().strip()
            assert url, log.read_text("utf-8", "replace")[-2000:]
            yield Server(url, log, process)
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def origins(steps: list[tuple[int, int]], told: list[Origin]) -> list[Origin]:
    """The origins that a step log stands for, the steps without drafts put where ``told`` has plain
    tokens."""
    found: list[Origin] = []
    waiting = list(steps)
    while len(found) < len(told):
        if told[len(found)] == "plain" or not waiting:
            found.append("plain")
            continue
        drafted, accepted = waiting.pop(0)
        found += ["accepted"] * accepted
        found.append("bonus" if accepted == drafted else "corrected")
    return found
