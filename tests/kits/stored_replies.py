"""Engine events made to measure for the store's tests, and the processes that write them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ds4chat.engine.events import Ended, FullRow, Judged, Phases, Step, Token, Tuning
from ds4chat.store.recording import Recorded, ReplyRecorder

ROOT = Path(__file__).parents[2]


def step(index: int, *, thinking: bool = False, tuning: Tuning | None = None, reply: int = 0) -> Step:
    """A step of three tokens, two accepted drafts and a correction: 11 characters, "tINDEX" padded to 4."""
    judged = tuple(
        Judged(
            position=place,
            draft=100 + place,
            draft_text=f"d{place}",
            target=100 + place if place < 3 else 7,
            target_text=f"d{place}" if place < 3 else "é",
            accepted=place < 3,
            by="match" if place < 3 else "",
            ratio=1.0 if place < 3 else 0.25,
            gap=2.5 / place,
            draft_gap=None if place == 2 else 1.5,
            draft_prob=0.1 * place,
            full=FullRow(0.1, 0.9, 1.25, ((7, "é", 0.9), (8, "", 0.05))) if place == 1 else None,
        )
        for place in (1, 2, 3)
    )
    tokens = (
        Token(1000 + index, f"t{index:03}", "accepted", thinking),
        Token(2, "", "accepted", thinking),
        Token(3, " 🙂é\n\t~", "corrected", thinking),
    )
    return Step(
        reply=reply,
        index=index,
        tokens=tokens,
        drafted=3,
        judged=judged,
        outcome="partial",
        ms=Phases(1.0, 2.0, 0.25, 0.5, 0.125, 3.875),
        tuning=tuning or Tuning(depth=3),
        depth=3,
        drafter="nextn-support",
        context_used=10 + 3 * index,
    )


def text(steps: list[Step]) -> str:
    """What the steps emitted."""
    return "".join(token.text for one in steps for token in one.tokens)


def ended(reason: str = "stop", *, tail: str = "", reply: int = 0, detail: str = "") -> Ended:
    """The end of a reply."""
    return Ended(
        reply=reply,
        finish_reason=reason,  # type: ignore[arg-type]
        detail=detail,
        prompt_tokens=12,
        reused_tokens=4,
        prefill_ms=20.5,
        decode_ms=300.25,
        first_token_ms=25.0,
        context_used=99,
        seed=7,
        tail=tail,
    )


def keep(recorder: ReplyRecorder, *events: Recorded) -> None:
    """Have the recorder write what came, and this."""
    recorder.append(*events)
    recorder.flush()


def python(code: str, *arguments: object, **more: object) -> subprocess.Popen[str]:
    """A process that runs ``code`` with these arguments; its stdout is a pipe."""
    environment = dict(os.environ, PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        **more,  # type: ignore[call-overload]
    )


def said(process: subprocess.Popen[str]) -> str:
    """The next line that the process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


WRITER = """
import sys, time
from pathlib import Path
from ds4chat.store import open_store
from ds4chat.store.recording import INTERVAL, Request
from ds4chat.store.writer import Writer
from kits.stored_replies import step
store = open_store(Path(sys.argv[1]))
recorder = store.record(Request("What is written here?"))
def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # in one piece: two threads say something
    sys.stdout.flush()
def beat():
    begun = time.monotonic()
    recorder.flush()
    say("written", begun, time.monotonic())
    return True
Writer(beat, INTERVAL).put(lambda: None)
say(recorder.conversation, recorder.message)
index = 0
while True:
    begun = time.monotonic()
    recorder.append(step(index))
    say(index, begun, time.monotonic())
    index += 1
    time.sleep(0.01)
"""
"""Writes a reply until it is killed. Says the numbers, then of each step its index and when, by its clock,
it began to hand it over and had done so, and the same of each write to the disk."""
