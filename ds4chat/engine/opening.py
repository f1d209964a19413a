"""From a Load to a ready Session: check the files, load the target, open its drafter, measure."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import ds4chat.engine.llama  # noqa: F401  first, so that llama.cpp is loaded before numpy
from ds4chat.engine import judge, measure, rpc
from ds4chat.engine.auto import costs
from ds4chat.engine.caches import Caches
from ds4chat.engine.drafters.base import Drafter
from ds4chat.engine.drafters.lookup import Either, Lookup
from ds4chat.engine.drafters.registry import OPENERS
from ds4chat.engine.events import (
    MAX_DEPTH,
    Depth,
    DrafterInfo,
    Emit,
    Load,
    Loaded,
    LoadError,
    Loading,
    ModelInfo,
    Notice,
)
from ds4chat.engine.llama import (
    BadRowError,
    CacheConfig,
    CacheTypeError,
    Context,
    LlamaError,
    Model,
    add_rpc_servers,
    build,
    device,
    memory,
    version,
)
from ds4chat.engine.machine import cores, is_this_machine
from ds4chat.engine.prompting import Prompter, named_template
from ds4chat.engine.saved_state import SavedStates, tidy
from ds4chat.engine.session import Session
from ds4chat.engine.strict import (
    ODD_HEADS_CACHE,
    STRICT_CACHE,
    prepare_strict,
    strict_batches_are_exact,
)
from ds4chat.models.architectures import abilities
from ds4chat.models.convert import convert_mtp, converted_path
from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import Header, read_header, read_range
from ds4chat.models.kinds import kind_of
from ds4chat.models.naming import display_name
from ds4chat.models.pairing import EMBEDDED, Pair, check_pair, check_target
from ds4chat.models.sampling import sampling_of
from ds4chat.models.summary import quantisation
from ds4chat.settings import paths

log = logging.getLogger(__name__)

DEFAULT_CTX = 8192
BATCH = 512
PROBE = 32
"""Tokens of a context that is only made for a measurement."""
COPIES_SHARE = 0.05
"""Most of the memory that copies of a recurrent state take unless a depth needs more."""


def open_session(
    load: Load, emit: Emit, *, forgiving: bool, resuming: bool = False
) -> tuple[Session, Loaded]:
    """A ready session for ``load`` and its Loaded event. Raises LoadError.

    forgiving: where a support file does not fit, speculation is off, with a reason, instead of an error.
    resuming: conversations go on from states on disk, where ``load`` allows that.
    """
    try:
        header = check_target(Path(load.model))
        pair, off_reason = _check_support(load, header, emit, forgiving)
        return _Opening(load, header, emit, resuming).session(pair, off_reason)
    except (ModelFileError, LlamaError, rpc.RpcError) as error:
        raise LoadError(str(error)) from None


def _check_support(load: Load, header: Header, emit: Emit, forgiving: bool) -> tuple[Pair | None, str]:
    """The pair of target and support file, or None and why it cannot be used.

    Raises ModelFileError for a support file that does not fit, unless ``forgiving``.
    """
    if load.split_mode in ("row", "tensor"):
        return None, (
            f"split mode {load.split_mode} spreads each step over devices, and drafts cannot be verified "
            "there; use --split-mode layer for speculation"
        )
    if not load.support:
        return None, (
            "no support model was given: --mtp FILE or --lookup does, in the chat /mtp FILE or /mtp lookup"
        )
    try:
        pair = check_pair(header, _converted(load, emit) if load.convert else load.support)
    except ModelFileError as error:
        if not forgiving:
            raise
        emit(Notice("error", str(error)))
        return None, str(error)
    for note in pair.notes:
        emit(Notice("warning", note))
    return (None if pair.off_reason else pair), pair.off_reason


def _converted(load: Load, emit: Emit) -> str:
    """The support file, or its conversion where it is in ds4's layout. Raises ModelFileError."""
    if load.support == EMBEDDED or not kind_of(read_header(load.support)).converts:
        return load.support
    try:
        out = converted_path(load.model, load.support, paths.made_folder("cache"))
    except paths.FolderError as error:
        raise ModelFileError(str(error)) from None
    if not out.exists():
        convert_mtp(
            load.model,
            load.support,
            out,
            lambda done, total: emit(Loading("converting the support file", done / max(total, 1))),
        )
        emit(Notice("info", f"The support file was converted from ds4's layout to {out}."))
    return str(out)


Made = TypeVar("Made")


class _Opening:
    """One load of files that were checked."""

    def __init__(self, load: Load, header: Header, emit: Emit, resuming: bool) -> None:
        self._load = load
        self._resuming = resuming
        self._header = header
        self._template = named_template(load.chat_template)
        self._emit = emit
        self._rollback = abilities(header.architecture).rollback
        self._threads = load.threads or cores()
        self._max_depth = MAX_DEPTH
        self._windowed = False
        """The target or the drafter has sliding windows."""
        self._cache = (
            STRICT_CACHE
            if load.strict
            else CacheConfig(load.cache_type_k, load.cache_type_v, load.flash_attn)
        )

    def session(self, pair: Pair | None, off_reason: str) -> tuple[Session, Loaded]:
        """Load everything and measure. Raises LlamaError."""
        load, emit = self._load, self._emit
        if load.strict:
            prepare_strict()
        if load.rpc:
            self._add_rpc_servers()
        model = self._model(load.model, "target", mtp=pair is not None and pair.support is None)
        prompter = Prompter(model, self._template, use_template=load.template)
        if prompter.note:
            emit(Notice("warning", prompter.note))
        lookup = load.lookup and load.split_mode not in ("row", "tensor")
        if lookup and self._rollback == "none":
            lookup, off_reason = False, f"{load.model} cannot drop rejected drafts from its recurrent state"
        if self._rollback == "bounded" and (pair or lookup):
            self._max_depth = self._depth_of_copies(model)
        target = self._target(model, speculates=pair is not None or lookup)
        token = model.any_token
        emit(Loading("measuring"))
        if not load.threads:
            self._threads = measure.choose_threads(target, token)
        plain_ms = measure.decode_ms(target, token)
        row = target.logits(1)[0]
        if not judge.decides(row, judge.choose(row)):
            target.close()
            model.close()
            raise BadRowError
        drafter: Drafter | None = None
        if pair:
            try:
                drafter = self._drafter(pair, target)
            except LlamaError as error:
                off_reason = str(error)
                emit(Notice("error", f"Speculation is off: {error}"))
        if lookup:
            words = Lookup(max_depth=self._max_depth)
            drafter = Either(words, drafter) if drafter else words
        if drafter and self._max_depth < MAX_DEPTH and not drafter.note:
            drafter.note = "as many as this load keeps copies of the recurrent state for"
        exact, strict_note = False, ""
        if load.strict:
            emit(Loading("strict self-test"))
            exact, strict_note = strict_batches_are_exact(target, token)
        session = Session(
            Caches(target, drafter, rollback=self._rollback, windowed=self._windowed),
            prompter,
            # llama.cpp rounds a context up, beyond what was asked for.
            n_ctx=self._n_ctx(model),
            batches_are_exact=exact,
            costs=self._costs(drafter),
            states=self._states(target, drafter, pair) if self._resuming else None,
            settling=1 if device() == "CPU" else 2,
        )
        return session, Loaded(
            target=self._info(model),
            drafter=(
                DrafterInfo(drafter.kind, drafter.path, drafter.max_depth, drafter.note) if drafter else None
            ),
            off_reason="" if drafter else off_reason,
            n_ctx=session.n_ctx,
            threads=self._threads,
            device=device(load.rpc),
            plain_ms=plain_ms,
            strict_note=strict_note,
            llama_cpp=version(),
        )

    def _add_rpc_servers(self) -> None:
        """Add the other machines' devices, after a check of each. Raises RpcError, LlamaError."""
        self._emit(Loading("asking the RPC servers"))
        rpc.check(self._load.rpc)
        add_rpc_servers(self._load.rpc)
        if not all(is_this_machine(server.rpartition(":")[0]) for server in self._load.rpc):
            self._emit(Notice("warning", rpc.UNPROTECTED))

    def _model(self, path: str, stage: str, *, mtp: bool) -> Model:
        load = self._load
        model = Model(
            path,
            mtp=mtp,
            gpu_layers=load.gpu_layers,
            split_mode=load.split_mode,
            extra_buffers=not load.strict,
            rpc_servers=load.rpc,
            progress=_progress(self._emit, stage),
        )
        self._windowed |= model.windowed
        return model

    def _depth_of_copies(self, model: Model) -> int:
        """The deepest draft of this load on a recurrent target, which keeps a copy of its state for each
        drafted token. Warns where these take much of the memory. Raises LlamaError."""
        probe = Context(model, n_ctx=PROBE, n_batch=PROBE, n_outputs=1, threads=self._threads)
        try:
            probe.decode([model.any_token], 0)
            copy = probe.recurrent_size()
        finally:
            probe.close()
        depth, notice = depth_of_copies(self._load.depth, copy, memory())
        if notice:
            self._emit(Notice("warning", notice))
        return depth

    def _target(self, model: Model, *, speculates: bool) -> Context:
        n_ctx = self._n_ctx(model)
        if model.n_ctx_train and n_ctx > model.n_ctx_train:
            self._emit(
                Notice(
                    "warning",
                    f"A context of {n_ctx:,} tokens is longer than the {model.n_ctx_train:,} that this model "
                    "was trained for; its text may lose the thread beyond that.",
                )
            )
        target = self._with_cache(
            partial(
                Context,
                model,
                n_ctx=n_ctx,
                n_batch=BATCH,
                n_outputs=MAX_DEPTH + 1,
                threads=self._threads,
                # A recurrent state is copied once more for each token that can be dropped.
                rollback=self._max_depth if speculates and self._rollback == "bounded" else 0,
            )
        )
        self._cache = target.cache
        return target

    def _with_cache(self, make: Callable[..., Made]) -> Made:
        """What ``make`` returns for this load's cache; in strict mode for one with odd heads if need be."""
        try:
            return make(cache=self._cache)
        except CacheTypeError:
            if not self._load.strict:
                raise
            return make(cache=ODD_HEADS_CACHE)

    def _n_ctx(self, model: Model) -> int:
        return self._load.ctx or min(model.n_ctx_train or DEFAULT_CTX, DEFAULT_CTX)

    def _drafter(self, pair: Pair, target: Context) -> Drafter:
        """The drafter of a checked pair. Raises LlamaError."""
        opener = OPENERS[pair.kind]
        inside = pair.support is None
        model = (
            target.model
            if pair.support is None
            else self._model(str(pair.support.path), "support", mtp=opener.mtp)
        )
        try:
            # Another cache than strict's changes how a drafter rounds, and so no token of the reply.
            return self._with_cache(
                partial(opener.open, target, model, max_depth=self._max_depth, threads=self._threads)
            )
        except LlamaError:
            if not inside:
                model.close()
            raise

    def _costs(self, drafter: Drafter | None) -> costs.Tables:
        """The costs that were measured with the same files, threads and device before; none without a cache
        folder, and then each load measures them."""
        try:
            folder, model = paths.made_folder("cache") / "costs", _file_identity(self._header)
        except (paths.FolderError, OSError, ModelFileError) as error:
            log.warning("%s", error)
            return costs.Tables()
        source = f"{drafter.kind} {drafter.path}" if drafter else ""
        return costs.Tables(folder / cost_file(model, source, self._threads, device(self._load.rpc)))

    def _states(self, target: Context, drafter: Drafter | None, pair: Pair | None) -> SavedStates | None:
        """Where conversations of this load are kept; None without a cache folder, and where keeping them is
        off, which deletes those there."""
        load = self._load
        try:
            paths.made_folder("cache")
        except paths.FolderError as error:
            log.warning("%s", error)
            return None
        tidy(paths.states_folder(), keep=load.keep_states)
        if not load.keep_states:
            return None
        try:
            identity = {
                "model": _file_identity(self._header),
                "drafter": drafter.kind if drafter else "",
                "support": _file_identity(pair.support) if pair and pair.support else None,
                "build": build(),
                "device": [device(load.rpc), load.gpu_layers, load.split_mode, *load.rpc],
                "n_ctx": target.n_ctx,
                "rollback": target.rollback,
                "cache": [self._cache.type_k, self._cache.type_v, self._cache.flash_attn],
                "strict": load.strict,
            }
        except (OSError, ModelFileError) as error:
            log.warning("conversations are not kept: %s", error)
            return None
        return SavedStates(identity)

    def _info(self, model: Model) -> ModelInfo:
        return ModelInfo(
            path=self._load.model,
            name=display_name(self._load.model, model.meta("general.name")),
            architecture=model.meta("general.architecture"),
            quantisation=quantisation(self._header),
            parameters=model.n_params,
            size_bytes=model.size_bytes,
            n_ctx_train=model.n_ctx_train,
            n_layer=model.n_layer,
            n_embd=model.n_embd,
            n_vocab=model.n_vocab,
            sampling=tuple(sampling_of(self._header).items()),
        )


def depth_of_copies(asked: Depth, copy: int, available: int) -> tuple[int, str]:
    """How many copies of a recurrent state to keep, one for each token of the deepest draft, and a sentence
    for the user where they take more than COPIES_SHARE of the memory.

    asked: the deepest draft; "auto": as many copies as fit into that share, and one at least. copy: bytes of
    one. available: bytes of memory, 0 where that is not known.
    """
    affordable = int(COPIES_SHARE * available / copy) if copy and available else MAX_DEPTH
    depth = min(MAX_DEPTH, max(1, affordable if asked == "auto" else asked))
    if depth <= affordable:
        return depth, ""
    return depth, (
        f"To roll drafts of {depth} tokens back, {depth} copies of this model's recurrent state are kept: "
        f"{depth * copy / 2**20:,.0f} MiB, {depth * copy / available:.0%} of the memory. Load it with a "
        "smaller --mtp-draft to keep fewer."
    )


def cost_file(*parts: object) -> str:
    """The name of the file that keeps the costs of a load. ``parts``: everything that they depend on."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32] + ".json"


def _progress(emit: Emit, stage: str) -> Callable[[float], bool]:
    """A callback for a load that reports each hundredth once."""
    last = -1

    def report(fraction: float) -> bool:
        nonlocal last
        if int(fraction * 100) != last:
            last = int(fraction * 100)
            emit(Loading(stage, fraction))
        return True

    return report


def _file_identity(header: Header) -> list[object]:
    """What distinguishes a model's files from others at the same path. Raises OSError, ModelFileError."""
    described: list[object] = []
    for part in header.parts:
        path = part.path.resolve()
        status = path.stat()
        digest = hashlib.blake2b(digest_size=16)
        for chunk in read_range(path, 0, part.data_offset):
            digest.update(chunk)
        described.append([str(path), status.st_size, status.st_mtime_ns, digest.hexdigest()])
    return described
