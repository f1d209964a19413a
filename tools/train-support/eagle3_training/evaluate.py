"""Acceptance by position through ds4chat's own engine: one-shot runs of its command line, read as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3_training.errors import TrainingError

LONGEST_PERIOD = 64
SHORTEST_REPLY = 8

Run = Callable[[Sequence[str]], dict[str, Any]]
"""Options of a one shot to its JSON object."""


@dataclass
class Tally:
    """Counts over the replies of one depth and kind of prompt."""

    judged: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    steps: int = 0
    emitted: int = 0
    ms: float = 0.0
    replies: int = 0
    same: int = 0
    """Replies whose tokens are those of plain decoding."""

    def add(self, reply: dict[str, Any], *, same: bool) -> None:
        """Fold one reply's ``stats`` in."""
        stats = reply["stats"]
        for i, position in enumerate(stats["by_position"]):
            if i == len(self.judged):
                self.judged.append(0)
                self.accepted.append(0)
            self.judged[i] += position["judged"]
            self.accepted[i] += position["accepted"]
        self.steps += stats["steps"]
        self.emitted += stats["emitted"]
        self.ms += stats["ms"]["total"]
        self.replies += 1
        self.same += same

    @property
    def conditional(self) -> list[float]:
        """Conditional acceptance by position."""
        return [a / max(j, 1) for a, j in zip(self.accepted, self.judged, strict=True)]

    @property
    def tokens_per_pass(self) -> float:
        """Emitted tokens a target pass."""
        return self.emitted / max(self.steps, 1)

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens over the steps' wall time."""
        return self.emitted / self.ms * 1000 if self.ms else 0.0

    def as_json(self) -> dict[str, Any]:
        """The figures, rounded."""
        return {
            "by_position": [{"judged": j, "accepted": a} for j, a in zip(self.judged, self.accepted)],
            "conditional": [round(v, 4) for v in self.conditional],
            "tokens_per_pass": round(self.tokens_per_pass, 4),
            "tokens_per_s": round(self.tokens_per_s, 2),
            "replies": self.replies,
            "same_as_plain": self.same,
        }


def one_shot(target: Path, threads: int) -> Run:
    """Runs ds4chat's one shot with these options in a process of its own. Raises TrainingError."""

    def run(options: Sequence[str]) -> dict[str, Any]:
        command = [sys.executable, "-m", "ds4chat", "-m", str(target), "--json", "--temp", "0", *options]
        if threads:
            command += ["-t", str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise TrainingError(f"ds4chat could not answer a held-out prompt: {reason[0]}")
        reply: dict[str, Any] = json.loads(done.stdout)
        return reply

    return run


def loop_start(ids: Sequence[int]) -> int:
    """Index of the first token inside a verbatim loop, as data.loops defines it; len(ids) without one."""
    for t in range(len(ids)):
        for period in range(1, min(LONGEST_PERIOD, t) + 1):
            need = max(2 * period, 24)
            if t + 1 - need >= period and all(ids[k] == ids[k - period] for k in range(t + 1 - need, t + 1)):
                return t
    return len(ids)


def evaluate(
    run: Run,
    head: Path,
    prompts: dict[str, list[str]],
    depths: Sequence[int],
    *,
    max_tokens: int = 200,
    done: Callable[[str], None] = lambda _: None,
) -> dict[int, dict[str, Tally]]:
    """Tallies by depth, 0 being plain decoding, and by kind of prompt, "all" included.

    prompts: kind -> user prompts. A plain reply that runs into a loop is cut there, and so are the others to
    the same prompt: drafting inside a loop succeeds always and says nothing of the head.
    """
    tallies: dict[int, dict[str, Tally]] = {depth: {"all": Tally()} for depth in (0, *depths)}
    for kind, texts in prompts.items():
        for text in texts:
            plain = run(["-p", text, "-n", str(max_tokens)])
            ids = _ids(plain)
            n = max(SHORTEST_REPLY, loop_start(ids))
            if n < len(ids):
                plain = run(["-p", text, "-n", str(n)])
                ids = _ids(plain)
            replies = {0: plain}
            for depth in depths:
                options = ["--mtp", str(head), "--mtp-draft", str(depth), "-p", text, "-n", str(len(ids))]
                replies[depth] = run(options)
            for depth, reply in replies.items():
                for name in (kind, "all"):
                    tallies[depth].setdefault(name, Tally()).add(reply, same=_ids(reply) == ids)
            done(f"{kind}: {text[:60]!r}, {len(ids)} tokens")
    return tallies


def _ids(reply: dict[str, Any]) -> list[int]:
    return [token["id"] for token in reply["tokens"]]


def table(tallies: dict[int, dict[str, Tally]]) -> str:
    """The figures as lines of text: a line for each depth, then the kinds at the greatest depth."""
    plain = tallies[0]["all"]
    lines = [f"plain: {plain.emitted} tokens, {plain.tokens_per_s:.1f} tok/s"]
    for depth, kinds in tallies.items():
        if depth:
            t = kinds["all"]
            speed = t.tokens_per_s / plain.tokens_per_s if plain.tokens_per_s else 0.0
            lines.append(
                f"depth {depth}: {_figures(t)}, speed {speed:.2f} of plain, "
                f"tokens as plain {t.same} of {t.replies}"
            )
    deepest = max(tallies)
    lines += [f"  {kind}: {_figures(t)}" for kind, t in tallies[deepest].items() if kind != "all"]
    return "\n".join(lines)


def _figures(t: Tally) -> str:
    row = " ".join(f"{v:.3f}" for v in t.conditional)
    return f"acceptance {row}, {t.tokens_per_pass:.2f} tokens per pass"
