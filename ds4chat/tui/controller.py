"""The chat without a screen: sends commands to the engine, and turns its events into the conversation.

The states of the engine as the chat sees it:

    none -> loading -> ready -> saving -> reading -> writing -> ready ...
                         \\---> checking or comparing -> ready
                 \\-> failed            (nothing is loaded, or the load was stopped; another may be asked for)
    any  -> died                        (the process is gone; a new load starts another)

One call of ``frame`` takes everything that the engine sent since the last one. Nothing else reads events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import count
from threading import RLock
from time import monotonic
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

from ds4chat.engine.events import (
    Alive,
    Cancel,
    Command,
    Ended,
    EngineDied,
    Event,
    Generate,
    Load,
    Loaded,
    LoadFailed,
    Loading,
    Message,
    ModelInfo,
    Notice,
    Prefill,
    Replayed,
    Retune,
    Revised,
    SpeculationOff,
    Step,
    Tuning,
)
from ds4chat.engine.stats import Stats
from ds4chat.tui.aside import Aside, Check
from ds4chat.tui.conversation import Conversation, Reply, UserTurn
from ds4chat.tui.recorder import Recorder
from ds4chat.tui.watchdog import Watchdog

P = ParamSpec("P")
T = TypeVar("T")

EngineState = Literal[
    "none",
    "loading",
    "ready",
    "saving",
    "reading",
    "writing",
    "checking",
    "comparing",
    "stopping",
    "failed",
    "died",
]
"""saving: the engine is not asked yet, because the prompt is not on disk yet. checking: a finished reply is
decoded again and compared. comparing: a prompt is answered under two settings."""

LOCK_SECONDS = 1.0
"""How long a method waits for another thread in one: longer only if that one hangs."""
KILL_AFTER = 3.0
"""Seconds after which a second stop ends an engine that does not take the first one."""

AGAIN = f"; Esc again {KILL_AFTER:.0f} seconds later ends the engine. What came is kept."
NOT_STARTED = "The engine process cannot be started: {}. Free memory or processes, then reload."
ENDED_BY_USER = (
    "The engine did not answer, and you ended it. Everything that came is kept; load the model again to go "
    "on."
)


@dataclass(slots=True)
class EngineProgress:
    """Progress of a load or of reading a prompt."""

    stage: str = ""
    fraction: float = 0.0
    """Of a load's stage, 0..1."""
    done: int = 0
    total: int = 0
    """Prompt tokens read, of all."""


@dataclass(slots=True)
class Frame:
    """The changes of one frame, which have to be redrawn."""

    started: list[Reply] = field(default_factory=list)
    """Replies asked for, their prompt the turn before each."""
    steps: list[Step] = field(default_factory=list)
    """Of the running reply, in order."""
    grown: Reply | None = None
    """The reply that gained something."""
    revised: Reply | None = None
    """The reply whose steps were revised."""
    ended: Reply | None = None
    engine: bool = False
    """The engine's state or progress changed."""
    failed: bool = False
    """A requested load failed."""
    notices: list[Notice] = field(default_factory=list)
    replayed: list[Replayed] = field(default_factory=list)

    @property
    def looks(self) -> set[str]:
        """Looks of tokens among what came that the legend explains only once they were seen."""
        unknown = any(token.origin == "unknown" for step in self.steps for token in step.tokens)
        approximate = self.grown is not None and self.grown.lossy
        return {name for name, seen in (("unknown", unknown), ("approximate", approximate)) if seen}

    @property
    def empty(self) -> bool:
        """Nothing came."""
        return not (self.started or self.grown or self.ended or self.engine or self.notices or self.replayed)


class Engine(Protocol):
    """The handle of an engine, such as ds4chat.engine.client.EngineClient."""

    @property
    def alive(self) -> bool:
        """The process runs."""

    def start(self) -> None:
        """Start the process, unless it runs. Raises OSError."""

    def send(self, command: Command) -> None:
        """Send one command."""

    def drain(self) -> list[Event]:
        """Every event since the last call."""

    def kill(self) -> None:
        """End the process at once."""

    def close(self) -> None:
        """Have the process leave."""


def one_thread_at_a_time(method: Callable[P, T]) -> Callable[P, T]:
    """The method, kept from being run by two threads at once on one object, whose ``lock`` is an RLock. The
    way out by force takes in what came while the thread of the screen may be about the same."""

    @wraps(method)
    def in_turn(*args: P.args, **values: P.kwargs) -> T:
        owner: Any = args[0]
        held = owner.lock.acquire(timeout=LOCK_SECONDS)
        try:
            return method(*args, **values)
        finally:
            if held:
                owner.lock.release()

    return in_turn


class Chat:
    """The conversation, the queue of prompts, and the engine behind them."""

    def __init__(
        self,
        engine: Engine,
        recorder: Recorder,
        tuning: Tuning,
        *,
        system: str = "",
        think: bool = True,
        max_tokens: int = -1,
        keep_accepted: bool = True,
        end_loops: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.engine = engine
        self.recorder = recorder
        self.tuning = tuning
        self.think, self.max_tokens = think, max_tokens
        self.keep_accepted, self.end_loops = keep_accepted, end_loops
        self.conversation = Conversation(system=system)
        self.queue: deque[str] = deque()
        self.state: EngineState = "none"
        self.progress = EngineProgress()
        self.loaded: Loaded | None = None
        self.load_command: Load | None = None
        self.trouble = ""
        """Why nothing is loaded, as a sentence."""
        self.session = Stats()
        """Totals of every reply since the start."""
        self.reply: Reply | None = None
        """The running reply."""
        self._unasked: tuple[Message, ...] | None = None
        """What the engine is to be asked with, as soon as the prompt is kept."""
        self._own: list[Event] = []
        """Events that the engine has no part in."""
        self._numbers = count(1)
        self._clock = clock
        self.warning = ""
        """Sentences about an engine that is silent or does not stop, and what the user can do."""
        self._watchdog = Watchdog(clock)
        self._aside: Aside | None = None
        """The check or comparison that runs."""
        self._stopped_at: float | None = None
        self._pending_load = False
        self._in_force: Load | None = None
        """What was loaded whole last: what a reload loads once a load was stopped."""
        self._killed = False
        """The process was ended, and its EngineDied is still to come."""
        self._started: list[Reply] = []
        self._changed = True
        self.took_model: Callable[[ModelInfo], object] = lambda _: None
        """Told of a model that was loaded, before a prompt that waited for it is sent."""
        self.lock = RLock()

    # -- the engine

    @property
    def busy(self) -> bool:
        """Events are to be expected soon."""
        return self.working or self.state == "loading"

    @property
    def working(self) -> bool:
        """A reply, a check or a comparison runs."""
        return self.reply is not None or self._aside is not None

    def load(self, command: Load) -> None:
        """Load models instead of what is loaded. A running reply, check or load is stopped first."""
        self.load_command = command
        self._changed = True
        if self.working and self.state not in ("died", "failed"):
            self._pending_load = True
            self.stop()
            return
        waited, self._pending_load = self._pending_load, False
        if self.state == "loading" and not (self._killed or waited):
            self._kill()
        self.loaded, self.trouble = None, ""
        self.progress = EngineProgress(stage="starting the engine")
        self.state = "loading"
        self._watchdog.expect("loading")
        if self._killed:
            self._pending_load = True  # until the process is gone
            return
        try:
            self.engine.start()
        except OSError as error:
            self._fail(NOT_STARTED.format(error))
            return
        self.engine.send(command)

    def reload(self) -> bool:
        """Load again what was loaded or asked for last; False when nothing was."""
        if self.load_command is not None:
            self.load(self.load_command)
        return self.load_command is not None

    def _load_pending(self) -> bool:
        """Load what waited for the end of a reply or of the process; False when nothing did."""
        return self._pending_load and self.reload()

    @property
    def model_name(self) -> str:
        """Name of the model that is loaded or being loaded."""
        if self.loaded is not None:
            return self.loaded.target.title
        return self.load_command.title if self.load_command is not None else ""

    def retune(self, tuning: Tuning) -> None:
        """Take up a tuning, a running reply from its next step on."""
        changed, self.tuning = tuning != self.tuning, tuning
        if changed and self.reply is not None and self._unasked is None:
            self.engine.send(Retune(tuning))

    # -- prompts

    def submit(self, text: str) -> bool:
        """Send a prompt, or queue it while the engine is not ready; True when it was sent."""
        self.recorder.prompted(text)
        if self.state != "ready" or self.queue:
            self.queue.append(text)
            self._next()
            return False
        self._ask(text)
        return True

    def retry(self) -> bool:
        """Answer the newest prompt anew, or go on anew with a reply that was gone on with; what came instead
        is left out. False where there is none to answer, or while the engine is not ready."""
        if self.state != "ready" or not self.conversation.drop_reply():
            return False
        self.recorder.went_back(self.conversation)
        self._request()
        return True

    def go_on(self) -> bool:
        """Go on with the newest reply; False where it is not cut in its answer, or the engine not ready."""
        last = self.conversation.turns[-1] if self.conversation.turns else None
        able = self.state == "ready" and isinstance(last, Reply) and last.can_go_on
        if able:
            self._request()
        return able

    def set_system(self, text: str) -> None:
        """Ask under this system prompt from now on; empty: under none."""
        self.conversation.system = text
        self.recorder.went_back(self.conversation)

    def undo(self) -> str | None:
        """Take back the newest prompt and its reply; the prompt's text, or None where there is none."""
        text = None if self.reply is not None else self.conversation.drop_exchange()
        if text is not None:
            self.recorder.went_back(self.conversation)
        return text

    def new(self) -> bool:
        """Begin a new conversation; False while a reply runs."""
        return self.resume(Conversation(system=self.conversation.system))

    def resume(self, conversation: Conversation) -> bool:
        """Go on with a stored conversation; False while a reply runs. The engine reads it anew with the next
        prompt."""
        if self.reply is not None:
            return False
        self.conversation = conversation
        return True

    def next_number(self) -> int:
        """A number that no reply of this session has. Any thread may ask."""
        return next(self._numbers)

    def stop(self) -> bool:
        """Stop the running reply and keep what came, a check, a comparison or a load; False where none runs.
        Asked again after KILL_AFTER seconds, it ends an engine that does not answer."""
        if not self.working:
            return self._stop_load()
        if self._stopped_at is None:
            self._stopped_at = self._clock()
            if self.reply is not None and self._unasked is not None:
                self._unasked = None
                self._own.append(self.reply.own_end("cancelled"))
            elif running := self.reply or self._aside:
                self.engine.send(Cancel(running.number))
            self.state = "stopping"
            self._changed = True
        elif self._clock() - self._stopped_at >= KILL_AFTER:
            self._kill()
        return True

    def _stop_load(self) -> bool:
        """End the engine in the middle of a load: llama.cpp's own loading cannot be interrupted. A reload
        loads what was loaded before, if anything was."""
        if self.state != "loading":
            return False
        stopped = self.model_name
        self.load_command = self._in_force or self.load_command
        self._pending_load = False
        self._fail(f"You stopped the load of {stopped}, so no model is loaded.")
        if not self._killed:
            self._kill()
        return True

    def _kill(self) -> None:
        self._killed = True
        self.engine.kill()

    @one_thread_at_a_time
    def abandon(self) -> None:
        """The chat is closed: take in what came, and end a running reply so that it is kept as stopped."""
        self.frame()
        reply = self.reply
        if reply is None:
            return
        ended = reply.own_end("cancelled", "The chat was closed while this reply was written.")
        reply.end(ended)
        self.recorder.ended(reply, ended)
        self.reply = None

    def replay(self) -> Reply | None:
        """Have the newest reply decoded again without speculation; None where that cannot be."""
        reply = self.conversation.last_reply
        return reply if reply and reply.tokens and self.begin(Check(reply.number)) else None

    def begin(self, aside: Aside) -> bool:
        """Have the engine do something else than answer; False while it is not ready."""
        if self.state != "ready":
            return False
        self._aside, self._stopped_at = aside, None
        self.state, self.progress, self._changed = aside.state, EngineProgress(), True
        self._watchdog.expect("reading")
        self.engine.send(aside.next_command(self.next_number))
        return True

    def _aside_answered(self, aside: Aside) -> None:
        self.state, self._changed = "ready", True
        if self._stopped_at is not None:
            aside.stop()
        if not aside.over:
            self.begin(aside)
            return
        self._aside = self._stopped_at = None
        if not self._load_pending():
            self._next()

    def _ask(self, text: str) -> None:
        self.conversation.turns.append(UserTurn(text))
        self._request()

    def _request(self) -> None:
        """Ask for a reply to the conversation as it stands, or for more of the one that it ends with."""
        last = self.conversation.turns[-1]
        before = last if isinstance(last, Reply) else None
        reply = Reply(self.next_number(), self.model_name, before=before)
        self._unasked = self.conversation.messages()
        reply.stats.plain.load_ms = self.loaded.plain_ms if self.loaded else 0.0
        self.conversation.turns.append(reply)
        self.recorder.started(self.conversation, reply)
        self.reply = reply
        self.state = "saving"
        self.progress = EngineProgress()
        self._stopped_at = None
        self._started.append(reply)
        self._ask_when_kept()

    def _ask_when_kept(self) -> None:
        """Ask the engine for the reply, unless its prompt is neither on disk nor known to be in trouble."""
        reply, messages = self.reply, self._unasked
        if reply is None or messages is None or not self.recorder.kept:
            return
        self._unasked = None
        self._changed = True
        self.state = "reading"
        self._watchdog.expect("reading")
        number = self.recorder.number_on_disk(self.conversation)
        request = request_of(self, messages)
        self.engine.send(replace(request, reply=reply.number, conversation=number, baseline=True))

    def _next(self) -> None:
        if self.state == "ready" and self.queue:
            self._ask(self.queue.popleft())

    # -- events

    @one_thread_at_a_time
    def frame(self) -> Frame:
        """Take everything in that the engine sent since the last call."""
        frame = Frame()
        recorded: list[Step | Prefill] = []
        own, self._own = self._own, []
        for event in [*own, *self.engine.drain()]:
            if isinstance(event, Step):
                self._step(event, frame, recorded)
            elif isinstance(event, Prefill):
                self._prefill(event, frame, recorded)
            else:
                self._flush(recorded)
                self._other(event, frame)
            if self._aside is not None and self._aside.handle(event):
                self._aside_answered(self._aside)
        self._flush(recorded)
        warning = self._warn()
        frame.engine |= self._changed or warning != self.warning
        self.warning, self._changed = warning, False
        frame.started, self._started = self._started, []
        frame.notices += self.recorder.news()
        self._ask_when_kept()
        return frame

    def _warn(self) -> str:
        if not self.busy:
            self._watchdog.expect(None)
        if self._stopped_at is not None and self._clock() - self._stopped_at >= KILL_AFTER:
            return "The engine does not stop. Esc again ends it; what came is kept."
        complaint = self._watchdog.complaint
        if not complaint or self._stopped_at is not None:
            return ""
        if self.state == "loading":
            what = "load"
        else:
            what = "reply" if self.reply else "comparison" if self.state == "comparing" else "check"
        return f"{complaint} Wait, or press Esc to stop the {what}{AGAIN if what != 'load' else '.'}"

    def _flush(self, recorded: list[Step | Prefill]) -> None:
        if recorded and self.reply is not None:
            self.recorder.took(self.reply, tuple(recorded))
        recorded.clear()

    def _step(self, step: Step, frame: Frame, recorded: list[Step | Prefill]) -> None:
        self._watchdog.sign("writing", step.ms.total / 1000)
        if self.reply is None or step.reply != self.reply.number:
            return
        if self.state == "reading":
            self.state = "writing"
            frame.engine = True
        self.reply.add_step(step)
        self.session.fold(step)
        frame.steps.append(step)
        frame.grown = self.reply
        recorded.append(step)

    def _prefill(self, event: Prefill, frame: Frame, recorded: list[Step | Prefill]) -> None:
        running = self.reply or self._aside
        if running is None or event.reply != running.number:
            return
        self._watchdog.sign("reading")
        self.progress = EngineProgress("reading", done=event.done, total=event.total)
        frame.engine = True
        if self.reply is None:
            return
        self.reply.stats.fold(event)
        if not event.again:
            self.reply.prefill = event
            recorded.append(event)
        elif self.state == "writing":
            self.state = "reading"

    def _other(self, event: Event, frame: Frame) -> None:
        if self._killed and isinstance(event, Loading | Loaded | LoadFailed):
            return  # sent before its process was ended
        if isinstance(event, Loading):
            self._watchdog.sign("loading")
            self.progress = EngineProgress(event.stage, event.fraction)
            frame.engine = True
        elif isinstance(event, Loaded):
            self._loaded(event)
            frame.engine = True
        elif isinstance(event, LoadFailed):
            frame.failed = True
            if not self._load_former(event.message, frame):
                self._fail(event.message)
        elif isinstance(event, Revised):
            self._revised(event, frame)
        elif isinstance(event, Alive):
            self._watchdog.sign("writing" if self.state == "writing" else "reading")
        elif isinstance(event, Ended):
            self._ended(event, frame)
        elif isinstance(event, EngineDied):
            self._died(event, frame)
        elif isinstance(event, Replayed):
            self._replayed(event, frame)
        elif isinstance(event, SpeculationOff):
            self._speculation_off(event, frame)
        elif isinstance(event, Notice):
            frame.notices.append(event)

    def _load_former(self, sentence: str, frame: Frame) -> bool:
        """Load again what was loaded before the load that failed, and say why; False where nothing was, or
        where that is what failed."""
        if self._in_force is None or self._in_force == self.load_command:
            return False
        failed = self.model_name
        self.state = "failed"  # nothing is loading any more
        self.load(self._in_force)
        former = self.model_name
        again = (
            f"{former} is loaded again." if former != failed else "What was loaded before is loaded again."
        )
        frame.notices.append(Notice("error", f"{sentence} {again}"))
        frame.engine = True
        return True

    def _loaded(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self._in_force = self.load_command
        if self.load_command is not None:
            self.recorder.loaded(self.load_command, loaded)
        self.took_model(loaded.target)
        if self.reply is None:  # else a reply of a server told more of it
            self.state = "ready"
            self._next()

    def _revised(self, event: Revised, frame: Frame) -> None:
        if self.reply is None or event.reply != self.reply.number:
            return
        self.reply.revise(event)
        self.session.fold(event)
        self.recorder.took(self.reply, (event,))
        frame.grown = frame.revised = self.reply

    def _speculation_off(self, off: SpeculationOff, frame: Frame) -> None:
        """The status line, the panels and what is stored of later replies go by what is loaded."""
        if self.loaded is None or self.load_command is None:
            return
        self.loaded, frame.engine = self.loaded.without_drafter(off), True
        self.recorder.loaded(self.load_command, self.loaded)
        frame.notices.append(Notice("warning", f"MTP is off: {off.reason}."))

    def _replayed(self, replayed: Replayed, frame: Frame) -> None:
        frame.replayed.append(replayed)
        reply = self.conversation.reply(replayed.reply)
        if reply is not None and replayed.plain_ms:
            reply.stats.fold(replayed)
            self.recorder.checked(reply)
            frame.grown = reply

    def _ended(self, ended: Ended, frame: Frame) -> None:
        reply = self.reply
        if reply is None or ended.reply != reply.number:
            return
        by_user = self._stopped_at is not None
        reply.end(ended)
        self.session.fold(ended)
        self.recorder.ended(reply, ended)
        frame.grown, frame.ended, frame.engine = reply, reply, True
        self.reply = self._stopped_at = None
        self.state = "ready"
        if not self._load_pending() and not by_user:
            self._next()

    def _died(self, died: EngineDied, frame: Frame) -> None:
        ended_by_user, self._killed = self._killed, False
        if ended_by_user and self.state in ("failed", "loading"):
            self._load_pending()  # what was stopped is a load, which was said then
            return
        if ended_by_user:
            died = replace(died, message=ENDED_BY_USER)
        if self.state == "loading" and not ended_by_user and self._load_former(died.message, frame):
            frame.failed = True
            return
        frame.engine = True
        self.state = "died"
        self.loaded = None
        self.trouble = died.message
        self._unasked = None
        if self._aside is not None:
            self._aside.stop()
        self._aside = self._stopped_at = None
        if self.reply is not None:
            self.reply.crash(died)
            self.recorder.ended(self.reply, died)
            frame.grown = frame.ended = self.reply
            self.reply = None
        self._load_pending()

    def _fail(self, sentence: str) -> None:
        self.state, self.loaded, self.trouble, self._changed = "failed", None, sentence, True


def request_of(chat: Chat, messages: tuple[Message, ...]) -> Generate:
    """The messages as a request under the chat's settings, without a number."""
    return Generate(
        reply=0,
        messages=messages,
        tuning=chat.tuning,
        max_tokens=chat.max_tokens,
        think=chat.think,
        keep_accepted=chat.keep_accepted,
        end_loops=chat.end_loops(),
    )


def last_request(chat: Chat) -> Generate | None:
    """The newest prompt as a request, with the draws of its reply; None without one."""
    messages = chat.conversation.messages_to_last_prompt()
    if not messages:
        return None
    reply = chat.conversation.last_reply
    seed = reply.ended.seed if reply is not None and reply.ended is not None else chat.tuning.seed
    request = request_of(chat, messages)
    return replace(request, tuning=replace(chat.tuning, seed=max(0, seed)))
