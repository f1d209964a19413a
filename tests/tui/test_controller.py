"""What the chat does, without a screen."""

from __future__ import annotations

from dataclasses import replace

from kits.chat import PIECES, ReplayEngine, SettledRecorder, ended, loaded, steps_of

from ds4chat.engine.events import (
    Cancel,
    EngineDied,
    Load,
    LoadFailed,
    Loading,
    Message,
    Prefill,
    Replay,
    Tuning,
    refused,
)
from ds4chat.settings.schema import Settings
from ds4chat.tui.controller import Chat
from ds4chat.tui.conversation import Conversation, Reply, UserTurn
from ds4chat.tui.watchdog import KILL_AFTER


class Book(SettledRecorder):
    """Writes down in what order it was told things."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def started(self, conversation: Conversation, reply: Reply) -> None:
        turn = conversation.turns[-2]
        assert isinstance(turn, UserTurn)
        self.told.append(f"started {turn.text}")

    def add(self, reply, event) -> None:  # type: ignore[no-untyped-def]
        self.told.append(type(event).__name__)

    def ended(self, reply, end) -> None:  # type: ignore[no-untyped-def]
        self.told.append(f"ended {reply.state}")

    def path_changed(self, conversation: Conversation) -> None:
        self.told.append("went back")


def ready(*, answer: bool = True, clock=None) -> tuple[Chat, ReplayEngine, Book]:  # type: ignore[no-untyped-def]
    engine, book = ReplayEngine(answer=answer), Book()
    settings = Settings(system_prompt="Be brief.")
    chat = Chat(engine, book, Tuning(depth=2), lambda: settings, **({"clock": clock} if clock else {}))
    chat.load(Load("/models/tiny.gguf"))
    chat.frame()
    assert chat.state == "ready"
    return chat, engine, book


def died(reply: int | None) -> EngineDied:
    return EngineDied(reply, None, "SIGKILL", "The engine stopped.", ())


def test_a_prompt_is_told_to_the_recorder_before_the_engine_and_comes_to_a_reply() -> None:
    chat, engine, book = ready()
    chat.submit("Hi")
    assert book.told == ["started Hi"]
    assert engine.generates[0].messages == (Message("system", "Be brief."), Message("user", "Hi"))
    frame = chat.frame()
    assert len(frame.started) == 1
    assert len(frame.steps) == 10
    reply = frame.ended
    assert reply is not None
    assert reply.text == "".join(text for text, _ in PIECES)
    assert (reply.state, chat.state, chat.reply) == ("complete", "ready", None)
    # Nothing per token.
    assert book.told == ["started Hi", "Prefill", *["Step"] * 10, "ended complete"]
    assert (reply.stats.judged, reply.stats.accepted) == (15, 12)


def test_a_frame_without_events_is_empty() -> None:
    chat, _, _ = ready()
    assert chat.frame().empty


def test_the_next_request_carries_the_thinking_beside_the_answer() -> None:
    chat, engine, _ = ready(answer=False)
    chat.submit("Hi")
    thought = steps_of(1, [("", "plain"), ("hm", "accepted"), ("", "bonus")], thinking=True)
    engine.push(*thought, *steps_of(1, [("Yes", "plain")], first=2), ended(1))
    chat.frame()
    chat.submit("And?")
    assert engine.generates[1].messages[2] == Message("assistant", "Yes", "hm")


def test_a_reply_that_could_not_be_gone_on_with_is_gone_on_with_by_a_retry() -> None:
    chat, engine, _ = ready(answer=False)
    chat.recorder = SettledRecorder()
    chat.submit("hi")
    engine.push(*steps_of(1, PIECES), ended(1, reason="length"))
    chat.frame()
    begun = chat.conversation.last_reply
    assert begun is not None and chat.go_on()
    asked = engine.generates[-1].messages
    assert asked[-1] == Message("assistant", begun.answer)
    engine.push(refused(2, "The server is not ready. Wait a little, then retry."))
    chat.frame()
    assert chat.retry()
    assert engine.generates[-1].messages == asked
    engine.push(*steps_of(3, PIECES), ended(3))
    chat.frame()
    again = chat.conversation.last_reply
    assert again is not None and again.before is begun
    assert again.whole_answer == 2 * begun.answer
    assert [message.role for message in chat.conversation.messages()] == ["system", "user", "assistant"]


def test_prompts_wait_while_a_reply_runs_and_go_one_by_one() -> None:
    chat, engine, _ = ready(answer=False)
    chat.submit("one")
    chat.submit("two")
    chat.submit("three")
    assert list(chat.queue) == ["two", "three"]
    engine.push(*steps_of(1, PIECES), ended(1))
    assert [r.number for r in chat.frame().started] == [1, 2]
    assert list(chat.queue) == ["three"]
    assert engine.generates[1].messages[-1] == Message("user", "two")


def test_a_prompt_sent_while_the_model_loads_goes_when_it_is_ready() -> None:
    engine = ReplayEngine(answer=False)
    chat = Chat(engine, SettledRecorder(), Tuning())
    chat.load(Load("/models/tiny.gguf"))
    chat.submit("early")
    assert engine.generates == []
    chat.frame()
    assert [g.messages[-1].content for g in engine.generates] == ["early"]


def test_stop_keeps_what_came_and_holds_the_queue() -> None:
    chat, engine, book = ready(answer=False)
    chat.submit("one")
    chat.submit("two")
    engine.push(*steps_of(1, PIECES[:4]))
    chat.frame()
    assert chat.stop()
    assert chat.state == "stopping"
    frame = chat.frame()
    assert frame.ended is not None and frame.ended.state == "stopped"
    assert frame.ended.text == "Speculative decoding lets"
    assert list(chat.queue) == ["two"] and len(engine.generates) == 1
    assert book.told[-1] == "ended stopped"


def test_a_stop_that_is_not_taken_ends_the_engine_only_after_a_while() -> None:
    now = [0.0]
    chat, engine, _ = ready(answer=False, clock=lambda: now[0])
    chat.submit("one")
    chat.stop()
    now[0] = KILL_AFTER - 0.1
    chat.stop()
    assert engine.killed == 0
    now[0] = KILL_AFTER
    chat.stop()
    assert engine.killed == 1
    assert sum(isinstance(c, Cancel) for c in engine.sent) == 1


def test_the_engines_death_keeps_the_reply_and_a_reload_starts_another() -> None:
    chat, engine, book = ready(answer=False)
    chat.submit("one")
    chat.submit("two")
    engine.push(*steps_of(1, PIECES[:4]), died(1))
    engine.alive = False
    frame = chat.frame()
    assert (chat.state, chat.trouble) == ("died", "The engine stopped.")
    reply = frame.ended
    assert reply is not None and (reply.state, reply.text) == ("crashed", "Speculative decoding lets")
    assert book.told[-1] == "ended crashed"
    assert chat.reload()
    assert engine.starts == 2
    chat.frame()
    assert [g.messages[-1].content for g in engine.generates] == ["one", "two"]
    # What the engine died of may be in that turn: it is not sent again unasked.
    assert [m.content for m in engine.generates[1].messages] == ["Be brief.", "two"]


def test_a_turn_at_which_the_engine_died_is_asked_again_by_a_retry_alone() -> None:
    chat, engine, _ = ready(answer=False)
    chat.submit("fatal")
    engine.push(died(1))
    engine.alive = False
    chat.frame()
    assert chat.reload()
    chat.frame()
    assert [len(engine.generates), chat.state] == [1, "ready"]
    assert chat.retry()
    chat.frame()
    assert [m.content for m in engine.generates[1].messages] == ["Be brief.", "fatal"]


def test_a_failed_load_says_why_and_prompts_wait() -> None:
    engine = ReplayEngine(load=LoadFailed("x.gguf is no GGUF file."))
    chat = Chat(engine, SettledRecorder(), Tuning())
    chat.load(Load("x.gguf"))
    chat.frame()
    assert (chat.state, chat.trouble) == ("failed", "x.gguf is no GGUF file.")
    chat.submit("Hi")


def test_a_failed_load_leaves_the_loaded_model_in_place() -> None:
    chat, engine, _ = ready()
    before = chat.load_command
    engine.on_load(LoadFailed("y.gguf does not fit into memory."))
    chat.load(Load("/models/y.gguf"))
    engine.on_load(loaded())
    frame = chat.frame()
    assert frame.failed
    assert [(n.level, n.message) for n in frame.notices] == [
        ("error", "y.gguf does not fit into memory. tiny is loaded again.")
    ]
    assert engine.sent[-1] == before
    assert engine.killed == 0
    chat.frame()
    assert (chat.state, chat.load_command) == ("ready", before)


def test_an_engine_that_dies_in_a_load_comes_back_with_what_was_loaded() -> None:
    chat, engine, _ = ready()
    before = chat.load_command
    engine.on_load(died(None))
    chat.load(Load("/models/y.gguf"))
    engine.alive = False
    engine.on_load(loaded())
    chat.frame()
    chat.frame()
    assert (chat.state, chat.load_command, engine.alive) == ("ready", before, True)


def test_an_engine_that_cannot_be_started_is_a_sentence() -> None:
    class Unstartable(ReplayEngine):
        def start(self) -> None:
            raise OSError("no more processes")

    chat = Chat(Unstartable(), SettledRecorder(), Tuning())
    chat.load(Load("x.gguf"))
    assert chat.state == "failed"
    assert "no more processes" in chat.trouble


def test_a_tuning_goes_to_a_running_reply_and_into_the_next_request() -> None:
    chat, engine, _ = ready(answer=False)
    chat.retune(Tuning(depth=2))
    chat.retune(Tuning(depth=3))
    assert engine.retunes == []
    chat.submit("one")
    assert engine.generates[0].tuning.depth == 3
    chat.retune(Tuning(depth=4))
    assert engine.retunes == [Tuning(depth=4)]


def test_retry_asks_the_same_prompt_without_the_reply() -> None:
    chat, engine, book = ready()
    chat.submit("one")
    assert not chat.retry()
    chat.frame()
    assert chat.retry()
    assert engine.generates[1].messages == engine.generates[0].messages
    assert "went back" in book.told
    assert [type(turn).__name__ for turn in chat.conversation.turns] == ["UserTurn", "Reply"]


def test_undo_gives_the_prompt_back() -> None:
    chat, _, _ = ready()
    chat.submit("one")
    assert chat.undo() is None
    chat.frame()
    assert chat.undo() == "one"
    assert chat.conversation.turns == []
    assert chat.undo() is None


def test_a_load_during_a_reply_stops_it_first() -> None:
    chat, engine, _ = ready(answer=False)
    chat.submit("one")
    chat.load(Load("/models/other.gguf"))
    assert isinstance(engine.sent[-1], Cancel)
    chat.frame()
    assert engine.sent[-1] == Load("/models/other.gguf")
    chat.frame()
    assert chat.state == "ready"


def test_events_of_another_reply_are_passed_over() -> None:
    chat, engine, _ = ready(answer=False)
    chat.submit("one")
    engine.push(Prefill(7, 1, 2, 0, 1.0), *steps_of(7, PIECES), ended(7))
    chat.frame()
    assert chat.reply is not None and chat.reply.tokens == []


def test_closing_the_chat_keeps_the_running_reply_as_stopped() -> None:
    chat, engine, book = ready(answer=False)
    chat.submit("one")
    engine.push(*steps_of(1, PIECES[:4]))
    chat.abandon()
    reply = chat.conversation.last_reply
    assert reply is not None and (reply.state, reply.text) == ("stopped", "Speculative decoding lets")
    assert book.told[-1] == "ended stopped"


def test_the_lossless_check_needs_a_finished_reply() -> None:
    chat, engine, _ = ready()
    assert not chat.replay()
    chat.submit("one")
    chat.frame()
    assert chat.replay()
    assert engine.sent[-1] == Replay(1)


def test_a_token_is_found_from_its_step_and_the_step_from_the_token() -> None:
    reply = Reply(1, "m")
    for step in steps_of(1, PIECES):
        reply.add_step(step)
    assert reply.token_of(1, 0) == 1  # " ulative decoding lets" is the second step
    place = reply.place(2)
    assert place is not None and (place.step.index, place.index) == (1, 1)
    assert place.judged is not None and place.judged.position == 2
    bonus = reply.place(3)
    assert bonus is not None and bonus.judged is None
    assert reply.token_of(99, 0) is None
    assert reply.token_of(0, 5) is None


def test_an_approximate_reply_is_marked() -> None:
    reply = Reply(1, "m")
    step = steps_of(1, PIECES[:4])[1]
    reply.add_step(step)
    assert not reply.lossy
    reply.add_step(replace(step, tuning=Tuning(margin=0.5)))
    assert reply.lossy


def test_loaded_names_the_model() -> None:
    chat, _, _ = ready()
    assert chat.model_name == "Tiny Chat"
    assert loaded().drafter is not None


def loading(*, before: bool) -> tuple[Chat, ReplayEngine]:
    """A chat that loads big.gguf and gets no answer; with tiny.gguf loaded before, or nothing."""
    chat, engine, _ = ready()
    if not before:
        engine = ReplayEngine()
        chat = Chat(engine, SettledRecorder(), Tuning())
    engine.on_load(Loading("reading tensors", 0.4))
    chat.load(Load("/models/big.gguf"))
    chat.frame()
    assert chat.state == "loading"
    return chat, engine


def test_a_load_is_stopped_at_once_and_a_reload_loads_what_was_there_before() -> None:
    chat, engine = loading(before=True)
    turns = list(chat.conversation.turns)
    assert chat.stop()
    assert engine.killed == 1
    assert chat.state == "failed"
    assert chat.trouble == "You stopped the load of big, so no model is loaded."
    assert not chat.stop(), "nothing is left to stop"
    engine.push(loaded(), died(None))
    chat.frame()
    assert chat.state == "failed", "what the ended process had sent is passed over"
    assert chat.trouble.startswith("You stopped")
    assert chat.conversation.turns == turns
    engine.on_load(loaded())
    assert chat.reload()
    chat.frame()
    assert chat.state == "ready"
    assert engine.sent[-1] == Load("/models/tiny.gguf")


def test_the_first_load_stopped_is_the_one_that_a_reload_tries_again() -> None:
    chat, engine = loading(before=False)
    assert chat.stop()
    engine.push(died(None))
    chat.frame()
    assert chat.reload()
    assert engine.sent[-1] == Load("/models/big.gguf")


def test_a_reload_waits_until_the_ended_process_is_gone() -> None:
    """A command to a process that is being killed would be lost with it."""
    chat, engine = loading(before=True)
    chat.stop()
    sent = len(engine.sent)
    assert chat.reload()
    assert (chat.state, len(engine.sent)) == ("loading", sent)
    engine.on_load(loaded())
    engine.push(died(None))
    chat.frame()
    assert engine.sent[sent:] == [Load("/models/tiny.gguf")]
    chat.frame()
    assert chat.state == "ready"


def test_another_load_takes_the_place_of_one_that_runs() -> None:
    chat, engine = loading(before=True)
    sent = len(engine.sent)
    chat.load(Load("/models/other.gguf"))
    assert engine.killed == 1 and len(engine.sent) == sent
    engine.on_load(loaded())
    engine.push(died(None))
    chat.frame()
    chat.frame()
    assert engine.sent[sent:] == [Load("/models/other.gguf")]
    assert chat.state == "ready"


def test_prompts_wait_over_a_stopped_load() -> None:
    chat, engine = loading(before=True)
    chat.submit("Hi")
    chat.stop()
    engine.on_load(loaded())
    engine.push(died(None))
    chat.frame()
    chat.reload()
    chat.frame()
    assert [g.messages[-1].content for g in engine.generates] == ["Hi"]
