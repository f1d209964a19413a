"""The chat without a screen: sends commands to the engine, and turns its events into the conversation.

The states of the engine as the chat sees it:

    none -> loading -> ready -> saving -> reading -> writing -> ready ...
                         \\---> checking or comparing -> ready
                 \\-> failed            (nothing is loaded, or the load was stopped; another may be requested)
    any  -> died                        (the process is gone; a new load starts another)

One call of ``frame`` takes everything that the engine sent since the last one. Nothing else reads events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Lock
from time import monotonic
from typing import Literal

from ds4chat.engine.client import EngineClient
from ds4chat.engine.events import (
    Alive,
    Cancel,
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
from ds4chat.engine.from_settings import ends_loops
from ds4chat.engine.stats import Stats
from ds4chat.settings.schema import Settings
from ds4chat.tui.conversation import Conversation, Reply, UserTurn
from ds4chat.tui.engine_task import Check, EngineTask
from ds4chat.tui.recorder import Recorder
from ds4chat.tui.watchdog import KILL_AFTER, Watchdog

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
"""saving: the prompt is not on disk yet, so the engine has not got the request. checking: a finished reply is
decoded again and compared. comparing: a prompt is answered under two settings."""

LOCK_SECONDS = 1.0
"""How long closing the chat waits for the thread of the screen: longer only if that one hangs."""
AGAIN = f"; Esc again {KILL_AFTER:.0f} seconds later ends the engine. What came is kept."
NOT_STARTED = "The engine process cannot be started: {}. Free memory or processes, then reload."
ENDED_BY_USER = (
    "The engine did not answer, and you ended it. Everything that came is kept; load the model again to go "
    "on."
)


@dataclass(slots=True)
class Frame:
    """What changed since the last frame, and has to be redrawn."""

    started: list[Reply] = field(default_factory=list)
    """Requested replies; the prompt of each is the turn before it."""
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
        """Looks of new tokens that the legend explains only after one of them was seen."""
        unknown = any(token.origin == "unknown" for step in self.steps for token in step.tokens)
        approximate = self.grown is not None and self.grown.lossy
        return {name for name, seen in (("unknown", unknown), ("approximate", approximate)) if seen}

    @property
    def empty(self) -> bool:
        """Nothing has to be redrawn."""
        return not (self.started or self.grown or self.ended or self.engine or self.notices or self.replayed)


class Chat:
    """The conversation, the queue of prompts, and the engine behind them."""

    def __init__(
        self,
        engine: EngineClient,
        recorder: Recorder,
        tuning: Tuning,
        settings: Callable[[], Settings] = Settings,
        *,
        model_loaded: Callable[[ModelInfo], object] = lambda _: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``settings`` gives them as they are now. ``model_loaded`` is called with a loaded model before a
        prompt that waited for it is sent."""
        self.engine = engine
        self.recorder = recorder
        self.tuning = tuning
        self._settings = settings
        self._model_loaded = model_loaded
        self.conversation = Conversation(system=settings().system_prompt)
        self.queue: deque[str] = deque()
        self.state: EngineState = "none"
        self.progress: Loading | Prefill | None = None
        """How far the load or the reading of a prompt is."""
        self.loaded: Loaded | None = None
        self.load_command: Load | None = None
        self.trouble = ""
        """Why nothing is loaded, as a sentence."""
        self.session = Stats()
        """Totals of every reply since the start."""
        self.reply: Reply | None = None
        """The running reply."""
        self._unsent: tuple[Message, ...] | None = None
        """The running reply's request, until its prompt is on disk and the engine gets it."""
        self._numbers = count(1)
        self.warning = ""
        """Sentences about an engine that is silent or does not stop, and what the user can do."""
        self._watchdog = Watchdog(clock)
        self._task: EngineTask | None = None
        """The running check or comparison."""
        self._stopped = False
        """The user stopped what runs, which has not ended yet."""
        self._pending_load = False
        self._last_loaded: Load | None = None
        """The last load that succeeded: the one to go back to if another is stopped or fails."""
        self._killed = False
        """The process was killed, and its EngineDied is still to come."""
        self._frame = Frame(engine=True)
        """What is to be redrawn, so far."""
        self._events_lock = Lock()
        """Held while events are processed: closing by force does so in a thread of its own."""

    # -- the engine

    @property
    def busy(self) -> bool:
        """Events are expected soon."""
        return self.working or self.state == "loading"

    @property
    def working(self) -> bool:
        """A reply, a check or a comparison runs."""
        return self.reply is not None or self._task is not None

    def load(self, command: Load) -> None:
        """Load models instead of what is loaded. A running reply, check or load is stopped first."""
        self.load_command = command
        self._frame.engine = True
        if self.working and self.state not in ("died", "failed"):
            self._pending_load = True
            self.stop()
            return
        waited, self._pending_load = self._pending_load, False
        if self.state == "loading" and not (self._killed or waited):
            self._kill()
        self.loaded, self.trouble = None, ""
        self.progress = Loading("starting the engine", 0.0)
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
        """Load again what was requested last; False if nothing was."""
        if self.load_command is not None:
            self.load(self.load_command)
        return self.load_command is not None

    def _load_pending(self) -> bool:
        """Start the load that waited for a reply or the process to end; False if none did."""
        return self._pending_load and self.reload()

    @property
    def model_name(self) -> str:
        """Name of the model that is loaded or loading."""
        if self.loaded is not None:
            return self.loaded.target.title
        return self.load_command.title if self.load_command is not None else ""

    def retune(self, tuning: Tuning) -> None:
        """Use this tuning, in a running reply from its next step on."""
        changed, self.tuning = tuning != self.tuning, tuning
        if changed and self.reply is not None and self._unsent is None:
            self.engine.send(Retune(tuning))

    # -- prompts

    def submit(self, text: str) -> None:
        """Send a prompt, or queue it while the engine is not ready."""
        self.recorder.prompted(text)
        self.queue.append(text)
        self._send_next()

    def _send_next(self) -> None:
        if self.state == "ready" and self.queue:
            self.conversation.turns.append(UserTurn(self.queue.popleft()))
            self._request_reply()

    def retry(self) -> bool:
        """Replace the newest reply, or the continuation of one, by another. False if there is no prompt to
        answer, or the engine is not ready."""
        if self.state != "ready" or not self.conversation.drop_reply():
            return False
        self.recorder.path_changed(self.conversation)
        self._request_reply()
        return True

    def go_on(self) -> bool:
        """Continue the newest reply; False if it was not cut in its answer, or the engine is not ready."""
        last = self.conversation.turns[-1] if self.conversation.turns else None
        possible = self.state == "ready" and isinstance(last, Reply) and last.can_go_on
        if possible:
            self._request_reply()
        return possible

    def set_system(self, text: str) -> None:
        """Use this system prompt from the next prompt on; empty: none."""
        self.conversation.system = text
        self.recorder.path_changed(self.conversation)

    def undo(self) -> str | None:
        """Take back the newest prompt and its reply; the prompt's text, or None if there is none."""
        text = None if self.reply is not None else self.conversation.drop_exchange()
        if text is not None:
            self.recorder.path_changed(self.conversation)
        return text

    def new(self) -> bool:
        """Begin a new conversation; False while a reply runs."""
        return self.resume(Conversation(system=self.conversation.system))

    def resume(self, conversation: Conversation) -> bool:
        """Continue this conversation; False while a reply runs."""
        if self.reply is not None:
            return False
        self.conversation = conversation
        return True

    def next_number(self) -> int:
        """A number that no reply of this session has. Any thread may call this."""
        return next(self._numbers)

    def stop(self) -> bool:
        """Stop the running reply and keep what came, or a check, a comparison or a load; False if none runs.
        Called again after KILL_AFTER seconds, it ends an engine that does not answer."""
        if not self.working:
            return self._stop_load()
        if not self._stopped:
            self._stopped, self.state, self._frame.engine = True, "stopping", True
            self._watchdog.expect("stopping")
            if self.reply is not None and self._unsent is not None:
                self._ended(self.reply.own_end("cancelled"))
            elif running := self.reply or self._task:
                self.engine.send(Cancel(running.number))
        elif self._watchdog.complaint:
            self._kill()
        return True

    def _stop_load(self) -> bool:
        """End the engine during a load, which llama.cpp does not let anybody interrupt. A reload then loads
        what was loaded before, if anything was."""
        if self.state != "loading":
            return False
        stopped = self.model_name
        self.load_command = self._last_loaded or self.load_command
        self._pending_load = False
        self._fail(f"You stopped the load of {stopped}, so no model is loaded.")
        if not self._killed:
            self._kill()
        return True

    def _kill(self) -> None:
        self._killed = True
        self.engine.kill()

    def abandon(self) -> None:
        """The chat is closed: process what came, and end a running reply so that it is stored as stopped. Any
        thread may call this."""
        held = self._events_lock.acquire(timeout=LOCK_SECONDS)
        try:
            self._process_events()
            if (reply := self.reply) is not None:
                ended = reply.own_end("cancelled", "The chat was closed while this reply was written.")
                reply.end(ended)
                self.recorder.ended(reply, ended)
                self.reply = None
        finally:
            if held:
                self._events_lock.release()

    def replay(self) -> bool:
        """Have the newest reply decoded again without speculation; False if that is impossible."""
        reply = self.conversation.last_reply
        return bool(reply and reply.tokens and self.begin(Check(reply.number)))

    def begin(self, task: EngineTask) -> bool:
        """Begin a check or a comparison, or its next request; False if the engine is not ready."""
        if self.state != "ready":
            return False
        self._task, self._stopped = task, False
        self.state, self.progress, self._frame.engine = task.state, None, True
        self._watchdog.expect("reading")
        self.engine.send(task.next_command(self.next_number))
        return True

    def _task_answered(self, task: EngineTask) -> None:
        self.state, self._frame.engine = "ready", True
        if self._stopped:
            task.stop()
        if not task.over:
            self.begin(task)
            return
        self._task, self._stopped = None, False
        if not self._load_pending():
            self._send_next()

    def _request_reply(self) -> None:
        """Request a reply to the conversation as it is now, or more of the one that it ends with."""
        last = self.conversation.turns[-1]
        before = last if isinstance(last, Reply) else None
        reply = Reply(self.next_number(), self.model_name, before=before)
        self._unsent = self.conversation.messages()
        reply.stats.plain.load_ms = self.loaded.plain_ms if self.loaded else 0.0
        self.conversation.turns.append(reply)
        self.recorder.started(self.conversation, reply)
        self.reply = reply
        self.state = "saving"
        self.progress = None
        self._stopped = False
        self._frame.started.append(reply)
        self._ask_engine()

    def _ask_engine(self) -> None:
        """Send the running reply's request, once its prompt is on disk or the user knows why it is not."""
        reply, messages = self.reply, self._unsent
        if reply is None or messages is None or not self.recorder.kept:
            return
        self._unsent = None
        self._frame.engine = True
        self.state = "reading"
        self._watchdog.expect("reading")
        number = self.recorder.number_on_disk(self.conversation)
        request = self._generate(messages)
        self.engine.send(replace(request, reply=reply.number, conversation=number, baseline=True))

    def _generate(self, messages: tuple[Message, ...]) -> Generate:
        """A request with the settings as they are now, without a number."""
        settings = self._settings()
        return Generate(
            reply=0,
            messages=messages,
            tuning=self.tuning,
            max_tokens=settings.predict,
            think=settings.think,
            keep_accepted=settings.mtp_keep_accepted,
            end_loops=ends_loops(settings),
        )

    def last_request(self) -> Generate | None:
        """The newest prompt as a request with the seed of its reply; None without a prompt."""
        messages = self.conversation.messages_to_last_prompt()
        if not messages:
            return None
        reply = self.conversation.last_reply
        seed = reply.ended.seed if reply is not None and reply.ended is not None else self.tuning.seed
        return replace(self._generate(messages), tuning=replace(self.tuning, seed=max(0, seed)))

    # -- events

    def frame(self) -> Frame:
        """Process everything that the engine sent since the last call."""
        with self._events_lock:
            return self._process_events()

    def _process_events(self) -> Frame:
        for event in self.engine.drain():
            self._process(event)
            if self._task is not None and self._task.handle(event):
                self._task_answered(self._task)
        self._frame.notices += self.recorder.news()
        self._ask_engine()
        before, self.warning = self.warning, self._warning()
        self._frame.engine |= self.warning != before
        frame, self._frame = self._frame, Frame()
        return frame

    def _warning(self) -> str:
        if not self.busy:
            self._watchdog.expect(None)
        complaint = self._watchdog.complaint
        if not complaint or self._stopped:
            return complaint
        if self.state == "loading":
            what = "load"
        else:
            what = "reply" if self.reply else "comparison" if self.state == "comparing" else "check"
        return f"{complaint} Wait, or press Esc to stop the {what}{AGAIN if what != 'load' else '.'}"

    def _step(self, step: Step) -> None:
        self._watchdog.sign("writing", step.ms.total / 1000)
        if self.reply is None or step.reply != self.reply.number:
            return
        if self.state == "reading":
            self.state = "writing"
            self._frame.engine = True
        self.reply.add_step(step)
        self.session.fold(step)
        self._frame.steps.append(step)
        self._frame.grown = self.reply
        self.recorder.add(self.reply, step)

    def _prefill(self, event: Prefill) -> None:
        running = self.reply or self._task
        if running is None or event.reply != running.number:
            return
        self._watchdog.sign("reading")
        self.progress = event
        self._frame.engine = True
        if self.reply is None:
            return
        self.reply.stats.fold(event)
        if not event.again:
            self.reply.prefill = event
            self.recorder.add(self.reply, event)
        elif self.state == "writing":
            self.state = "reading"

    def _process(self, event: Event) -> None:
        if self._killed and isinstance(event, Loading | Loaded | LoadFailed):
            return  # sent before its process was ended
        if isinstance(event, Step):
            self._step(event)
        elif isinstance(event, Prefill):
            self._prefill(event)
        elif isinstance(event, Loading):
            self._watchdog.sign("loading")
            self.progress = event
            self._frame.engine = True
        elif isinstance(event, Loaded):
            self._loaded(event)
            self._frame.engine = True
        elif isinstance(event, LoadFailed):
            self._frame.failed = True
            if not self._load_previous(event.message):
                self._fail(event.message)
        elif isinstance(event, Revised):
            self._revised(event)
        elif isinstance(event, Alive):
            self._watchdog.sign("writing" if self.state == "writing" else "reading")
        elif isinstance(event, Ended):
            self._ended(event)
        elif isinstance(event, EngineDied):
            self._died(event)
        elif isinstance(event, Replayed):
            self._replayed(event)
        elif isinstance(event, SpeculationOff):
            self._speculation_off(event)
        elif isinstance(event, Notice):
            self._frame.notices.append(event)

    def _load_previous(self, sentence: str) -> bool:
        """Load again what was loaded before the load that failed, and say why; False if nothing was, or if
        that is what failed."""
        if self._last_loaded is None or self._last_loaded == self.load_command:
            return False
        failed = self.model_name
        self.state = "failed"  # nothing is loading any more
        self.load(self._last_loaded)
        previous = self.model_name
        again = "What was loaded before" if previous == failed else previous
        self._frame.notices.append(Notice("error", f"{sentence} {again} is loaded again."))
        self._frame.engine = True
        return True

    def _loaded(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self._last_loaded = self.load_command
        if self.load_command is not None:
            self.recorder.loaded(self.load_command, loaded)
        self._model_loaded(loaded.target)
        if self.reply is None:  # during a reply, a server only reports more about its model
            self.state = "ready"
            self._send_next()

    def _revised(self, event: Revised) -> None:
        if self.reply is None or event.reply != self.reply.number:
            return
        self.reply.revise(event)
        self.session.fold(event)
        self.recorder.add(self.reply, event)
        self._frame.grown = self._frame.revised = self.reply

    def _speculation_off(self, off: SpeculationOff) -> None:
        """The status line, the panels and the stored replies take the drafter from what is loaded."""
        if self.loaded is None or self.load_command is None:
            return
        self.loaded, self._frame.engine = self.loaded.without_drafter(off), True
        self.recorder.loaded(self.load_command, self.loaded)
        self._frame.notices.append(Notice("warning", f"MTP is off: {off.reason}."))

    def _replayed(self, replayed: Replayed) -> None:
        self._frame.replayed.append(replayed)
        reply = self.conversation.reply(replayed.reply)
        if reply is not None and replayed.plain_ms:
            reply.stats.fold(replayed)
            self.recorder.checked(reply)
            self._frame.grown = reply

    def _ended(self, ended: Ended) -> None:
        reply = self.reply
        if reply is None or ended.reply != reply.number:
            return
        by_user = self._stopped
        reply.end(ended)
        self.session.fold(ended)
        self.recorder.ended(reply, ended)
        self._frame.grown, self._frame.ended, self._frame.engine = reply, reply, True
        self.reply, self._unsent, self._stopped = None, None, False
        self.state = "ready"
        if not self._load_pending() and not by_user:
            self._send_next()

    def _died(self, died: EngineDied) -> None:
        ended_by_user, self._killed = self._killed, False
        if ended_by_user and self.state in ("failed", "loading"):
            self._load_pending()  # what was stopped is a load, which was said then
            return
        if ended_by_user:
            died = replace(died, message=ENDED_BY_USER)
        if self.state == "loading" and not ended_by_user and self._load_previous(died.message):
            self._frame.failed = True
            return
        self._frame.engine = True
        self.state = "died"
        self.loaded = None
        self.trouble = died.message
        self._unsent = None
        if self._task is not None:
            self._task.stop()
        self._task, self._stopped = None, False
        if self.reply is not None:
            self.reply.crash(died)
            self.recorder.ended(self.reply, died)
            self._frame.grown = self._frame.ended = self.reply
            self.reply = None
        self._load_pending()

    def _fail(self, sentence: str) -> None:
        self.state, self.loaded, self.trouble = "failed", None, sentence
        self._frame.engine = True
