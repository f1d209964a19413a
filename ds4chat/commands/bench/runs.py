"""The measuring itself: every prompt plainly, at each depth and at auto, in turn, within a time budget.

A block is one prompt under every setting. Blocks go round the kinds of text, so that a measurement that ends
early has as much of each. A block begins and ends with plain decoding: the others are compared with the mean
of the two, and their difference shows how much the machine's other work blurs everything. The order of the
settings between them is rotated from block to block, and every other time reversed, so that a drift cancels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ds4chat.commands.bench.plan import FEWEST_TOKENS, Plan
from ds4chat.commands.bench.running import reply_of
from ds4chat.commands.bench.server import LlamaServer, ServerReply
from ds4chat.commands.bench.workloads import Workload
from ds4chat.commands.running import request_of
from ds4chat.engine.control import Control
from ds4chat.engine.events import Depth, Event, Notice, SpeculationOff, Step
from ds4chat.engine.from_settings import tuning_of
from ds4chat.engine.session import Session
from ds4chat.errors import UserFacingError
from ds4chat.settings.schema import Settings

VERIFY_ROWS = 9
"""Batches of 1 to this many rows are always timed: depths up to 8."""
PAST = 64
"""Cells in the cache while they are timed, if the cache can be cut back to them."""
_ROUNDS = 4
_IN_A_ROW = 5
"""Most decodes of one size in a row, besides the first."""
WARM_UP = 8
RESERVE = 0.85
"""Share of the remaining time that is planned for; blocks differ."""


@dataclass(frozen=True, slots=True)
class Run:
    """One reply under one setting."""

    workload: str
    prompt: int
    """Index of the prompt within its kind of text."""
    depth: Depth
    """0 is plain decoding."""
    ids: tuple[int, ...]
    decode_ms: float
    steps: tuple[Step, ...]

    @property
    def has_speed(self) -> bool:
        """It is long enough for that."""
        return len(self.ids) >= 2 and self.decode_ms > 0

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens over the wall time of the steps."""
        return len(self.ids) / self.decode_ms * 1000


@dataclass(frozen=True, slots=True)
class ServerRun:
    """The server's reply to one prompt."""

    workload: str
    prompt: int
    tokens_per_s: float
    ids: tuple[int, ...] = ()
    """Its tokens; empty if they are not known."""
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """How long target decodes take, by their rows."""

    ms: list[float]
    """Median milliseconds of each size, after a decode of the same size."""
    switch_ms: float
    """Median milliseconds that a decode takes longer after one of another size."""


@dataclass
class Measured:
    """Everything that was measured so far."""

    verify_ms: list[float] = field(default_factory=list)
    """Milliseconds of a target decode of 1, 2, ... rows, each size several times in a row: up to VERIFY_ROWS,
    and as many as the deepest draft needs."""
    switch_ms: float | None = None
    """Milliseconds that a change of size adds to a decode; None if that was not measured."""
    runs: list[Run] = field(default_factory=list)
    server: list[ServerRun] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    """What the engine reported during the measurement, each sentence once."""
    off: SpeculationOff | None = None
    """The session gave its drafter up: only plain decoding is left to measure."""


class Measurement:
    """One measurement of an opened session. ``stop`` may be called from a signal handler."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        workloads: Sequence[Workload],
        plan: Plan,
        *,
        server: LlamaServer | None = None,
        progress: Callable[[int, int, str], None] = lambda done, total, what: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.measured = Measured()
        self.stopped = False
        self._session = session
        self._settings = settings
        tuning = tuning_of(settings)
        # One seed for all settings, so that they decode the same text; probing would make drafts useless.
        self._tuning = replace(tuning, probe=False, full_logits=False, seed=max(tuning.seed, 1))
        self._workloads = workloads
        self._plan = plan
        self._server = server
        self._progress = progress
        self._clock = clock
        self._started = clock()
        self._control = Control(self._tuning)
        self._replies = 0
        self._token_ms = 0.0
        """Milliseconds that one more token adds to a reply: the mean over the settings."""
        self._prompt_ms = 0.0
        """Milliseconds of a reply besides its tokens: every setting reads the whole prompt."""

    def stop(self) -> None:
        """End as soon as the engine returns; what is complete by then is kept."""
        self.stopped = True
        self._control.cancel()

    def run(self) -> Measured:
        """Measure until the plan is done or the time is up. Raises BenchError when the engine fails."""
        self._progress(0, 1, "verification cost")
        cost = self._verify_cost(range(1, VERIFY_ROWS + 1))
        self.measured.verify_ms, self.measured.switch_ms = cost.ms, cost.switch_ms
        self._guess_pace()
        self._warm_up()
        blocks = self._plan.blocks(self._workloads)
        for number, (workload, prompt) in enumerate(blocks):
            if self._over:
                break
            # Each kind of text gets one block, however short.
            owed = len(self._workloads) - number
            tokens = self._tokens_for(len(self._plan.settings) * max(owed, 1))
            if owed <= 0 and self._too_short(tokens):
                break
            self._block(number, len(blocks), workload, prompt, tokens)
            if number + 1 == len(self._workloads):
                self._go_deeper(blocks[: number + 1])
        return self.measured

    @property
    def _over(self) -> bool:
        return self.stopped or self._late or self.measured.off is not None

    def _verify_cost(self, sizes: Sequence[int]) -> VerifyCost:
        return verify_cost(
            self._session,
            self._prompt_tokens(self._workloads[0].prompts[0]),
            sizes,
            budget_s=min(6.0, self._plan.budget_s / 20),
            stop=lambda: self.stopped,
        )

    def _go_deeper(self, blocks: Sequence[tuple[Workload, int]]) -> None:
        """Answer these prompts, which every other setting has answered, at one deeper depth of the plan after
        the other, as long as the deepest so far gains and there is time. A depth at which all of them were
        answered is part of the later blocks, too."""
        for depth in self._plan.deeper:
            settings: tuple[Depth, ...] = (0, depth, 0)
            tokens = self._tokens_for(len(settings) * len(blocks))
            if self._over or self._too_short(tokens) or not deepest_gains(self.measured.runs):
                return
            found = []
            for number, (workload, prompt) in enumerate(blocks):
                self._progress(number, len(blocks), f"{workload.name}, {name_of(depth)}")
                for setting in settings:
                    run = self._reply(workload, prompt, setting, tokens)
                    if run is None or self._over:
                        return
                    if run.has_speed:
                        found.append(run)
            self.measured.runs += found
            known = self.measured.verify_ms
            one, *more = self._verify_cost((1, *range(len(known) + 1, depth + 2))).ms
            # The machine may run at another speed by now: only the cost over one row counts.
            known += [ms * known[0] / one for ms in more]
            self._plan = replace(self._plan, depths=(*self._plan.depths, depth))

    # -- time

    @property
    def _elapsed(self) -> float:
        return self._clock() - self._started

    @property
    def _left(self) -> float:
        return max(self._plan.budget_s - self._elapsed, 0.0)

    @property
    def _late(self) -> bool:
        return self._elapsed > self._plan.deadline_s

    def _tokens_for(self, replies: int) -> int:
        """Tokens per reply with which so many replies fit into the time left."""
        ms = self._left * RESERVE * 1000 / replies - self._prompt_ms
        return max(FEWEST_TOKENS, min(self._plan.tokens, int(ms / self._token_ms)))

    def _too_short(self, tokens: int) -> bool:
        """Replies of so few tokens would only blur the others."""
        return tokens < self._plan.tokens // 2

    def _guess_pace(self) -> None:
        """Estimate how long a reply takes, from the verification cost: half of the first drafts accepted."""
        ms = self.measured.verify_ms
        token_ms = [ms[0]] if self._server else []
        for depth in self._plan.settings:
            rows = 1 if depth == "auto" else min(depth + 1, len(ms))
            token_ms.append(ms[rows - 1] / (1.5 if rows > 1 else 1.0))
        self._token_ms = 1.2 * sum(token_ms) / len(self._plan.settings)
        self._prompt_ms = 10 * ms[0]

    # -- runs

    def _warm_up(self) -> None:
        """Give replies that do not count: they warm up the processor's caches and the thread pools."""
        for depth in (0, *self._plan.depths[-1:]):
            self._reply(self._workloads[0], 0, depth, WARM_UP)
        self._ask_server(self._workloads[0], 0, WARM_UP)

    def _block(self, number: int, of: int, workload: Workload, prompt: int, tokens: int) -> None:
        """One prompt under every setting."""
        started = self._clock()
        runs = []
        settings = in_turn(self._plan.settings, number)
        for i, depth in enumerate(settings):
            share = number * len(settings) + i
            self._progress(share, of * len(settings), f"{workload.name}, {name_of(depth)}")
            run = self._reply(workload, prompt, depth, tokens)
            if run is None:
                break
            if run.has_speed:
                runs.append(run)
            if self.measured.off:
                break
        # A block that was broken off counts if something in it can be compared.
        if any(run.depth == 0 for run in runs) and (len(runs) == len(settings) or any(r.depth for r in runs)):
            self.measured.runs += runs
        if len(runs) < len(settings):
            return
        before_server = self._clock()
        if self._server:
            self._progress((number + 1) * len(settings), of * len(settings), f"{workload.name}, server")
        reply = self._ask_server(workload, prompt, tokens)
        if reply and reply.tokens_per_s:
            self.measured.server.append(
                ServerRun(workload.name, prompt, reply.tokens_per_s, reply.ids, reply.drafted, reply.accepted)
            )
        ended = self._clock()
        decode_ms = sum(run.decode_ms for run in runs) + (ended - before_server) * 1000
        self._token_ms = decode_ms / max(len(run.ids) for run in runs) / len(settings)
        self._prompt_ms = max((ended - started) * 1000 - decode_ms, 0.0) / len(settings)

    def _ask_server(self, workload: Workload, prompt: int, tokens: int) -> ServerReply | None:
        """The server's reply; None without a server, when it fails, and when there is no time for it."""
        if not self._server or self.stopped or self._late:
            return None
        try:
            return self._server.answer(
                self._prompt_tokens(workload.prompts[prompt]),
                tokens,
                stop=lambda: self.stopped or self._late,
            )
        except UserFacingError as error:
            self.measured.notices.append(f"{error} The bench went on without it.")
            self._server = None
            return None

    def _reply(self, workload: Workload, prompt: int, depth: Depth, tokens: int) -> Run | None:
        """One reply of a session that remembers nothing; None when it was broken off. Raises BenchError."""
        self._session.reset()
        self._replies += 1
        request = request_of(
            self._settings,
            workload.prompts[prompt],
            reply=self._replies,
            tuning=replace(self._tuning, depth=depth),
            max_tokens=tokens,
        )
        control = self._control = Control(request.tuning)
        if self.stopped:
            return None

        def note(event: Event) -> None:
            if self._late:
                control.cancel()
            if isinstance(event, SpeculationOff):
                self.measured.off = event
            elif isinstance(event, Notice) and event.message not in self.measured.notices:
                self.measured.notices.append(event.message)

        replied = reply_of(self._session, request, control, note)
        if replied is None:
            return None
        steps, end = replied
        ids = tuple(token.id for step in steps for token in step.tokens)
        return Run(workload.name, prompt, depth, ids, end.decode_ms, tuple(steps))

    def _prompt_tokens(self, prompt: str) -> list[int]:
        request = request_of(self._settings, prompt)
        return self._session.prompter.chat(request.messages, think=request.think).tokens


def in_turn(settings: Sequence[Depth], block: int) -> list[Depth]:
    """The settings in this block's order: the first and the last stay, those between are rotated by one from
    block to block, and every other time reversed."""
    first, *middle, last = settings
    at = block % max(len(middle), 1)
    rotated = [*middle[at:], *middle[:at]]
    return [first, *(rotated[::-1] if block % 2 else rotated), last]


def name_of(depth: Depth) -> str:
    """The name of a setting: plain, depth 3, auto."""
    if depth == "auto":
        return "auto"
    return f"depth {depth}" if depth else "plain"


def deepest_gains(runs: Sequence[Run]) -> bool:
    """Whether on some prompt the deepest depth is faster than every other one, by more than the median
    difference of two plain runs of one prompt."""
    prompts: dict[tuple[str, int], dict[Depth, list[float]]] = {}
    for run in runs:
        speeds = prompts.setdefault((run.workload, run.prompt), {})
        speeds.setdefault(run.depth, []).append(run.tokens_per_s)
    plain = [speeds[0] for speeds in prompts.values() if len(speeds.get(0, ())) > 1]
    noise = statistics.median(max(same) / min(same) - 1 for same in plain) if plain else 0.0
    deepest = max((run.depth for run in runs if run.depth != "auto"), default=0)
    for speeds in prompts.values():
        others = [max(taken) for depth, taken in speeds.items() if depth not in (0, deepest, "auto")]
        if others and deepest in speeds and max(speeds[deepest]) > (1 + noise) * max(others):
            return True
    return False


def verify_cost(
    session: Session,
    tokens: Sequence[int],
    sizes: Sequence[int],
    *,
    budget_s: float,
    stop: Callable[[], bool] = lambda: False,
) -> VerifyCost:
    """How long target decodes of these sizes take, each row with logits. The session is empty afterwards.

    ``tokens``: some text. ``sizes``: numbers of rows. Each size is decoded several times in a row, as plain
    decoding and the steps of a fixed depth do, because after a decode of another size llama.cpp builds its
    graph again: the first decode of a row only counts as the price of that change. Rounds over the sizes go
    up and down in turn, so that a drift cancels. The first round is always finished.
    """
    times: dict[int, list[float]] = {rows: [] for rows in sizes}
    changes: list[list[float]] = []
    started = time.perf_counter()
    share_s = budget_s / (_ROUNDS * len(sizes))
    decode = _timed_decode(session, tokens, max(sizes))
    try:
        for number in range(_ROUNDS):
            changed = []
            for rows in sizes if number % 2 == 0 else reversed(sizes):
                begun = time.perf_counter()
                first, same = decode(rows), [decode(rows)]
                while len(same) < _IN_A_ROW and time.perf_counter() - begun < share_s:
                    same.append(decode(rows))
                times[rows] += same
                changed.append(first - statistics.median(same))
            changes.append(changed)
            if time.perf_counter() - started > budget_s or stop():
                break
    finally:
        session.reset()
    # In the first round the first decode of a size also loads its kernels.
    counted = [ms for changed in changes[1:] or changes for ms in changed]
    return VerifyCost(
        [statistics.median(taken) for taken in times.values()], max(statistics.median(counted), 0.0)
    )


def _timed_decode(session: Session, tokens: Sequence[int], most: int) -> Callable[[int], float]:
    """A function that decodes so many rows, at most ``most``, always after the same cells of the cache, and
    returns the milliseconds."""
    target = session.caches.target
    text = [tokens[i % len(tokens)] for i in range(PAST + most)]
    past = PAST if session.caches.rollback == "kv" and session.n_ctx > PAST + most else 0
    session.reset()
    if past:
        target.decode(text[:past], 0, outputs="none")

    def decode(rows: int) -> float:
        nonlocal past
        begin = time.perf_counter()
        target.decode(text[past : past + rows], past, outputs="all")
        ms = (time.perf_counter() - begin) * 1000
        if not (past and target.remove_from(past)):
            target.clear()
            past = 0
        return ms

    return decode
