"""The cycle: prefill, then draft, verify, accept, roll back, until a reply ends.

Between two steps the state is:

    tokens   the committed tokens; the target's KV cache holds exactly these
    last     one token that is sampled and emitted (or the prompt's last), but not decoded; after a
             reply, the token on which it ended
    drafter  knows all committed tokens, or can catch up

One step:
1. DRAFT     the drafter proposes d1..dk to follow ``last``; the depth controller, the room in the context and
             the token budget limit k.
2. VERIFY    the target decodes [last, d1..dk] in one batch; row i judges d(i+1).
3. ACCEPT    the longest prefix of drafts that passes, and the target's own token after it.
4. ROLLBACK  the target drops the rejected drafts, and the drafter observes what was committed.
             Committed is now tokens + [last, d1..da]; the target's own token is the new ``last``.

A reply can end at any token inside a block; its tokens are then accepted one by one, and both caches are cut
after the last one. A step whose verification fails decodes ``last`` alone. Where the cache refuses a
rollback, it is cleared and the committed tokens are decoded again; a cancel ends that too, and then fewer
tokens are committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import ds4chat.engine.llama  # noqa: F401  first, so that llama.cpp is loaded before numpy
from ds4chat.engine.auto.controller import AutoDepth
from ds4chat.engine.auto.costs import Tables
from ds4chat.engine.auto.measure import ROOM, measure_costs
from ds4chat.engine.baseline import PlainPasses
from ds4chat.engine.caches import Caches, common_prefix
from ds4chat.engine.control import Control
from ds4chat.engine.drafters.base import Draft, Policy
from ds4chat.engine.events import (
    Emit,
    Event,
    Generate,
    Notice,
    Outcome,
    Phases,
    Prefill,
    SpeculationOff,
    Step,
    Tuning,
    uncompared,
)
from ds4chat.engine.llama import BadRowError, DecodeError, LlamaError
from ds4chat.engine.measure import BUDGET_S
from ds4chat.engine.prompting import Prompter, PromptError, without_prompt
from ds4chat.engine.replay import compare, compared
from ds4chat.engine.reply import Generation, TargetRows
from ds4chat.engine.saved_state import SavedStates

PREFILL_CHUNK = 128
"""Tokens in each decode of a prefill: few enough for a cancel, enough for full speed."""

DRAFT_FAILURES = 3
"""Failures in a row after which the drafter is given up: each costs a prefill of the conversation."""

MEASURING_S = 20.0
"""Most seconds for measuring what drafts cost while nobody waits."""

HOPELESS = 64
"""Drafts judged since the load, none of them accepted, after which the drafter is given up: the support file
does not belong to this target."""


class Session:
    """One target with its drafter, answering one reply at a time.

    batches_are_exact: batches are bit-equal to single decodes; where they are not, strict mode verifies each
    draft by a decode of its own. costs: what is known of drafts' costs on this machine, for depth "auto".
    states: where keep() saves the conversation's state, and where a prompt's beginning may be found.
    settling: plain steps after a change of the batch size that are no passes (PlainPasses).
    """

    def __init__(
        self,
        caches: Caches,
        prompter: Prompter,
        *,
        n_ctx: int,
        batches_are_exact: bool = False,
        costs: Tables | None = None,
        states: SavedStates | None = None,
        settling: int = 1,
    ) -> None:
        self.caches = caches
        self.prompter = prompter
        self.n_ctx = caches.target.model.room = min(n_ctx, caches.target.n_ctx)
        self.batches_are_exact = batches_are_exact
        self._auto = AutoDepth()
        self._auto_ran = False
        self._costs = costs or Tables()
        self._states = states
        self._plain = PlainPasses(settling)
        self._judged = 0
        self._accepted = 0
        self._failures = 0
        self._last: Generation | None = None

    # ---------------------------------------------------------------------------------- a reply

    def generate(self, request: Generate, control: Control, emit: Emit) -> None:
        """Answer one request; the events go to ``emit``, an Ended last. Nothing but a bug is raised."""
        if control.tuning.depth == "auto":
            self.measure(lambda: control.cancelled, BUDGET_S)
        started = time.perf_counter()
        try:
            prompt = self.prompter.of(request)
        except (PromptError, LlamaError) as error:
            emit(without_prompt(request, error))
            return
        for note in prompt.notes:
            emit(Notice("info", note))
        reply = Generation(request, prompt, self.caches.target.model, control, emit)
        self._plain.begin()
        prefill_ms = decode_ms = first_ms = 0.0
        try:
            reused = self._prefill(reply)
            prefill_ms = _ms_since(started)
            self._auto.table = self._costs.at(len(prompt.tokens))
            self._auto.begin()
            decoding = time.perf_counter()
            index = 0
            while not reply.finish:
                if control.cancelled:
                    reply.finish = "cancelled"
                elif len(self.caches.tokens) >= self.n_ctx:
                    reply.end_for_context(self.n_ctx)
                elif reply.left == 0:
                    reply.finish = "length"
                else:
                    step = self._step(reply, index)
                    if step is None:
                        continue
                    emit(step)
                    decode_ms = _ms_since(decoding)
                    first_ms = first_ms or _ms_since(started)
                    index += 1
        except LlamaError as error:
            reused = 0
            reply.finish = "error"
            advice = "" if isinstance(error, BadRowError) else " Retry, or reload the model."
            reply.detail = f"{error} The reply stops here; what came stays.{advice}"
            self.caches.clear()
        finally:
            reply.close()
        if self._auto_ran:
            self._costs.save()
            self._auto_ran = False
        if not request.trial:
            self._last = reply
        emit(
            reply.ended(
                reused_tokens=reused,
                prefill_ms=prefill_ms,
                decode_ms=decode_ms,
                first_token_ms=first_ms,
                context_used=len(self.caches.tokens),
            )
        )

    def replay(self, reply: int, control: Control, emit: Emit) -> None:
        """Decode the last reply again without drafts and emit a Replayed, which says why not where that was
        not possible."""
        last = self._last
        if last is None or last.request.reply != reply:
            why = "Only the reply written last can be checked, until the next load. F5 answers again."
            emit(uncompared(reply, why))
            return
        prompt = last.prompt.tokens[:-1]
        total = len(prompt) + len(compared(last))
        started = time.perf_counter()

        def read(event: Event) -> None:
            emit(replace(event, total=total) if isinstance(event, Prefill) else event)

        def progress(n: int) -> None:
            if n % PREFILL_CHUNK == 0:
                emit(Prefill(reply, len(prompt) + n, total, 0, _ms_since(started)))

        control.tuning = replace(last.first_tuning, seed=last.seed)
        again = Generation(last.request, last.prompt, self.caches.target.model, control, read)
        answer = None
        try:
            self.caches.clear()
            self._read(again, prompt)
            if not control.cancelled:
                answer = compare(self.caches.target, last, again, progress)
        except LlamaError as error:
            answer = uncompared(reply, f"The check failed: {error} Reload the model and try again.")
        finally:
            again.close()
            self.caches.clear()
        emit(answer or uncompared(reply, "The check was stopped."))

    def reset(self) -> None:
        """Forget the conversation: both caches are empty afterwards."""
        self.caches.clear()

    def keep(self, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Save the conversation's state to disk if that is worthwhile, unless ``interrupted``."""
        if self._states and self.caches.target.used == len(self.caches.tokens):
            self._states.save(self.caches, interrupted)

    def measure(self, interrupted: Callable[[], bool] = lambda: False, budget_s: float = MEASURING_S) -> bool:
        """Measure the costs that depth "auto" needs, where they are not known, unless ``interrupted``. The
        conversation is kept. False if they are not known afterwards."""
        caches = self.caches
        n = len(caches.tokens)
        if self._costs.at(n) or not caches.drafter:
            return True
        if n + ROOM > self.n_ctx or (n and not caches.cuttable):
            return False
        held = list(caches.tokens)
        try:
            last = caches.target.model.any_token
            table = measure_costs(caches.target, caches.drafter, caches.tokens, last, interrupted, budget_s)
            if table:
                self._costs.put(n, table)
            if not n:
                caches.clear()
            elif 0 < (keep := caches.rewind(n)) < n:
                # Measuring overwrote what the drafter read off the last token: without decoding it again, the
                # next prompt would lose one token more.
                caches.commit(held[keep:])
        except LlamaError:
            caches.clear()
            return False
        return table is not None

    def close(self) -> None:
        """Free everything; the session cannot be used afterwards."""
        self.caches.close()

    # ---------------------------------------------------------------------------------- prefill

    def _prefill(self, reply: Generation) -> int:
        """Have the caches hold the prompt except its last token; returns how many tokens they held before.

        The last token is decoded by the first step, so that the first row of a reply comes from a batch of
        the same shape with and without drafts.
        """
        prompt = reply.prompt.tokens[:-1]
        if self._states and (found := self._states.restore(reply.request.conversation, self.caches, prompt)):
            reply.emit(Notice("info", f"{found} tokens of the conversation were restored from disk."))
        keep = self.caches.rewind(common_prefix(self.caches.tokens, prompt))
        started = time.perf_counter()
        self._read(reply, prompt)
        if self._states:
            self._states.prefilled(len(self.caches.tokens) - keep, time.perf_counter() - started)
        return keep

    def _read(self, reply: Generation, tokens: Sequence[int], *, again: bool = False) -> None:
        """Decode what the caches lack of ``tokens``, which begin with those that they hold, until a
        cancel."""
        caches, number = self.caches, reply.request.reply
        held, total = len(caches.tokens), len(tokens)
        started = time.perf_counter()
        reply.emit(Prefill(number, held, total, held, 0.0, again))
        for at in range(held, total, PREFILL_CHUNK):
            if reply.control.cancelled:
                break
            caches.commit(tokens[at : at + PREFILL_CHUNK])
            reply.emit(Prefill(number, len(caches.tokens), total, held, _ms_since(started), again))

    # ---------------------------------------------------------------------------------- one step

    def _step(self, reply: Generation, index: int) -> Step | None:
        """Run the cycle once. None when a cancel came before anything was verified."""
        t0 = time.perf_counter()
        tokens, control = self.caches.tokens, reply.control
        tuning = control.tuning
        reply.retune(tuning, tokens)
        auto = self._auto if tuning.depth == "auto" and not tuning.probe else None
        depth, recorded_depth = self._choose_depth(reply, tuning)
        draft, failed = Draft(), False
        if depth > 0:
            draft, failed = self._draft(reply, depth, tuning, auto)
        t1 = time.perf_counter()
        if control.cancelled:
            return None
        used = [] if tuning.probe else draft.tokens
        rows = self._verify(reply, used, one_by_one=tuning.strict and not self.batches_are_exact)
        if rows is None:
            return None
        if len(rows.tokens) <= len(used):
            used, failed = [], True
        t2 = time.perf_counter()
        dropped = control.cancelled and not reply.request.keep_accepted and bool(used)
        emitted, judged = ([], []) if dropped else reply.accept(rows, draft, used, tuning)
        t3 = time.perf_counter()
        rolled_back = self._roll_back(reply, rows)
        if rows.failure:
            self._unverified(reply, rows.failure)
            failed = True
        t4 = time.perf_counter()
        accepted = 0
        if not tuning.probe:
            accepted = sum(row.accepted for row in judged)
            self._watch(reply, draft.source, len(judged), accepted)
        between_ms = (t0 - reply.step_ended) * 1000 if index else 0.0
        ms = _phases((t0, t1, t2, t3, t4), rows.late_s, between_ms, drafted=depth > 0)
        if auto:
            self._auto_ran = True
            auto.observe(len(used), len(judged), accepted, ms.draft, ms.total, len(emitted))
        wrong = failed or not rolled_back
        baseline = self._plain.add(0 if wrong else len(used) + 1, len(emitted), ms.total, ms.total - ms.draft)
        reply.step_ended = time.perf_counter()
        return Step(
            reply=reply.request.reply,
            index=index,
            tokens=tuple(emitted),
            drafted=len(draft.tokens),
            judged=tuple(judged),
            outcome=_outcome(used, accepted, wrong, draft.gated),
            ms=ms,
            tuning=tuning,
            depth=recorded_depth,
            drafter=draft.source,
            context_used=len(tokens),
            baseline=baseline,
        )

    def _choose_depth(self, reply: Generation, tuning: Tuning) -> tuple[int, int]:
        """Drafts to ask for in the next step, and the depth to record: a fixed one even where the step is
        plain for the baseline."""
        drafter, n = self.caches.drafter, len(self.caches.tokens)
        left, limit = reply.left, self.n_ctx - n - 1
        if left > 0:
            limit = min(limit, left - 1)
        if not drafter or limit <= 0:
            return 0, 0
        limit = min(limit, drafter.max_depth)
        if tuning.probe:
            return 1, 1
        if reply.request.baseline and self._plain.due():
            return 0, 0 if tuning.depth == "auto" else min(tuning.depth, limit)
        if tuning.depth == "auto":
            depth = self._auto.choose(limit, drafter.behind(n))
        else:
            depth = min(tuning.depth, limit)
        return depth, depth

    def _draft(
        self, reply: Generation, depth: int, tuning: Tuning, auto: AutoDepth | None
    ) -> tuple[Draft, bool]:
        """The step's draft, and whether drafting failed."""
        caches = self.caches
        assert caches.drafter is not None
        model = caches.target.model
        policy = Policy(
            gate=tuning.gate,
            ends=lambda token: model.is_control(token) or model.is_eog(token),
            keep_drafting=lambda position, prob: (
                not reply.control.cancelled and (auto is None or auto.keep_drafting(position, prob))
            ),
            given=reply.given,
        )
        try:
            draft = caches.drafter.draft(caches.tokens, reply.last, depth, policy)
        except LlamaError as error:
            self._failures += 1
            if self._failures >= DRAFT_FAILURES:
                self._give_up_drafter(reply, f"the drafter failed {self._failures} times in a row ({error})")
                return Draft(), True
            reply.emit(Notice("warning", f"The drafter failed: {error} This step goes on without a draft."))
            self._decode_again(reply)
            return Draft(), True
        self._failures = 0
        # An id outside the target's vocabulary would make the whole batch invalid.
        for i, token in enumerate(draft.tokens):
            if not 0 <= token < model.n_vocab:
                del draft.tokens[i:]
                break
        return draft, False

    def _decode_again(self, reply: Generation) -> None:
        """Clear both caches and decode the committed tokens again. After a cancel only their beginning is
        committed."""
        tokens = list(self.caches.tokens)
        self.caches.clear()
        self._read(reply, tokens, again=True)

    def _verify(self, reply: Generation, drafts: Sequence[int], *, one_by_one: bool) -> TargetRows | None:
        """Decode ``last`` and the drafts, or ``last`` alone where that fails; one by one, each row only when
        it is asked for. None where the context is full, or a cancel came after a failure."""
        caches = self.caches
        tokens = [reply.last, *drafts]
        rows = TargetRows(caches.target, tokens, len(caches.tokens), one_by_one, caches.drafter)
        try:
            rows.decode_first()
        except DecodeError as error:
            if drafts:
                self._unverified(reply, error)
                return None if reply.control.cancelled else self._verify(reply, (), one_by_one=False)
            if error.code != 1:
                raise
            reply.end_for_context(self.n_ctx)
            return None
        return rows

    def _roll_back(self, reply: Generation, rows: TargetRows) -> bool:
        """Commit a step's accepted tokens and drop the others from both caches; False when the target had to
        decode everything again."""
        caches = self.caches
        pos = len(caches.tokens)
        caches.tokens += rows.tokens[: rows.committed]
        if caches.drafter and not rows.one_by_one:
            caches.drafter.observe(rows.tokens, pos, rows.committed)
        if rows.decoded > rows.committed and not caches.target.remove_from(len(caches.tokens)):
            why = "The target's cache refused to drop rejected drafts; the conversation is decoded again."
            reply.emit(Notice("warning", why))
            self._decode_again(reply)
            return False
        return True

    def _unverified(self, reply: Generation, error: DecodeError) -> None:
        """After a failed decode of drafts: have the cache hold exactly the committed tokens again."""
        reply.emit(Notice("warning", f"A draft could not be verified: {error} This step goes on without it."))
        target, n = self.caches.target, len(self.caches.tokens)
        if target.used == n and (error.unchanged or self.caches.rollback == "kv"):
            return
        if self.caches.rollback == "kv" and target.used > n and target.remove_from(n):
            return
        why = "The target's cache was left unclear; the conversation is decoded again."
        reply.emit(Notice("warning", why))
        self._decode_again(reply)

    def _watch(self, reply: Generation, source: str, judged: int, accepted: int) -> None:
        """Give up a support model none of whose drafts is accepted."""
        if source in ("", "lookup"):
            return
        self._judged += judged
        self._accepted += accepted
        if self._judged >= HOPELESS and not self._accepted:
            self._give_up_drafter(
                reply,
                f"none of the first {self._judged} drafts was accepted: this support file was most likely "
                "made for another model, or its head is quantised too far",
            )

    def _give_up_drafter(self, reply: Generation, why: str) -> None:
        """Go on without the drafter."""
        reply.emit(SpeculationOff(f"{why}; it stays off until the model is loaded again"))
        if self.caches.drafter:
            self.caches.drafter.close()
            self.caches.drafter = None


def _phases(at: Sequence[float], late_s: float, between_ms: float, *, drafted: bool) -> Phases:
    """The phases of a step by the five times, in seconds, at which draft, verification, acceptance and
    rollback begin and end. ``late_s``: decodes during the acceptance; ``between_ms``: since the step before.
    A step that was asked for no draft spends nothing on one: what comes before its verification is in plain
    decoding, too.
    """
    draft, verify, accept, rollback = ((end - begin) * 1000 for begin, end in pairwise(at))
    if not drafted:
        draft, between_ms = 0.0, between_ms + draft
    return Phases(
        draft=draft,
        verify=verify + late_s * 1000,
        accept=accept - late_s * 1000,
        rollback=rollback,
        other=between_ms,
        total=draft + verify + accept + rollback + between_ms,
    )


def _outcome(used: Sequence[int], accepted: int, failed: bool, gated: bool) -> Outcome:
    if failed:
        return "fallback"
    if not used:
        return "gated" if gated else "plain"
    if accepted == len(used):
        return "full"
    return "partial" if accepted else "miss"


def _ms_since(start: float) -> float:
    return (time.perf_counter() - start) * 1000
