"""The cycle: prefill, then draft, verify, accept, roll back, until a reply ends.

Between two steps the state is:

    tokens   the committed tokens; the target's KV cache holds exactly these
    last     one token that is sampled and emitted (or the prompt's last), but not decoded; once a
             reply is over, the token that it ended on
    drafter  knows all committed tokens, or can be brought to know them

One step:
1. DRAFT     the drafter proposes d1..dk to follow ``last``, k at most what the depth controller, the room
             left in the context and the budget of tokens allow.
2. VERIFY    the target decodes [last, d1..dk] in one batch; row i judges d(i+1).
3. ACCEPT    the longest prefix of drafts that passes, and the target's own token after it.
4. ROLLBACK  the target drops the rejected drafts, and the drafter is shown what was committed.
             Committed is now tokens + [last, d1..da]; the target's own token is the new ``last``.

A reply can end at any token inside a block; what counts is then decided token by token, and both caches are
cut to the last token that counts. A step whose verification fails decodes ``last`` alone. A rollback that
the cache refuses is made good by clearing it and decoding the committed tokens again; a cancel ends that too,
and then fewer tokens are committed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import ds4chat.engine.llama  # noqa: F401  first, so that llama.cpp is loaded before numpy
from ds4chat.engine.auto.controller import AutoDepth
from ds4chat.engine.auto.costs import Tables
from ds4chat.engine.auto.measure import ROOM, measure_costs
from ds4chat.engine.baseline import PlainPasses
from ds4chat.engine.control import Control
from ds4chat.engine.drafters.base import Draft, Drafter, Policy
from ds4chat.engine.events import (
    CONTEXT_LENGTH,
    Emit,
    Ended,
    Event,
    FinishReason,
    Generate,
    Notice,
    Outcome,
    Phases,
    Prefill,
    SpeculationOff,
    Step,
    Tuning,
    refused,
    uncompared,
)
from ds4chat.engine.llama import BadRowError, Context, DecodeError, LlamaError, TooLongError
from ds4chat.engine.measure import BUDGET_S
from ds4chat.engine.prompting import Prompt, Prompter, PromptError
from ds4chat.engine.replay import Finished, compare
from ds4chat.engine.reply import Generation, TargetRows
from ds4chat.engine.saved_state import SavedStates

PREFILL_CHUNK = 128
"""Tokens a prefill decode: a cancel waits for one of these at most, and no speed is lost."""

DRAFT_FAILURES = 3
"""Failed drafts in a row after which the drafter is given up: each costs a prefill of the conversation."""

MEASURING_S = 20.0
"""Most seconds that measuring what drafts cost may take where nobody waits for it."""

HOPELESS = 64
"""Drafts judged since the load without one accepted, after which drafting is given up: that is not bad luck
but a support file that does not belong to this target."""


class Session:
    """One target with its drafter and caches, answering one reply at a time.

    rollback: "kv" when the target's cache can be cut anywhere; "bounded" when it can only drop tokens of
    the last batch (recurrent states); "none" when it cannot drop any. one_by_one: verify each draft by a
    decode of its own, where batches are not bit-equal and strict mode is on. costs: what depth "auto" knows
    of this machine. states: where keep() puts the
    conversation's state, and where a prompt's beginning may be found. windowed: some layers attend a sliding
    window, of which a saved state holds no more than its last token sees. settling: plain steps after a
    change of the batch size that tell nothing of the baseline (PlainPasses).
    """

    def __init__(
        self,
        target: Context,
        drafter: Drafter | None,
        prompter: Prompter,
        *,
        n_ctx: int,
        rollback: Literal["kv", "bounded", "none"] = "kv",
        batches_are_exact: bool = False,
        costs: Tables | None = None,
        states: SavedStates | None = None,
        windowed: bool = False,
        settling: int = 1,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.prompter = prompter
        self.n_ctx = target.model.room = min(n_ctx, target.n_ctx)
        self.rollback = rollback
        self.batches_are_exact = batches_are_exact
        self.tokens: list[int] = []
        self._windowed = windowed
        self._restored = 0
        """Tokens that came from disk without what lies before the window of the last of them."""
        self._auto = AutoDepth()
        self._auto_ran = False
        self._costs = costs or Tables()
        self._states = states
        self._plain = PlainPasses(settling)
        self._judged = 0
        self._accepted = 0
        self._failures = 0
        self._last: Finished | None = None

    # ---------------------------------------------------------------------------------- a reply

    def generate(self, request: Generate, control: Control, emit: Emit) -> None:
        """Answer one request; the events go to ``emit``, an Ended last. Nothing but a bug is raised."""
        if control.tuning.depth == "auto":
            self.measure(lambda: control.cancelled, BUDGET_S)
        started = time.perf_counter()
        prompt = self._prompt(request, emit)
        if prompt is None:
            return
        tuning = control.tuning  # the request's may have been changed while it waited
        seed = tuning.seed if tuning.seed >= 0 else secrets.randbelow(2**32 - 1)
        reply = Generation(request, prompt, self.target.model, tuning, seed)
        self._plain.begin()
        prefill_ms = decode_ms = first_ms = 0.0
        try:
            reused = self._prefill(prompt.tokens, request.reply, request.conversation, control, emit)
            prefill_ms = _ms_since(started)
            self._auto.table = self._costs.at(len(prompt.tokens))
            self._auto.begin()
            decoding = time.perf_counter()
            index = 0
            while not reply.finish:
                if control.cancelled:
                    reply.finish = "cancelled"
                elif len(self.tokens) >= self.n_ctx:
                    reply.end_for_context(self.n_ctx)
                elif reply.left == 0:
                    reply.finish = "length"
                else:
                    step = self._step(reply, control, index, emit)
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
            self.reset()
        finally:
            reply.close()
        if self._auto_ran:
            self._costs.save()
            self._auto_ran = False
        if not request.trial:
            self._last = Finished(
                request,
                prompt,
                tuple(reply.ids),
                reply.end_token,
                seed,
                tuning,
                reply.lossy,
                reply.resampled,
            )
        emit(
            Ended(
                reply=request.reply,
                finish_reason=reply.finish or "error",
                detail=reply.detail,
                prompt_tokens=len(prompt.tokens),
                reused_tokens=reused,
                prefill_ms=prefill_ms,
                decode_ms=decode_ms,
                first_token_ms=first_ms,
                context_used=len(self.tokens),
                seed=seed,
                **reply.tails(),
            )
        )

    def _prompt(self, request: Generate, emit: Emit) -> Prompt | None:
        """The request's prompt; None where there is none that fits the context, and an Ended says why."""
        try:
            prompt = self.prompter.of(request)
        except (PromptError, LlamaError) as error:
            reason: FinishReason = "context" if isinstance(error, TooLongError) else "error"
            emit(refused(request.reply, str(error), reason))
            return None
        for note in prompt.notes:
            emit(Notice("info", note))
        if len(prompt.tokens) >= self.n_ctx:
            why = f"The prompt has {len(prompt.tokens)} tokens and the context holds {self.n_ctx}."
            emit(refused(request.reply, f"{why} Shorten it, or raise {CONTEXT_LENGTH}.", "context"))
            return None
        return prompt

    def replay(self, reply: int, control: Control, emit: Emit) -> None:
        """Decode the last reply again without drafts and emit a Replayed, which says why where it could not
        be compared."""
        last = self._last
        if last is None or last.request.reply != reply:
            why = "Only the last reply can be checked, and not after a reload. Retry it first."
            emit(uncompared(reply, why))
            return
        prompt = last.prompt.tokens[:-1]
        total = len(prompt) + len(last.compared)
        started = time.perf_counter()

        def read(event: Event) -> None:
            emit(replace(event, total=total) if isinstance(event, Prefill) else event)

        def compared(n: int) -> None:
            if n % PREFILL_CHUNK == 0:
                emit(Prefill(reply, len(prompt) + n, total, 0, _ms_since(started)))

        answer = None
        try:
            self.reset()
            self._read(prompt, reply, control, read)
            if not control.cancelled:
                answer = compare(self.target, last, lambda: control.cancelled, compared)
        except LlamaError as error:
            answer = uncompared(reply, f"The check failed: {error} Reload the model and try again.")
        finally:
            self.reset()
        emit(answer or uncompared(reply, "The check was stopped."))

    def reset(self) -> None:
        """Forget the conversation: both caches are empty afterwards."""
        self.target.clear()
        self.tokens.clear()
        self._restored = 0
        if self.drafter:
            self.drafter.rewind(0)

    def keep(self, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Save the conversation's state to disk if that is worthwhile, unless ``interrupted``."""
        if self._states and self.target.used == len(self.tokens):
            self._states.save(self.target, self.drafter, self.tokens, interrupted)

    def measure(self, interrupted: Callable[[], bool] = lambda: False, budget_s: float = MEASURING_S) -> bool:
        """Measure what depth "auto" has to know, if it is not known yet, unless ``interrupted``. The
        conversation is kept. False if nothing is known afterwards."""
        n = len(self.tokens)
        if self._costs.at(n) or not self.drafter:
            return True
        if n + ROOM > self.n_ctx or (n and (self.rollback != "kv" or self._restored)):
            return False
        held = list(self.tokens)
        try:
            last = self.target.model.any_token
            table = measure_costs(self.target, self.drafter, self.tokens, last, interrupted, budget_s)
            if table:
                self._costs.put(n, table)
            if not n:
                self.reset()
            elif 0 < (keep := self._rewind_to(n)) < n:
                # What the drafter read off the last token went with what was measured: without it, the next
                # prompt would have to give up one token more.
                self._commit(held[keep:])
        except LlamaError:
            self.reset()
            return False
        return table is not None

    def close(self) -> None:
        """Free everything; the session cannot be used afterwards."""
        if self.drafter:
            self.drafter.close()
        self.target.close()
        self.target.model.close()

    # ---------------------------------------------------------------------------------- prefill

    def _prefill(
        self, prompt: Sequence[int], reply: int, conversation: int, control: Control, emit: Emit
    ) -> int:
        """Bring the cache to hold prompt[:-1]; returns how many of its tokens were there already.

        The last token opens the first step, so that with and without drafts the first row of a reply comes
        of a batch of the same shape.
        """
        prompt = prompt[:-1]
        if self._states:
            found = self._states.restore(
                conversation,
                self.target,
                self.drafter,
                self.tokens,
                prompt,
                whole=self._windowed or self.rollback != "kv",
            )
            if found:
                self._restored = found if self._windowed else 0
                emit(Notice("info", f"{found} tokens of the conversation were restored from disk."))
        keep = self._rewind_to(_common_prefix(self.tokens, prompt))
        started = time.perf_counter()
        self._read(prompt, reply, control, emit)
        if self._states:
            self._states.prefilled(len(self.tokens) - keep, time.perf_counter() - started)
        return keep

    def _read(
        self, tokens: Sequence[int], reply: int, control: Control, emit: Emit, *, again: bool = False
    ) -> None:
        """Decode what the caches lack of ``tokens``, of which they hold a beginning, until a cancel comes."""
        held, total = len(self.tokens), len(tokens)
        started = time.perf_counter()
        emit(Prefill(reply, held, total, held, 0.0, again))
        for at in range(held, total, PREFILL_CHUNK):
            if control.cancelled:
                break
            self._commit(tokens[at : at + PREFILL_CHUNK])
            emit(Prefill(reply, len(self.tokens), total, held, _ms_since(started), again))

    def _commit(self, tokens: Sequence[int]) -> None:
        """Decode tokens that are certain and show them to the drafter."""
        pos = len(self.tokens)
        self.target.decode(tokens, pos, outputs="none")
        self.tokens.extend(tokens)
        if self.drafter:
            self.drafter.observe(tokens, pos, len(tokens))

    def _rewind_to(self, keep: int) -> int:
        """Cut both caches to ``keep`` tokens or fewer; returns how many stayed."""
        # A recurrent state cannot go back over several batches, and before what was restored of a sliding
        # window cells are missing.
        least = self._restored if self.rollback == "kv" else len(self.tokens)
        if keep < least:
            keep = 0
        if self.drafter:
            keep = self.drafter.rewind(keep)
            if keep < least:
                keep = self.drafter.rewind(0)
        if keep < len(self.tokens):
            if keep == 0 or not self.target.remove_from(keep):
                self.reset()
                return 0
            del self.tokens[keep:]
        return keep

    # ---------------------------------------------------------------------------------- one step

    def _step(self, reply: Generation, control: Control, index: int, emit: Emit) -> Step | None:
        """Run the cycle once. None when a cancel came before anything was verified."""
        t0 = time.perf_counter()
        tuning = control.tuning
        reply.retune(tuning, self.tokens)
        auto = self._auto if tuning.depth == "auto" and not tuning.probe else None
        depth, stands_for = self._choose_depth(reply, tuning)
        draft, failed = Draft(), False
        if depth > 0:
            draft, failed = self._draft(reply, depth, tuning, auto, control, emit)
        t1 = time.perf_counter()
        if control.cancelled:
            return None
        used = [] if tuning.probe else draft.tokens
        rows = self._verify(
            reply, used, control, emit, one_by_one=tuning.strict and not self.batches_are_exact
        )
        if rows is None:
            return None
        if len(rows.tokens) <= len(used):
            used, failed = [], True
        t2 = time.perf_counter()
        dropped = control.cancelled and not reply.request.keep_accepted and bool(used)
        tokens, judged = ([], []) if dropped else reply.accept(rows, draft, used, tuning)
        t3 = time.perf_counter()
        rolled_back = self._roll_back(rows, reply, control, emit)
        if rows.failure:
            self._unverified(rows.failure, reply, control, emit)
            failed = True
        t4 = time.perf_counter()
        if not tuning.probe:
            self._watch(draft.source, len(judged), sum(row.accepted for row in judged), emit)
        ms = _phases((t0, t1, t2, t3, t4), rows.late_s, reply.between_ms(t0), drafted=depth > 0)
        accepted = 0 if tuning.probe else sum(row.accepted for row in judged)
        if auto:
            self._auto_ran = True
            auto.observe(len(used), len(judged), accepted, ms.draft, ms.total, len(tokens))
        wrong = failed or not rolled_back
        baseline = self._plain.took(0 if wrong else len(used) + 1, len(tokens), ms.total, ms.total - ms.draft)
        reply.step_ended(time.perf_counter())
        return Step(
            reply=reply.request.reply,
            index=index,
            tokens=tuple(tokens),
            drafted=len(draft.tokens),
            judged=tuple(judged),
            outcome=_outcome(used, accepted, wrong, draft.gated),
            ms=ms,
            tuning=tuning,
            depth=stands_for,
            drafter=draft.source,
            context_used=len(self.tokens),
            baseline=baseline,
        )

    def _choose_depth(self, reply: Generation, tuning: Tuning) -> tuple[int, int]:
        """Drafts to ask for in the next step, and those that the step is recorded with: a fixed depth, too,
        where the step is plain for the baseline's sake."""
        n = len(self.tokens)
        limit = min(self.n_ctx - n - 1, reply.left - 1) if reply.left > 0 else self.n_ctx - n - 1
        if not self.drafter or limit <= 0:
            return 0, 0
        limit = min(limit, self.drafter.max_depth)
        if tuning.probe:
            return 1, 1
        if reply.request.baseline and self._plain.due():
            return 0, 0 if tuning.depth == "auto" else min(tuning.depth, limit)
        if tuning.depth == "auto":
            depth = self._auto.choose(limit, self.drafter.behind(n))
        else:
            depth = min(tuning.depth, limit)
        return depth, depth

    def _draft(
        self,
        reply: Generation,
        depth: int,
        tuning: Tuning,
        auto: AutoDepth | None,
        control: Control,
        emit: Emit,
    ) -> tuple[Draft, bool]:
        """The step's draft, and whether drafting failed."""
        assert self.drafter is not None
        model = self.target.model
        policy = Policy(
            gate=tuning.gate,
            ends=lambda token: model.is_control(token) or model.is_eog(token),
            keep_drafting=lambda position, prob: (
                not control.cancelled and (auto is None or auto.keep_drafting(position, prob))
            ),
            given=reply.given,
        )
        try:
            draft = self.drafter.draft(self.tokens, reply.last, depth, policy)
        except LlamaError as error:
            self._failures += 1
            if self._failures >= DRAFT_FAILURES:
                self._give_up_drafter(f"the drafter failed {self._failures} times in a row ({error})", emit)
                return Draft(), True
            emit(Notice("warning", f"The drafter failed: {error} This step goes on without a draft."))
            self._decode_again(reply, control, emit)
            return Draft(), True
        self._failures = 0
        # An id outside the target's vocabulary would make the whole batch invalid.
        for i, token in enumerate(draft.tokens):
            if not 0 <= token < model.n_vocab:
                del draft.tokens[i:]
                break
        return draft, False

    def _decode_again(self, reply: Generation, control: Control, emit: Emit) -> None:
        """Make both caches anew out of the committed tokens. After a cancel they, and with them ``tokens``,
        hold only a beginning."""
        tokens = list(self.tokens)
        self.reset()
        self._read(tokens, reply.request.reply, control, emit, again=True)

    def _verify(
        self, reply: Generation, drafts: Sequence[int], control: Control, emit: Emit, *, one_by_one: bool
    ) -> TargetRows | None:
        """Decode ``last`` and the drafts, or ``last`` alone where that fails; one by one, each row only when
        it is asked for. None where the context is full, or a cancel came after a failure."""
        rows = TargetRows(self.target, [reply.last, *drafts], len(self.tokens), one_by_one, self.drafter)
        try:
            rows.decode_first()
        except DecodeError as error:
            if drafts:
                self._unverified(error, reply, control, emit)
                return None if control.cancelled else self._verify(reply, (), control, emit, one_by_one=False)
            if error.code != 1:
                raise
            reply.end_for_context(self.n_ctx)
            return None
        return rows

    def _roll_back(self, rows: TargetRows, reply: Generation, control: Control, emit: Emit) -> bool:
        """Commit what stands of a step and cut both caches to it; False when the target had to decode all
        again."""
        pos = len(self.tokens)
        self.tokens += rows.tokens[: rows.committed]
        if self.drafter and not rows.one_by_one:
            self.drafter.observe(rows.tokens, pos, rows.committed)
        if rows.decoded > rows.committed and not self.target.remove_from(len(self.tokens)):
            why = "The target's cache refused to drop rejected drafts; the conversation is decoded again."
            emit(Notice("warning", why))
            self._decode_again(reply, control, emit)
            return False
        return True

    def _unverified(self, error: DecodeError, reply: Generation, control: Control, emit: Emit) -> None:
        """After a decode of drafts that failed: have the cache hold the committed tokens again."""
        emit(Notice("warning", f"A draft could not be verified: {error} This step goes on without it."))
        n = len(self.tokens)
        if self.target.used == n and (error.unchanged or self.rollback == "kv"):
            return
        if self.rollback == "kv" and self.target.used > n and self.target.remove_from(n):
            return
        emit(Notice("warning", "The target's cache was left unclear; the conversation is decoded again."))
        self._decode_again(reply, control, emit)

    def _watch(self, source: str, judged: int, accepted: int, emit: Emit) -> None:
        """Give up a drafter that never hits."""
        if source in ("", "lookup"):
            return
        self._judged += judged
        self._accepted += accepted
        if self._judged >= HOPELESS and not self._accepted:
            self._give_up_drafter(
                f"none of the first {self._judged} drafts was accepted: this support file was most likely "
                "made for another model, or its head is quantised too far",
                emit,
            )

    def _give_up_drafter(self, why: str, emit: Emit) -> None:
        """Go on without the drafter."""
        emit(SpeculationOff(f"{why}; it stays off until the model is loaded again"))
        if self.drafter:
            self.drafter.close()
            self.drafter = None


def _phases(at: Sequence[float], late_s: float, between_ms: float, *, drafted: bool) -> Phases:
    """The phases of a step whose draft, verification, acceptance and rollback begin and end at these five
    seconds. ``late_s``: of the acceptance, what went into decodes; ``between_ms``: since the step before.
    Before a step that drafts nothing there is only what plain decoding has as well."""
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


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    n = 0
    for x, y in zip(a, b):
        if x != y:
            break
        n += 1
    return n


def _ms_since(start: float) -> float:
    return (time.perf_counter() - start) * 1000
