"""From a Load to a ready Session: check the files, load the target, make its drafter, measure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ds4chat.engine import measure
from ds4chat.engine.drafters.assistant import Assistant
from ds4chat.engine.drafters.base import Drafter
from ds4chat.engine.drafters.chained import ChainedNextN
from ds4chat.engine.drafters.eagle3 import Eagle3
from ds4chat.engine.drafters.lookup import Either, Lookup
from ds4chat.engine.drafters.model import DraftModel
from ds4chat.engine.drafters.nextn import NextN
from ds4chat.engine.events import (
    MAX_DEPTH,
    DrafterInfo,
    Event,
    Load,
    Loaded,
    Loading,
    ModelInfo,
    Notice,
)
from ds4chat.engine.llama import CacheConfig, Context, LlamaError, Model, device
from ds4chat.engine.prompting import Prompter
from ds4chat.engine.session import Session
from ds4chat.engine.strict import STRICT_CACHE, prepare_strict, strict_batches_are_exact
from ds4chat.models.classify import quantisation
from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import Header
from ds4chat.models.pairing import Pair, check_pair, check_target, rollback_class

log = logging.getLogger(__name__)

DEFAULT_CTX = 8192
BATCH = 512

Emit = Callable[[Event], None]


class LoadError(Exception):
    """Nothing was loaded; the text is a sentence for the user."""


def open_session(load: Load, emit: Emit, *, forgiving: bool) -> tuple[Session, Loaded]:
    """A ready session for ``load`` and what is to be said of it. Raises LoadError.

    forgiving: a support file that does not fit leaves speculation off, with its reason, instead of raising.
    """
    try:
        header = check_target(Path(load.model))
    except ModelFileError as error:
        raise LoadError(str(error)) from None
    off_reason = ""
    pair: Pair | None = None
    if load.split_mode in ("row", "tensor") and (load.support or load.lookup):
        off_reason = (
            f"split mode {load.split_mode} spreads each step over devices, and drafts cannot be verified "
            "there; use --split-mode layer for speculation"
        )
    elif load.support:
        try:
            pair = check_pair(header, load.support)
            off_reason = pair.off_reason
        except ModelFileError as error:
            if not forgiving:
                raise LoadError(str(error)) from None
            emit(Notice("error", str(error)))
            off_reason = str(error)
    elif not load.lookup:
        off_reason = "no support model was given (--mtp FILE, or --lookup)"
    for note in pair.notes if pair else ():
        emit(Notice("warning", note))
    if pair and pair.off_reason:
        pair = None
    try:
        return _load(load, header, pair, off_reason, emit)
    except LlamaError as error:
        raise LoadError(str(error)) from None


def _load(
    load: Load, header: Header, pair: Pair | None, off_reason: str, emit: Emit
) -> tuple[Session, Loaded]:
    if load.strict:
        prepare_strict()
    embedded = pair is not None and pair.kind == "nextn-embedded"
    rollback = rollback_class(header)
    common: dict[str, Any] = {
        "gpu_layers": load.gpu_layers,
        "split_mode": load.split_mode,
        "extra_buffers": not load.strict,
    }
    model = Model(load.model, mtp=embedded, progress=_progress(emit, "target"), **common)
    prompter = Prompter(model)
    if prompter.note:
        emit(Notice("warning", prompter.note))
    n_ctx = load.ctx or min(model.n_ctx_train or DEFAULT_CTX, DEFAULT_CTX)
    if model.n_ctx_train and n_ctx > model.n_ctx_train:
        emit(
            Notice(
                "warning",
                f"A context of {n_ctx} tokens is longer than the {model.n_ctx_train} that this model was "
                "trained for; its text may lose the thread beyond that.",
            )
        )
    cache = CacheConfig(load.cache_type_k, load.cache_type_v, load.flash_attn)
    if load.strict:
        cache = STRICT_CACHE
    speculates = pair is not None or (load.lookup and not off_reason)
    threads = load.threads or measure.cores()
    target = Context(
        model,
        n_ctx=n_ctx,
        n_batch=BATCH,
        n_outputs=MAX_DEPTH + 1,
        threads=threads,
        # The state of a recurrent target is kept once more for every token that may be dropped.
        rollback=MAX_DEPTH if speculates and rollback == "bounded" else 0,
        cache=cache,
    )
    emit(Loading("measuring", 0.0))
    token = max(model_first_token(model), 0)
    if not load.threads:
        threads = measure.choose_threads(target, token)
    plain_ms = measure.decode_ms(target, token)
    drafter: Drafter | None = None
    if pair:
        try:
            drafter = _make_drafter(load, pair, target, model, threads, emit, common, cache)
        except LlamaError as error:
            off_reason = str(error)
            emit(Notice("error", f"Speculation is off: {error}"))
    if load.lookup and load.split_mode not in ("row", "tensor"):
        if rollback == "none":
            off_reason = "this target's state cannot be rolled back, so drafts cannot be tried on it"
        else:
            lookup = Lookup(max_depth=MAX_DEPTH)
            drafter = Either(lookup, drafter) if drafter else lookup
            off_reason = ""
    if drafter:
        off_reason = ""
    exact, strict_note = False, ""
    if load.strict:
        emit(Loading("strict self-test", 0.0))
        exact, strict_note = strict_batches_are_exact(target, token)
    session = Session(target, drafter, prompter, n_ctx=n_ctx, rollback=rollback, batches_are_exact=exact)
    info = ModelInfo(
        path=load.model,
        name=model.meta("general.name") or Path(load.model).stem,
        architecture=model.meta("general.architecture"),
        quantisation=quantisation(header),
        parameters=model.n_params,
        size_bytes=model.size_bytes,
        n_ctx_train=model.n_ctx_train,
        n_layer=model.n_layer,
        n_embd=model.n_embd,
        n_vocab=model.n_vocab,
        has_template=bool(model.chat_template),
    )
    loaded = Loaded(
        target=info,
        drafter=DrafterInfo(drafter.kind, drafter.path, drafter.max_depth, drafter.note) if drafter else None,
        off_reason=off_reason,
        n_ctx=session.n_ctx,
        threads=threads,
        device=device(),
        plain_ms=plain_ms,
        strict_note=strict_note,
    )
    return session, loaded


def _make_drafter(
    load: Load,
    pair: Pair,
    target: Context,
    target_model: Model,
    threads: int,
    emit: Emit,
    common: dict[str, Any],
    cache: CacheConfig,
) -> Drafter:
    """The drafter of a checked pair. Raises LlamaError."""
    embedded = pair.kind == "nextn-embedded"
    options: dict[str, Any] = {"max_depth": MAX_DEPTH, "threads": threads, "cache": cache}
    support = (
        target_model
        if embedded
        else Model(
            str(pair.path),
            mtp=pair.kind in ("nextn-support", "gemma4-assistant"),
            progress=_progress(emit, "support"),
            **common,
        )
    )
    if pair.kind in ("nextn-embedded", "nextn-support"):
        nextn = ChainedNextN if support.n_layer_nextn > 1 else NextN
        return nextn(target, support, embedded=embedded, **options)
    if pair.kind == "gemma4-assistant":
        return Assistant(target, support, **options)
    if pair.kind == "eagle3":
        return Eagle3(target, support, **options)
    if pair.kind == "draft-model":
        return DraftModel(target, support, **options)
    support.close()
    raise LlamaError(f"Support files of the kind {pair.kind} cannot be run.")


def _progress(emit: Emit, stage: str) -> Callable[[float], bool]:
    """A loader's callback that reports each new hundredth."""
    last = -1

    def report(fraction: float) -> bool:
        nonlocal last
        if int(fraction * 100) != last:
            last = int(fraction * 100)
            emit(Loading(stage, fraction))
        return True

    return report


def model_first_token(model: Model) -> int:
    """A token that any prompt may begin with: the first of a plain letter's."""
    tokens = model.tokenize("a", add_special=False, parse_special=False)
    return tokens[0] if tokens else 0
