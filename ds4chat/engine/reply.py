"""One reply between its first and its last token: what it has emitted, when it ends, and the acceptance of
each step's rows."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from ds4chat.engine import judge
from ds4chat.engine.control import Control
from ds4chat.engine.drafters.base import Draft, Drafter
from ds4chat.engine.events import (
    CONTEXT_LENGTH,
    Emit,
    Ended,
    FinishReason,
    FullRow,
    Generate,
    Judged,
    Origin,
    Token,
    Tuning,
)
from ds4chat.engine.llama import BadRowError, Context, DecodeError, Floats, Model, Sampler
from ds4chat.engine.loops import LoopDetector, identity
from ds4chat.engine.prompting import Prompt
from ds4chat.engine.reply_text import ReplyText


class TargetRows:
    """The target's logits of one step: row i follows tokens[i] and judges tokens[i + 1].

    A batch gives all rows at once. One by one, a row is decoded when it is first asked for, so that nothing
    after a rejected draft is ever decoded.

    A token is committed when its row is asked for, since only an accepted token's row is. So every committed
    token is in the cache either way, and the token on which a reply ends is neither.
    """

    def __init__(
        self, target: Context, tokens: list[int], pos: int, one_by_one: bool, drafter: Drafter | None
    ) -> None:
        self.tokens = tokens
        self.one_by_one = one_by_one and len(tokens) > 1
        self.decoded = 0
        """Tokens of this step in the target's cache."""
        self.committed = 1
        """Those of them that are committed; the first was certain before the step."""
        self.failure: DecodeError | None = None
        """Why a row after the first could not be decoded."""
        self.late_s = 0.0
        """Seconds spent in decodes after the first."""
        self._target = target
        self._pos = pos
        self._drafter = drafter
        self._logits: Floats | None = None

    def decode_first(self) -> None:
        """Decode the whole batch, or its first token. Raises DecodeError."""
        n = 1 if self.one_by_one else len(self.tokens)
        self._target.decode(self.tokens[:n], self._pos, outputs="all")
        self.decoded = n
        self._logits = self._target.logits(n)
        if self.one_by_one and self._drafter:
            self._drafter.observe(self.tokens[:1], self._pos, 1)

    def row(self, i: int) -> Floats | None:
        """Row i, (n_vocab,); None where it cannot be decoded, and then ``failure`` says why. Rows must be
        asked for in order."""
        if i >= self.decoded:
            started = time.perf_counter()
            token = self.tokens[i : i + 1]
            try:
                self._target.decode(token, self._pos + i, outputs="all")
            except DecodeError as error:
                self.failure = error
                return None
            self.decoded = i + 1
            self._logits = self._target.logits(1)
            if self._drafter:
                self._drafter.observe(token, self._pos + i, 1)
            self.late_s += time.perf_counter() - started
        assert self._logits is not None
        self.committed = i + 1
        row: Floats = self._logits[0 if self.one_by_one else i]
        return row


class Generation:
    """State of one reply between its steps. ``last`` is the token that is sampled but not decoded."""

    def __init__(self, request: Generate, prompt: Prompt, model: Model, control: Control, emit: Emit) -> None:
        tuning = control.tuning  # the request's may have been changed while it waited
        self.request = request
        self.prompt = prompt
        self.control = control
        self.emit = emit
        self.first_tuning = tuning
        """In force at the reply's start."""
        self.last = prompt.tokens[-1]
        self.finish: FinishReason | None = None
        self.detail = ""
        self.seed = tuning.seed if tuning.seed >= 0 else secrets.randbelow(2**32 - 1)
        self.ids: list[int] = []
        """Every emitted token."""
        self.lossy = False
        """A margin below 1 was in force at some step."""
        self.resampled = False
        """Sampling settings changed after the first token."""
        self.end_token = -1
        """The token that ended the reply, which is not emitted; -1 where something else ended it."""
        self.given = len(prompt.tokens)
        """Tokens before the reply."""
        self._model = model
        self._ends = prompt.format.ends
        self._text = ReplyText(
            prompt.format,
            stop=(*prompt.stop, *request.stop),
            opened_by=prompt.thinking,
            turns=not request.ignore_eos,
        )
        self._loop = LoopDetector() if request.end_loops else None
        self._tuning = tuning
        self._sampler = self._make_sampler(tuning, self.seed, prompt.tokens)
        self.step_ended = 0.0
        """When the last step's own work ended."""

    # -- limits

    @property
    def left(self) -> int:
        """Tokens that may still be emitted; -1 without a limit."""
        if self.request.max_tokens < 0:
            return -1
        return max(self.request.max_tokens - len(self.ids), 0)

    def end_for_context(self, n_ctx: int) -> None:
        """End the reply because no further token fits."""
        self.finish = "context"
        self.detail = (
            f"The context of {n_ctx:,} tokens is full, so the reply stops here. Start a new conversation, or "
            f"raise {CONTEXT_LENGTH}."
        )

    # -- tuning

    def retune(self, tuning: Tuning, committed: Sequence[int]) -> None:
        """Apply changed sampling settings; the rest of a Tuning is read by each step."""
        if tuning is not self._tuning and _sampling(tuning) != _sampling(self._tuning):
            self.resampled = True
            if self._sampler:
                self._sampler.close()
            # A new chain must not repeat the draws of the old one from its start.
            self._sampler = self._make_sampler(tuning, self.seed + len(self.ids), [*committed, self.last])
        self._tuning = tuning
        self.lossy = self.lossy or tuning.mode == "approximate"

    def _make_sampler(self, tuning: Tuning, seed: int, history: Sequence[int]) -> Sampler | None:
        """The chain; None where it would be the argmax."""
        if tuning.temp <= 0 and tuning.repeat_penalty == 1.0:
            return None
        return Sampler(
            self._model,
            temp=tuning.temp,
            top_k=tuning.top_k,
            top_p=tuning.top_p,
            min_p=tuning.min_p,
            penalty=tuning.repeat_penalty,
            seed=seed,
            history=history,
        )

    def close(self) -> None:
        """Free the sampler chain."""
        if self._sampler:
            self._sampler.close()

    # -- acceptance

    def choices(self, logits: Floats) -> tuple[int, int]:
        """The likeliest token of a row, (n_vocab,), and the target's own: that one, or what it sampled.

        Raises BadRowError for a row that decides nothing.
        """
        best = judge.choose(logits)
        if not judge.decides(logits, best):
            raise BadRowError
        return best, self._sampler.sample(logits) if self._sampler else best

    def accept(
        self, rows: TargetRows, draft: Draft, used: Sequence[int], tuning: Tuning
    ) -> tuple[list[Token], list[Judged]]:
        """Judge the used drafts row by row: the emitted tokens and the judged rows; ``rows`` counts what is
        committed. Sets ``last``, and ``finish`` where a token ends the reply."""
        tokens: list[Token] = []
        judged: list[Judged] = []
        margin = 1.0 if tuning.strict else tuning.margin
        for i in range(len(used) + 1):
            logits = rows.row(i)
            if logits is None:
                break  # ``last`` is the draft accepted before: the next step decodes it
            best, own = self.choices(logits)
            if tuning.probe and draft.tokens:
                judged.append(self._judged(logits, draft, 0, best, own, 1.0, tuning))
            if i == len(used):
                self._emit(own, "bonus" if used else "plain", tokens)
                self.last = own
                break
            row = self._judged(logits, draft, i, best, own, margin, tuning)
            judged.append(row)
            if not row.accepted:
                self._emit(own, "corrected", tokens)
                self.last = own
                break
            if row.by == "ratio" and self._sampler:
                self._sampler.emitted_instead(row.draft)
            self._emit(row.draft, "accepted", tokens)
            self.last = row.draft
            if self.finish:
                break
        return tokens, judged

    def emit_own(self, logits: Floats) -> list[Token]:
        """Plain decoding: emit the target's own token of a row (n_vocab,), which becomes ``last``.

        A list of that one token, empty where it ends the reply.
        """
        tokens: list[Token] = []
        _, self.last = self.choices(logits)
        self._emit(self.last, "plain", tokens)
        return tokens

    def _judged(
        self, logits: Floats, draft: Draft, i: int, best: int, own: int, margin: float, tuning: Tuning
    ) -> Judged:
        token = draft.tokens[i]
        verdict = judge.judge(logits, token, best, own, margin)
        full = self._full(logits, token, own) if tuning.full_logits else None
        return Judged(
            position=i + 1,
            draft=token,
            draft_text=self.piece(token),
            target=own,
            target_text=self.piece(own),
            accepted=verdict.accepted,
            by=verdict.by,
            ratio=verdict.ratio,
            gap=verdict.gap,
            draft_gap=draft.gaps[i] if draft.gaps is not None else None,
            draft_prob=draft.probs[i] if draft.probs is not None else None,
            full=full,
        )

    def _full(self, logits: Floats, token: int, own: int) -> FullRow:
        p, entropy = judge.distribution(logits)
        best = p.argpartition(-5)[-5:]
        top = tuple((int(i), self.piece(int(i)), float(p[i])) for i in best[p[best].argsort()[::-1]])
        return FullRow(float(p[token]), float(p[own]), entropy, top)

    def piece(self, token: int) -> str:
        """A token's text as a log shows it, that of control tokens too."""
        return self._model.piece(token, special=True).decode("utf-8", "replace")

    def _emit(self, token: int, origin: Origin, tokens: list[Token]) -> None:
        """Emit one token, unless it ends the reply."""
        ends = self._model.is_eog(token) or token in self._ends
        if ends and not self.request.ignore_eos and self._text.ends_at(token):
            self.finish = "stop"
            self.end_token = token
            return
        text, thinking = self._text.push(self._model.piece(token), token)
        self.ids.append(token)
        tokens.append(Token(token, text, origin, thinking))
        if self._text.stopped:
            self.finish = "stop"
            if self._text.stopped == "turn":
                self.detail = (
                    "The model began to write the user's next turn itself, so the reply ends here. If that "
                    "happens often, the model's file may name the wrong end token: look for a newer one."
                )
        elif self._loop is not None and self._loop.push(identity(tokens[-1])):
            self.finish, self.detail = "stop", self._loop.why_ended
        elif self.left == 0:
            self.finish = "length"

    def ended(
        self,
        *,
        reused_tokens: int,
        prefill_ms: float,
        decode_ms: float,
        first_token_ms: float,
        context_used: int,
    ) -> Ended:
        """The reply's last event, with what was held back of its text."""
        tail, thinking_tail = self._text.finish()
        return Ended(
            reply=self.request.reply,
            finish_reason=self.finish or "error",
            detail=self.detail,
            prompt_tokens=self.given,
            reused_tokens=reused_tokens,
            prefill_ms=prefill_ms,
            decode_ms=decode_ms,
            first_token_ms=first_token_ms,
            context_used=context_used,
            seed=self.seed,
            tail=tail,
            thinking_tail=thinking_tail,
        )


def _sampling(tuning: Tuning) -> tuple[float, ...]:
    return (tuning.temp, tuning.top_k, tuning.top_p, tuning.min_p, tuning.repeat_penalty)
