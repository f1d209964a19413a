"""A session over a server: requests go out over HTTP, and the answer's stream becomes the engine's events."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from ds4chat.engine.control import Control
from ds4chat.engine.events import (
    UNKNOWN_ID,
    Alive,
    DrafterInfo,
    Emit,
    Ended,
    FinishReason,
    Generate,
    Judged,
    Loaded,
    LoadError,
    Loading,
    ModelInfo,
    Notice,
    Outcome,
    Phases,
    Prefill,
    Revised,
    ServerAddress,
    ServerInfo,
    Step,
    Token,
    Tuning,
    uncompared,
)
from ds4chat.engine.loops import LoopDetector, identity
from ds4chat.servers.dialect import (
    WITHOUT,
    About,
    Block,
    Dialect,
    End,
    Piece,
    PromptProgress,
    Query,
    Request,
    Revision,
    refused_fields,
)
from ds4chat.servers.http import Endpoint, ServerError, Stream
from ds4chat.servers.reading import Reading
from ds4chat.servers.table import DIALECTS
from ds4chat.text import one_line

LOADING_S = 600.0
"""Longest wait for a server that is loading its model."""
AGAIN_S = 0.5
"""Seconds between two questions whether it has."""
STOPPED_S = 2.0
"""Longest wait for a server to stop after a cancel."""
MOST_REPLY_BYTES = 1 << 30
"""A longer stream is taken for one without an end."""
DRAFTER = "server"
"""The kind of a drafter that the server does not name."""


def open_server(address: ServerAddress, emit: Emit) -> tuple[RemoteSession, Loaded]:
    """A ready session over the server at ``address``, and its Loaded event. Raises LoadError."""
    try:
        endpoint = Endpoint(address)
        dialect, about = _recognise_when_ready(endpoint, address.model, emit)
    except ServerError as error:
        raise LoadError(str(error)) from None
    session = RemoteSession(endpoint, dialect, about, address)
    if endpoint.exposed:
        emit(
            Notice(
                "warning",
                f"{endpoint.url} is another machine, reached over plain http: anyone on the path can read "
                "the conversation and the key. Put TLS in front of the server, or use a tunnel.",
            )
        )
    return session, session.loaded


def recognise(endpoint: Endpoint, model: str) -> tuple[Dialect, About]:
    """The server's dialect and what it says about itself. Raises ServerError."""
    for dialect in DIALECTS:
        if (about := dialect.recognise(endpoint, model)) is not None:
            return dialect, about
    raise ServerError(
        f"What answers at {endpoint.url} is none of the servers that ds4chat knows, and has no /v1/models "
        "either. Check the address and its port, or name the model with --server-model.",
        "strange",
    )


def _recognise_when_ready(endpoint: Endpoint, model: str, emit: Emit) -> tuple[Dialect, About]:
    """As ``recognise``, once the server has loaded its model. Raises ServerError."""
    deadline = time.monotonic() + LOADING_S
    while True:
        emit(Loading("asking the server", 0.0))
        try:
            return recognise(endpoint, model)
        except ServerError as error:
            if error.kind != "loading" or time.monotonic() > deadline:
                raise
        emit(Loading("waiting for the server to load its model", 0.0))
        time.sleep(AGAIN_S)


class RemoteSession:
    """One server, answering one reply at a time."""

    def __init__(self, endpoint: Endpoint, dialect: Dialect, about: About, address: ServerAddress) -> None:
        self.endpoint = endpoint
        self.dialect = dialect
        self.about = about
        self._address = address
        self._chosen = set(address.chosen)
        self._refused: set[str] = set()
        """Fields of a request that the server refuses."""

    @property
    def loaded(self) -> Loaded:
        """What is known about the server now."""
        about, dialect, endpoint = self.about, self.dialect, self.endpoint
        kind = one_line(about.drafter) or DRAFTER
        refused = {
            ours: "the server refuses it"
            for ours, theirs in dialect.sampling.items()
            if theirs in self._refused
        }
        name = self._address.name or endpoint.place
        return Loaded(
            target=ModelInfo(
                path=endpoint.url,
                name=one_line(about.label or about.model or name)[:200],
                architecture="",
                quantisation="",
                parameters=about.parameters,
                size_bytes=about.size_bytes,
                n_ctx_train=about.trained_context,
                n_layer=0,
                n_embd=0,
                n_vocab=about.vocabulary,
            ),
            drafter=DrafterInfo(kind, "", 0) if about.speculates else None,
            off_reason="" if about.speculates else _off(about, dialect),
            n_ctx=about.context,
            threads=0,
            device=f"{dialect.kind} at {name}",
            plain_ms=0.0,
            server=ServerInfo(
                url=endpoint.url,
                name=name,
                kind=dialect.kind,
                version=one_line(about.version)[:80],
                tells=dialect.tells,
                why=dialect.why,
                speculates=about.speculates,
                live=tuple(ours for ours in dialect.sampling if ours not in refused),
                fixed=(*dialect.fixed.items(), *refused.items()),
                chosen=tuple(sorted(self._chosen - refused.keys())),
                has_key=endpoint.has_key,
                exposed=endpoint.exposed,
                goes_on=dialect.goes_on,
            ),
        )

    def generate(self, request: Generate, control: Control, emit: Emit) -> None:
        """Answer one request; the events go to ``emit``, an Ended last. Nothing but a bug is raised."""
        before = self.loaded
        self._chosen |= _changed(request.tuning)
        if self.loaded != before:
            emit(self.loaded)
        query = Query(request, self.about, self.endpoint, frozenset(self._chosen), lambda: control.cancelled)
        reply = _Reply(query, emit)
        try:
            self._answer(query, reply, emit)
        except ServerError as error:
            if error.trouble == "stopped":
                emit(reply.ended("cancelled", self._after_cancel()))
            else:
                emit(reply.ended("context" if error.kind == "context" else "error", reply.kept(str(error))))
            return
        end = reply.end
        if reply.repeats:
            emit(reply.ended("stop", reply.repeats))
        elif end.reason is None:
            detail = (
                "The server ended its reply without saying why: it may have been stopped or run out of "
                "memory. Look at its log, then retry."
            )
            emit(reply.ended("error", reply.kept(detail)))
        else:
            self._learn(end, emit)
            emit(reply.ended(end.reason, reply.kept(end.detail) if end.reason == "error" else end.detail))

    def _answer(self, query: Query, reply: _Reply, emit: Emit) -> None:
        """Send the request and pass the answer on, to its end or until the reply repeats itself. Raises
        ServerError, with everything before it passed on."""
        request = self.dialect.request(query)
        reading = Reading(request.reader)
        size = comments = 0
        with self._stream(request, query, emit) as stream:
            try:
                while not reading.done and (part := stream.read()):
                    size += len(part)
                    if size > MOST_REPLY_BYTES:
                        raise ServerError("The server's reply has no end.", "strange")
                    reply.pass_on(reading.feed(part))
                    if reply.repeats:
                        return
                    if reading.comments > comments:
                        comments = reading.comments
                        emit(Alive(reply.number))
            except ServerError as error:
                with suppress(ServerError):
                    reply.pass_on(reading.finish())
                if error.trouble == "stopped" or reply.end.reason is None:
                    raise
                return  # the fault came after the reply's end
        reply.pass_on(reading.finish())

    @contextmanager
    def _stream(self, request: Request, query: Query, emit: Emit) -> Iterator[Stream]:
        """The stream that answers the request, or the request without the fields that the server refuses; it
        is reported once what is unknown without them. Raises ServerError."""
        may_go = {*WITHOUT, *self.dialect.sampling.values()}
        refused = set(self._refused)
        while True:
            body = {name: value for name, value in request.body.items() if name not in refused}
            with self.endpoint.stream(request.path, body, stop=query.stop) as stream:
                if stream.status == 200:
                    self._leave_out(refused - self._refused, emit)
                    yield stream
                    return
                answer = stream.whole()
            error = self.endpoint.refusal(answer)
            fields = [] if error.kind == "context" else refused_fields(answer, body.keys() & may_go)
            if not fields:
                raise error
            refused.update(fields)

    def _leave_out(self, fields: Collection[str], emit: Emit) -> None:
        """Send no request with these fields from now on, and say what follows."""
        if not fields:
            return
        before = self.loaded
        self._refused |= set(fields)
        names = sorted(fields)
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        effects = dict.fromkeys(WITHOUT.get(name, f"it uses its own {name}") for name in names)
        emit(
            Notice(
                "warning",
                f"The server at {self.endpoint.place} refuses {listed}, so requests go without: "
                f"{'; '.join(effects)}.",
            )
        )
        if self.loaded != before:
            emit(self.loaded)

    def _after_cancel(self) -> str:
        """A sentence on whether the server has stopped."""
        begun = time.monotonic()
        with suppress(ServerError):
            while (stopped := self.dialect.stopped(self.endpoint)) is not None:
                took = time.monotonic() - begun
                if stopped:
                    return f"The server stopped {took:.1f} s after the connection was closed."
                if took > STOPPED_S:
                    return f"The connection is closed, but the server is still writing after {took:.0f} s."
                time.sleep(0.02)
        return "The connection is closed. The server does not tell whether it has stopped."

    def _learn(self, end: End, emit: Emit) -> None:
        """Update what is known about the server by the end of a reply, and report what changed."""
        about = self.about
        if end.model and about.answers and end.model != about.answers:
            with suppress(ServerError):
                about = self.dialect.recognise(self.endpoint, self._address.model) or about
            about = replace(about, label=about.label or end.model)
            emit(
                Notice(
                    "warning",
                    f"The server now answers with {one_line(end.model)[:100]}: another model was loaded "
                    "there.",
                )
            )
        if end.model:
            about = replace(about, answers=end.model)
        if (end.drafter and end.drafter != about.drafter) or (end.counters and not about.speculates):
            about = replace(about, drafter=end.drafter or about.drafter, speculates=True)
        before, self.about = self.loaded, about
        if self.loaded != before:
            emit(self.loaded)

    def replay(self, reply: int, control: Control, emit: Emit) -> None:
        """Report why a server's reply cannot be decoded again without drafts."""
        emit(
            uncompared(
                reply,
                "A request cannot tell a server to decode without drafts, so its reply cannot be checked "
                "here. With the model's file, ds4chat check can.",
            )
        )

    def reset(self) -> None:
        """Nothing: every request contains its whole conversation."""

    def keep(self, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Nothing: the state is the server's."""

    def measure(self, interrupted: Callable[[], bool] = lambda: False) -> bool:
        """Nothing: whether a draft pays is the server's choice."""
        return True

    def close(self) -> None:
        """Nothing: no connection outlives its request."""


class _Reply:
    """One reply as it arrives: pieces in, the engine's events out."""

    def __init__(self, query: Query, emit: Emit) -> None:
        self.number = query.generate.reply
        self._tuning = _in_force(query.generate.tuning)
        self._emit = emit
        self._drafter = one_line(query.about.drafter) or DRAFTER
        self._steps: list[Step] = []
        self._emitted = 0
        self._started = self._before = time.perf_counter()
        self._first_ms = 0.0
        self._progress = PromptProgress(0, 0, 0, 0.0)
        self.end = End(None)
        """What the reader says last."""
        self._loop = LoopDetector() if query.generate.end_loops else None
        self.repeats = ""
        """Why the reply ends here, as sentences: it repeats itself. Empty while it does not, or may."""

    def kept(self, detail: str) -> str:
        """Why the reply failed, and that its tokens so far are kept, if there are any."""
        return f"{detail} What came is kept." if self._steps else detail

    def pass_on(self, pieces: Iterable[Piece]) -> None:
        """Emit the pieces as events, up to a token that makes the reply a loop. Raises ServerError."""
        for piece in pieces:
            if isinstance(piece, Block):
                self._block(self._until_loop(piece))
                if self.repeats:
                    break
            elif isinstance(piece, PromptProgress):
                self._progress = piece
                total = max(piece.total, piece.done)
                self._emit(Prefill(self.number, piece.done, total, piece.reused, piece.ms))
            elif isinstance(piece, Revision):
                self._revise(piece.blocks)
            else:
                self.end = piece

    def _until_loop(self, block: Block) -> Block:
        """The block, up to the token that makes the reply a loop if such replies are to end."""
        if self._loop is None:
            return block
        for count, token in enumerate(block.tokens, start=1):
            if self._loop.push(identity(token)):
                self.repeats = self._loop.why_ended
                accepted = None if block.accepted is None else min(block.accepted, count)
                return replace(block, tokens=block.tokens[:count], accepted=accepted)
        return block

    def _block(self, block: Block) -> None:
        now = time.perf_counter()
        if not self._steps:
            self._first_ms = (now - self._started) * 1000
            ms = 0.0  # the first token comes with the prompt
        else:
            ms = (now - self._before) * 1000
        self._before = now
        self._add(block, ms if block.ms is None else block.ms)
        self._emit(self._steps[-1])

    def _add(self, block: Block, ms: float) -> None:
        """Append the block as a step that took ``ms``."""
        drafted, timed = block.drafted or 0, block.ms is not None and ms > 0
        plain = [block.drafted == 0, *(step.outcome == "plain" for step in self._steps[-1:])]
        self._emitted += len(block.tokens)
        self._steps.append(
            Step(
                reply=self.number,
                index=len(self._steps),
                tokens=block.tokens,
                drafted=drafted,
                judged=_judged(block, greedy=self._tuning.temp <= 0),
                outcome=_outcome(block),
                ms=Phases(0.0, 0.0, 0.0, 0.0, ms, ms),
                tuning=self._tuning,
                depth=drafted,
                drafter=self._drafter if drafted or block.drafted is None else "",
                context_used=self._context_used(self._progress.total),
                # A step after another batch size, as that of the prompt or of drafts, pays for the change.
                baseline=timed and len(self._steps) > 1 and all(plain),
            )
        )

    def _revise(self, blocks: Sequence[Block]) -> None:
        """Replace the steps by what is now known about them. Their total time is kept, shared out by tokens
        if the steps are divided differently now."""
        times = [step.ms.total for step in self._steps]
        if len(times) != len(blocks):
            count = sum(len(block.tokens) for block in blocks) or 1
            times = [sum(times) * len(block.tokens) / count for block in blocks]
        self._steps, self._emitted = [], 0
        for block, ms in zip(blocks, times):
            self._add(block, ms)
        self._emit(Revised(self.number, tuple(self._steps)))

    def _context_used(self, prompt: int) -> int:
        """Tokens in the context after a prompt of so many; 0 if the server does not tell that number."""
        return prompt + self._emitted if prompt else 0

    def ended(self, reason: FinishReason, detail: str) -> Ended:
        """The end of the reply, with what the server says about it. Of a cut reply's only the text that was
        held back counts: its counters may include tokens that never came."""
        end = self.end
        if end.reason is None:
            end = End(None, tail=end.tail, thinking_tail=end.thinking_tail)
        prompt = end.prompt_tokens or self._progress.total
        total_ms = sum(step.ms.total for step in self._steps)
        return Ended(
            reply=self.number,
            finish_reason=reason,
            detail=detail,
            prompt_tokens=prompt,
            reused_tokens=end.reused_tokens or self._progress.reused,
            prefill_ms=self._progress.ms if end.prefill_ms is None else end.prefill_ms,
            decode_ms=total_ms if end.decode_ms is None else end.decode_ms,
            first_token_ms=self._first_ms,
            context_used=self._context_used(prompt),
            seed=end.seed or max(self._tuning.seed, 0),
            counters=end.counters,
            tail=end.tail,
            thinking_tail=end.thinking_tail,
        )


def _judged(block: Block, *, greedy: bool) -> tuple[Judged, ...]:
    """The verdicts that a step's counters imply: its accepted drafts, and the rejected one after them. That
    there was one is known if the target's own token follows, or ended the reply."""
    if block.drafted is None or block.accepted is None:
        return ()
    rows = []
    decided = block.accepted + (block.ended or len(block.tokens) > block.accepted)
    for position in range(1, min(decided, block.drafted) + 1):
        accepted = position <= block.accepted
        own = (
            block.tokens[position - 1] if position <= len(block.tokens) else Token(UNKNOWN_ID, "", "unknown")
        )
        rows.append(
            Judged(
                position=position,
                draft=own.id if accepted else UNKNOWN_ID,
                draft_text=own.text if accepted else "",
                target=own.id,
                target_text=own.text,
                accepted=accepted,
                by="" if not accepted else "match" if greedy else "server",
                ratio=None,
                gap=None,
            )
        )
    return tuple(rows)


def _outcome(block: Block) -> Outcome:
    if block.drafted is None or block.accepted is None:
        return "unknown"
    if not block.drafted:
        return "plain"
    if block.accepted == block.drafted:
        return "full"
    return "partial" if block.accepted else "miss"


def _in_force(tuning: Tuning) -> Tuning:
    """The tuning of a server's steps: it chooses the depth itself, and has no margin, gate or mode."""
    return replace(tuning, depth="auto", margin=1.0, gate=0.0, strict=False, probe=False, full_logits=False)


def _changed(tuning: Tuning) -> set[str]:
    """Fields that differ from a new Tuning's: somebody set them."""
    plain = Tuning()
    return {name for name in Tuning.__slots__ if getattr(tuning, name) != getattr(plain, name)}


def _off(about: About, dialect: Dialect) -> str:
    """Why speculation is off, or may be."""
    if about.speculates is False:
        return f"the server runs without a drafter: {dialect.fixed['depth']}"
    return f"whether it runs is not reported: {dialect.why}"
