"""Many prompts at once: native batching, one sequence a slot in one context. Always plain decoding.

A batch that carries one row of every slot already keeps the hardware busy, which is what drafts would do,
and each slot would need its own drafter state and rollback; so MTP is off here, and says so.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ds4chat.engine import measure
from ds4chat.engine.events import Ended, Event, FinishReason, Generate, Load, Notice, Phases, Step, refused
from ds4chat.engine.llama import BadRowError, CacheConfig, Context, LlamaError, Model, TooLongError
from ds4chat.engine.prompting import Prompter, PromptError, named_template
from ds4chat.engine.reply import Generation
from ds4chat.models.pairing import check_target

OFF_REASON = "the prompts of a file share one batched context (--parallel), where drafts are not used"

BATCH = 512
DEFAULT_CTX = 4096
"""Tokens of context a slot, when none is asked for."""


@dataclass(slots=True)
class _Slot:
    """One sequence: a reply on its way, or free."""

    seq: int
    reply: Generation | None = None
    prompt: list[int] = field(default_factory=list)
    pos: int = 0
    number: int = 0
    started: float = 0.0
    decoding: float = 0.0
    events: list[Event] = field(default_factory=list)


class BatchedSession:
    """Answers prompts in ``slots`` sequences of one context. Raises LlamaError, ModelFileError."""

    def __init__(self, load: Load, slots: int) -> None:
        check_target(Path(load.model))
        template = named_template(load.chat_template)
        self._model = Model(load.model, gpu_layers=load.gpu_layers, split_mode=load.split_mode)
        self._prompter = Prompter(self._model, template, use_template=load.template)
        self.note = self._prompter.note
        self._n_ctx = self._model.room = load.ctx or min(self._model.n_ctx_train or DEFAULT_CTX, DEFAULT_CTX)
        self._context = Context(
            self._model,
            n_ctx=self._n_ctx * slots,
            n_batch=BATCH,
            n_outputs=slots,
            threads=load.threads or measure.cores(),
            cache=CacheConfig(load.cache_type_k, load.cache_type_v, load.flash_attn),
            sequences=slots,
        )
        self._slots = [_Slot(seq) for seq in range(slots)]

    def run(self, requests: Sequence[Generate]) -> Iterator[tuple[int, list[Event]]]:
        """Each request's events, an Ended last, with the request's index, in the order of the requests."""
        waiting = deque(enumerate(requests))
        done: dict[int, list[Event]] = {}
        next_out = 0
        while waiting or any(slot.reply for slot in self._slots):
            for slot in self._slots:
                while slot.reply is None and waiting:
                    number, request = waiting.popleft()
                    self._begin(slot, number, request, done)
            if any(slot.reply for slot in self._slots):
                self._step(done)
            while next_out in done:
                yield next_out, done.pop(next_out)
                next_out += 1
        while next_out in done:
            yield next_out, done.pop(next_out)
            next_out += 1

    def close(self) -> None:
        """Free everything."""
        self._context.close()
        self._model.close()

    def _begin(self, slot: _Slot, number: int, request: Generate, done: dict[int, list[Event]]) -> None:
        try:
            prompt = self._prompter.of(request)
        except (PromptError, LlamaError) as error:
            reason: FinishReason = "context" if isinstance(error, TooLongError) else "error"
            done[number] = [refused(request.reply, str(error), reason)]
            return
        if len(prompt.tokens) >= self._n_ctx:
            detail = (
                f"The prompt has {len(prompt.tokens)} tokens and a slot holds {self._n_ctx}. Shorten it, or "
                "raise the context length (-c)."
            )
            done[number] = [refused(request.reply, detail, "context")]
            return
        seed = request.tuning.seed if request.tuning.seed >= 0 else secrets.randbelow(2**32 - 1)
        request = replace(request, tuning=replace(request.tuning, seed=seed))
        self._context.remove_from(0, slot.seq)
        slot.reply = Generation(request, prompt, self._model, request.tuning, seed)
        slot.prompt, slot.pos, slot.number, slot.events = prompt.tokens, 0, number, []
        slot.events += [Notice("info", note) for note in prompt.notes]
        slot.started, slot.decoding = time.perf_counter(), 0.0

    def _step(self, done: dict[int, list[Event]]) -> None:
        """One batch: the next token of every slot that decodes, and prompt tokens in what room is left."""
        started = time.perf_counter()
        tokens: list[int] = []
        pos: list[int] = []
        seq: list[int] = []
        outputs: list[bool] = []
        speaking: list[_Slot] = []
        room = BATCH - len(self._slots)
        for slot in self._slots:
            reply = slot.reply
            if reply is None:
                continue
            left = (
                slot.prompt[slot.pos : slot.pos + 1 + room] if slot.pos < len(slot.prompt) else [reply.last]
            )
            room -= len(left) - 1
            tokens += left
            pos += range(slot.pos, slot.pos + len(left))
            seq += [slot.seq] * len(left)
            slot.pos += len(left)
            speaks = slot.pos >= len(slot.prompt)
            outputs += [False] * (len(left) - 1) + [speaks]
            if speaks:
                slot.decoding = slot.decoding or time.perf_counter()
                speaking.append(slot)
        self._context.decode_many(
            np.array(tokens, np.int32), np.array(pos, np.int32), np.array(seq, np.int32), np.array(outputs)
        )
        ms = (time.perf_counter() - started) * 1000
        if speaking:
            rows = self._context.logits(len(speaking))
            for slot, row in zip(speaking, rows):
                self._take(slot, row, ms, done)

    def _take(self, slot: _Slot, row: np.ndarray, ms: float, done: dict[int, list[Event]]) -> None:
        reply = slot.reply
        assert reply is not None
        request = reply.request
        try:
            tokens = tuple(reply.emit_own(row))
        except BadRowError as error:
            tokens, reply.finish, reply.detail = (), "error", str(error)
        slot.events.append(
            Step(
                reply=request.reply,
                index=sum(isinstance(event, Step) for event in slot.events),
                tokens=tokens,
                drafted=0,
                judged=(),
                outcome="plain",
                ms=Phases(0.0, ms, 0.0, 0.0, 0.0, ms),
                tuning=request.tuning,
                depth=0,
                drafter="",
                context_used=slot.pos,
            )
        )
        if not reply.finish and slot.pos >= self._n_ctx:
            reply.end_for_context(self._n_ctx)
        if reply.finish:
            now = time.perf_counter()
            slot.events.append(
                Ended(
                    reply=request.reply,
                    finish_reason=reply.finish,
                    detail=reply.detail,
                    prompt_tokens=len(slot.prompt),
                    reused_tokens=0,
                    prefill_ms=(slot.decoding - slot.started) * 1000,
                    decode_ms=(now - slot.decoding) * 1000,
                    first_token_ms=(slot.decoding - slot.started) * 1000,
                    context_used=slot.pos,
                    seed=request.tuning.seed,
                    **reply.tails(),
                )
            )
            reply.close()
            slot.reply = None
            done[slot.number] = slot.events
