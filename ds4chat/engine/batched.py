"""Many prompts at once: native batching, a sequence for each of them in one context. Always plain decoding.

A batch with a row of every sequence already keeps the hardware busy, which is what drafts would do, and each
sequence would need its own drafter state and rollback; so MTP is off here, and says so.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ds4chat.engine.control import Control
from ds4chat.engine.events import Event, Generate, Load, Notice, Phases, Step
from ds4chat.engine.llama import BadRowError, CacheConfig, Context, Floats, LlamaError, Model
from ds4chat.engine.machine import cores
from ds4chat.engine.prompting import Prompter, PromptError, named_template, without_prompt
from ds4chat.engine.reply import Generation
from ds4chat.models.pairing import check_target

OFF_REASON = "the prompts of a file share one batched context (--parallel), where drafts are not used"

BATCH = 512
DEFAULT_CTX = 4096
"""Tokens of context for each sequence, when none is asked for."""


@dataclass(slots=True, eq=False)
class _Running:
    """A reply in one sequence of the context."""

    number: int
    """Index of its request."""
    seq: int
    reply: Generation
    events: list[Event]
    prompt: list[int]
    pos: int = 0
    """Tokens decoded so far, those of the prompt included."""
    started: float = field(default_factory=time.perf_counter)
    prefill_ms: float = 0.0
    """Until the first token, which comes with the decode of the prompt's end."""
    decode_ms: float = 0.0
    """Of the decodes after that one."""


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
            threads=load.threads or cores(),
            cache=CacheConfig(load.cache_type_k, load.cache_type_v, load.flash_attn),
            sequences=slots,
        )
        self._slots: list[_Running | None] = [None] * slots
        """The replies by their sequences; None for a free one."""
        self._done: dict[int, list[Event]] = {}

    def run(self, requests: Sequence[Generate]) -> Iterator[tuple[int, list[Event]]]:
        """Each request's events, an Ended last, with the request's index, in the order of the requests."""
        waiting = deque(enumerate(requests))
        for number in range(len(requests)):
            while number not in self._done:
                if waiting and None in self._slots:
                    self._begin(*waiting.popleft())
                else:
                    self._step()
            yield number, self._done.pop(number)

    def close(self) -> None:
        """Free everything."""
        self._context.close()
        self._model.close()

    def _begin(self, number: int, request: Generate) -> None:
        try:
            prompt = self._prompter.of(request)
        except (PromptError, LlamaError) as error:
            self._done[number] = [without_prompt(request, error)]
            return
        seq = self._slots.index(None)
        self._context.remove_from(0, seq)
        events: list[Event] = [Notice("info", note) for note in prompt.notes]
        reply = Generation(request, prompt, self._model, Control(request.tuning), events.append)
        self._slots[seq] = _Running(number, seq, reply, events, prompt.tokens)

    def _step(self) -> None:
        """Decode one batch: the last token of every reply, and prompt tokens as far as there is room."""
        started = time.perf_counter()
        tokens: list[int] = []
        pos: list[int] = []
        seq: list[int] = []
        outputs: list[bool] = []
        decoding: list[_Running] = []
        room = BATCH - len(self._slots)
        for running in filter(None, self._slots):
            part = running.prompt[running.pos : running.pos + 1 + room] or [running.reply.last]
            room -= len(part) - 1
            tokens += part
            pos += range(running.pos, running.pos + len(part))
            seq += [running.seq] * len(part)
            running.pos += len(part)
            has_prompt = running.pos >= len(running.prompt)
            outputs += [False] * (len(part) - 1) + [has_prompt]
            if has_prompt:
                decoding.append(running)
        self._context.decode_many(
            np.array(tokens, np.int32), np.array(pos, np.int32), np.array(seq, np.int32), np.array(outputs)
        )
        if not decoding:
            return
        rows = self._context.logits(len(decoding))
        now = time.perf_counter()
        for running, row in zip(decoding, rows):
            if running.prefill_ms:
                ms = (now - started) * 1000
                running.decode_ms += ms
            else:
                ms = 0.0
                running.prefill_ms = (now - running.started) * 1000
            self._emit(running, row, ms)

    def _emit(self, running: _Running, row: Floats, ms: float) -> None:
        """Emit the next token of a reply, by the row (n_vocab,) that follows its tokens, or end it."""
        reply, request = running.reply, running.reply.request
        index = len(reply.ids)
        try:
            tokens = reply.emit_own(row)
        except BadRowError as error:
            tokens, reply.finish, reply.detail = [], "error", str(error)
        reply.emit(
            Step(
                reply=request.reply,
                index=index,
                tokens=tuple(tokens),
                drafted=0,
                judged=(),
                outcome="plain",
                ms=Phases(0.0, ms, 0.0, 0.0, 0.0, ms),
                tuning=request.tuning,
                depth=0,
                drafter="",
                context_used=running.pos,
            )
        )
        if not reply.finish and running.pos >= self._n_ctx:
            reply.end_for_context(self._n_ctx)
        if reply.finish:
            reply.emit(
                reply.ended(
                    reused_tokens=0,
                    prefill_ms=running.prefill_ms,
                    decode_ms=running.decode_ms,
                    first_token_ms=running.prefill_ms,
                    context_used=running.pos,
                )
            )
            reply.close()
            self._slots[running.seq] = None
            self._done[running.number] = running.events
