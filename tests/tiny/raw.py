"""The speculative cycle in plain llama.cpp calls: the independent proof that the constructed files behave.

It shares no line with ds4chat. It runs in a child process, because llama.cpp aborts on many mistakes:
``run({...})`` starts one and returns its answer; ``run_all`` does several jobs in one. Keys of a job:

kind        "plain", "nextn", "chained" (one NextN head a draft), "assistant", "eagle3", "draft",
            or "oracle" with reference (the target's own reply) and wrong_every
target      path; support: path, or "" for the NextN block inside the target
prompt      token ids, at least two (or text: tokenized by llama.cpp, answered under "prompt")
n_tokens, depth, n_ctx (512)
logits      True: answer the rows of one prompt decode instead, in one batch and token by token
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

_MTP_CONTEXT = 1
_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class RawError(Exception):
    """The child died or llama.cpp refused; the text is what it said."""


def run(job: dict[str, Any]) -> dict[str, Any]:
    """The answer of one job, run in a process of its own. Raises RawError."""
    return run_all([job])[0]


def run_all(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers of several jobs, run one after the other in one process. Raises RawError."""
    environment = os.environ | {"GGML_NO_BACKTRACE": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    child = subprocess.run(
        [sys.executable, "-m", "tiny.raw", json.dumps(jobs)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if child.returncode != 0:
        raise RawError(f"exit {child.returncode}: {child.stderr[-2000:]}")
    answers: list[dict[str, Any]] = json.loads(child.stdout)
    return answers


def quantize(source: Path, path: Path, kind: str) -> None:
    """Store every matrix of a GGUF in one ggml type ("Q4_K", ...), by llama.cpp. Raises RawError."""
    run({"quantize": kind, "source": str(source), "path": str(path)})


def _pointer(array: np.ndarray, kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))


class _Llama:
    """A model with one context, and batches of tokens, hidden rows or both."""

    def __init__(self, path: str, job: dict[str, Any], *, mtp: bool = False, **context: Any) -> None:
        import llama_cpp as L

        self.lib = L
        params = L.llama_model_default_params()
        params.n_gpu_layers = 0
        params.load_mtp = mtp
        self.model = L.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise RawError(f"cannot load {path}")
        self._open(job, context)

    @classmethod
    def beside(cls, other: _Llama, job: dict[str, Any], **context: Any) -> _Llama:
        """A second context of a loaded model."""
        new = cls.__new__(cls)
        new.lib, new.model = other.lib, other.model
        new._open(job, context)
        return new

    def _open(self, job: dict[str, Any], context: dict[str, Any]) -> None:
        L = self.lib
        params = L.llama_context_default_params()
        params.n_ctx = job.get("n_ctx", 512)
        params.n_batch = params.n_ubatch = 64
        params.n_threads = params.n_threads_batch = 1
        for name, value in context.items():
            setattr(params, name, value)
        self.ctx = L.llama_init_from_model(self.model, params)
        if not self.ctx:
            raise RawError("cannot make a context")
        self.memory = L.llama_get_memory(self.ctx)
        self.vocab = L.llama_model_get_vocab(self.model)
        self.n_vocab = L.llama_vocab_n_tokens(self.vocab)
        self.width = L.llama_model_n_embd_out(self.model)

    def decode(
        self,
        tokens: list[int] | None,
        pos: int,
        rows: np.ndarray | None = None,
        *,
        outputs: bool = True,
        encode: bool = False,
    ) -> None:
        L = self.lib
        n = len(tokens if tokens is not None else rows if rows is not None else [])
        ids = np.array(tokens if tokens is not None else [], np.int32)
        embd = np.ascontiguousarray(rows, np.float32) if rows is not None else None
        positions = np.arange(pos, pos + n, dtype=np.int32)
        flags = np.full(n, int(outputs), np.int8)
        counts = np.ones(n, np.int32)
        zero = np.zeros(1, np.int32)
        sequences = np.full(n, zero.ctypes.data, np.uint64)
        batch = L.llama_batch(
            n,
            _pointer(ids, L.llama_token) if tokens is not None else None,
            _pointer(embd, ctypes.c_float) if embd is not None else None,
            _pointer(positions, L.llama_pos),
            _pointer(counts, ctypes.c_int32),
            _pointer(sequences, ctypes.POINTER(L.llama_seq_id)),
            _pointer(flags, ctypes.c_int8),
        )
        code = L.llama_encode(self.ctx, batch) if encode else L.llama_decode(self.ctx, batch)
        if code != 0:
            raise RawError(f"decode of {n} rows at {pos}: code {code}")

    def logits(self, n: int) -> np.ndarray:
        return self._floats(self.lib.llama_get_logits(self.ctx), n, self.n_vocab)

    def hidden(self, n: int, width: int | None = None) -> np.ndarray:
        from llama_cpp import llama_cpp_ext as ext

        return self._floats(ext.llama_get_embeddings_nextn(self.ctx), n, width or self.width)

    def _floats(self, pointer: Any, rows: int, width: int) -> np.ndarray:
        return np.ctypeslib.as_array(pointer, shape=(rows, width)).copy()

    def cut(self, keep: int) -> None:
        if not self.lib.llama_memory_seq_rm(self.memory, 0, keep, -1):
            raise RawError(f"cannot roll back to {keep}")

    @property
    def cannot_roll_back(self) -> bool:
        """True for a recurrent state of which llama.cpp keeps no snapshots."""
        L = self.lib
        recurrent = L.llama_model_is_hybrid(self.model) or L.llama_model_is_recurrent(self.model)
        return bool(recurrent) and L.llama_n_rs_seq(self.ctx) == 0

    def checkpoint(self) -> Any:
        """The recurrent state as it stands."""
        size = self.lib.llama_state_seq_get_size_ext(self.ctx, 0, _PARTIAL)
        buffer = (ctypes.c_uint8 * size)()
        self.lib.llama_state_seq_get_data_ext(self.ctx, buffer, size, 0, _PARTIAL)
        return buffer

    def restore(self, buffer: Any, keep: int) -> None:
        """Back to a checkpoint that was taken at ``keep`` tokens."""
        if not self.lib.llama_state_seq_set_data_ext(self.ctx, buffer, len(buffer), 0, _PARTIAL):
            raise RawError("cannot restore the recurrent state")
        self.cut(keep)

    def tokenize(self, text: str) -> list[int]:
        raw = text.encode()
        buffer = (self.lib.llama_token * (len(raw) + 8))()
        n = self.lib.llama_tokenize(self.vocab, raw, len(raw), buffer, len(buffer), True, True)
        return list(buffer[:n])


class _Plain:
    """No drafts."""

    n_rs_seq = 0

    def __init__(self, target: _Llama, job: dict[str, Any]) -> None:
        self.target = target

    def saw(self, tokens: list[int], pos: int, keep: int) -> None:
        """The target decoded tokens at pos; the first ``keep`` of them stay."""

    def draft(self, last: int, n_past: int, depth: int) -> list[int]:
        return []


class _Oracle(_Plain):
    """Drafts a known reply (``reference``), but for every Nth token of it (``wrong_every``)."""

    def __init__(self, target: _Llama, job: dict[str, Any]) -> None:
        super().__init__(target, job)
        self.reference, self.first = job["reference"], len(job["prompt"])
        self.wrong_every = job["wrong_every"]

    def draft(self, last: int, n_past: int, depth: int) -> list[int]:
        start = n_past + 1 - self.first
        return [
            token if i % self.wrong_every else (token + 1) % self.target.n_vocab
            for i, token in enumerate(self.reference[start : start + depth], start + 1)
        ]


class _Chained(_Plain):
    """Token by token from ``first`` and hidden row on."""

    drafter: _Llama

    def _chain(
        self,
        last: int,
        pos: int,
        row: np.ndarray | None,
        depth: int,
        width: int,
        same_position: bool = False,
    ) -> list[int]:
        drafts: list[int] = []
        token = last
        for i in range(depth):
            at = pos if same_position else pos + i
            self.drafter.decode([token], at, None if row is None else row[None])
            token = int(self.drafter.logits(1)[0].argmax())
            drafts.append(token)
            if self.target.lib.llama_vocab_is_control(self.target.vocab, token):
                break
            if row is not None:
                row = self.drafter.hidden(1, width)[0]
        return drafts


class _NextN(_Chained):
    def __init__(self, target: _Llama, job: dict[str, Any]) -> None:
        from llama_cpp import llama_cpp_ext as ext

        super().__init__(target, job)
        context = {"ctx_type": _MTP_CONTEXT, "ctx_other": target.ctx}
        if job["support"]:
            self.drafter = _Llama(job["support"], job, mtp=True, **context)
        else:
            self.drafter = _Llama.beside(target, job, **context)
        ext.llama_set_embeddings_nextn(target.ctx, True, False)
        ext.llama_set_embeddings_nextn(self.drafter.ctx, True, True)
        self.pending = np.zeros(target.width, np.float32)

    def saw(self, tokens: list[int], pos: int, keep: int) -> None:
        rows = self.target.hidden(len(tokens))
        self.drafter.cut(pos)
        self.drafter.decode(tokens[:keep], pos, np.vstack([self.pending, rows])[:keep], outputs=False)
        self.pending = rows[keep - 1]

    def draft(self, last: int, n_past: int, depth: int) -> list[int]:
        drafts = self._chain(last, n_past, self.pending, depth, self.target.width)
        self.drafter.cut(n_past)
        return drafts


class _ChainedHeads(_NextN):
    """Head i, with a KV layer of its own, makes draft i + 1 from all rows before it."""

    def __init__(self, target: _Llama, job: dict[str, Any]) -> None:
        super().__init__(target, job)
        self.heads = target.lib.llama_model_n_layer_nextn(self.drafter.model)

    def _head(self, i: int) -> None:
        from llama_cpp import llama_cpp_ext as ext

        ext.llama_set_nextn_layer_offset(self.drafter.ctx, i)

    def saw(self, tokens: list[int], pos: int, keep: int) -> None:
        rows = self.target.hidden(len(tokens))
        for i in range(self.heads):
            self._head(i)
            self.drafter.cut(pos)
            self.drafter.decode(tokens[:keep], pos, np.vstack([self.pending, rows])[:keep], outputs=False)
        self.pending = rows[keep - 1]

    def draft(self, last: int, n_past: int, depth: int) -> list[int]:
        tokens, rows = [last], [self.pending]
        for i in range(min(depth, self.heads)):
            self._head(i)
            self.drafter.cut(n_past)
            self.drafter.decode(tokens, n_past, np.vstack(rows))
            tokens.append(int(self.drafter.logits(len(tokens))[-1].argmax()))
            rows.append(self.drafter.hidden(len(rows))[-1])
            if self.target.lib.llama_vocab_is_control(self.target.vocab, tokens[-1]):
                break
        self.drafter.cut(n_past)
        return tokens[1:]


class _Assistant(_NextN):
    """Reads the target's cache and writes none: every draft is made at the same position."""

    def saw(self, tokens: list[int], pos: int, keep: int) -> None:
        self.pending = self.target.hidden(len(tokens))[keep - 1]

    def draft(self, last: int, n_past: int, depth: int) -> list[int]:
        return self._chain(last, n_past, self.pending, depth, self.target.width, same_position=True)


class _Eagle3(_Chained):
    def __init__(self, target: _Llama, job: dict[str, Any]) -> None:
        from llama_cpp import llama_cpp_ext as ext

        super().__init__(target, job)
        lib = target.lib.llama_cpp._lib
        layers_n = lib["_Z30llama_model_target_layer_ids_nPK11llama_model"]
        layers = lib["_Z28llama_model_target_layer_idsPK11llama_model"]
        set_layer = lib["_Z30llama_set_embeddings_layer_inpP13llama_contextjb"]
        self.get_layer = lib["_Z30llama_get_embeddings_layer_inpP13llama_contextj"]
        layers_n.argtypes, layers_n.restype = [ctypes.c_void_p], ctypes.c_uint32
        layers.argtypes, layers.restype = [ctypes.c_void_p], ctypes.POINTER(ctypes.c_int32)
        set_layer.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool]
        self.get_layer.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        self.get_layer.restype = ctypes.POINTER(ctypes.c_float)
        self.drafter = _Llama(job["support"], job, ctx_other=target.ctx)
        self.layers = list(layers(self.drafter.model)[: layers_n(self.drafter.model)])
        for layer in self.layers:
            set_layer(target.ctx, layer, True)
        ext.llama_set_embeddings_nextn(self.drafter.ctx, True, True)
        self.pending: np.ndarray | None = None
        self.n_embd = target.lib.llama_model_n_embd(target.model)

    def saw(self, tokens: list[int], pos: int, keep: int) -> None:
        n = len(tokens)
        inputs = [
            self.target._floats(self.get_layer(self.target.ctx, i), n, self.n_embd) for i in self.layers
        ]
        start = pos if self.pending is None else pos - 1
        self.drafter.cut(start)
        self.drafter.decode(None, start, np.concatenate(inputs, axis=1), encode=True)
        rows = self.drafter.hidden(n, self.target.lib.llama_model_n_embd(self.drafter.model))[:keep]
        pairs = tokens[1:keep] if self.pending is None else tokens[:keep]
        features = rows if self.pending is None else np.vstack([self.pending, rows])
        if pairs:
            self.drafter.decode(pairs, start, features[: len(pairs)], outputs=False)
        self.pending = rows[-1]

    def draft(self, last: int, n_past: int, depth: int) -> list[int]:
        width = self.target.lib.llama_model_n_embd(self.drafter.model)
        drafts = self._chain(last, n_past - 1, self.pending, depth, width)
        self.drafter.cut(n_past - 1)
        return drafts


class _DraftModel(_Chained):
    def __init__(self, target: _Llama, job: dict[str, Any]) -> None:
        super().__init__(target, job)
        self.drafter = _Llama(job["support"], job)

    def saw(self, tokens: list[int], pos: int, keep: int) -> None:
        self.drafter.cut(pos)
        self.drafter.decode(tokens[:keep], pos, outputs=False)

    def draft(self, last: int, n_past: int, depth: int) -> list[int]:
        drafts = self._chain(last, n_past, None, depth, 0)
        self.drafter.cut(n_past)
        return drafts


_DRAFTERS = {
    "plain": _Plain,
    "oracle": _Oracle,
    "nextn": _NextN,
    "chained": _ChainedHeads,
    "assistant": _Assistant,
    "eagle3": _Eagle3,
    "draft": _DraftModel,
}


def _cycle(job: dict[str, Any]) -> dict[str, Any]:
    depth, n_ctx = job.get("depth", 0), job.get("n_ctx", 512)
    embedded = job["kind"] in ("nextn", "chained") and not job["support"]
    target = _Llama(job["target"], job, mtp=embedded, n_rs_seq=depth)
    drafter = _DRAFTERS[job["kind"]](target, job)
    prompt = job["prompt"]
    if isinstance(prompt, str):
        prompt = target.tokenize(prompt)
    for start in range(0, len(prompt) - 1, 64):
        chunk = prompt[:-1][start : start + 64]
        target.decode(chunk, start)
        drafter.saw(chunk, start, len(chunk))
    last, n_past = prompt[-1], len(prompt) - 1
    tokens: list[int] = []
    counts = {"steps": 0, "drafted": 0, "judged": 0, "accepted": 0}
    by_position = [[0, 0] for _ in range(depth)]
    ended = False
    while len(tokens) < job["n_tokens"] and n_past < n_ctx and not ended:
        room = min(depth, job["n_tokens"] - len(tokens) - 1, n_ctx - n_past - 1)
        drafts = drafter.draft(last, n_past, room) if room > 0 else []
        block = [last, *drafts]
        checkpoint = target.checkpoint() if len(block) > 1 and target.cannot_roll_back else None
        target.decode(block, n_past)
        own = [int(row.argmax()) for row in target.logits(len(block))]
        accepted = 0
        for draft, choice in zip(drafts, own):
            by_position[accepted][0] += 1
            counts["judged"] += 1
            if draft != choice:
                break
            by_position[accepted][1] += 1
            accepted += 1
            if target.lib.llama_vocab_is_eog(target.vocab, choice):
                break
        for choice in own[: accepted + 1]:
            if target.lib.llama_vocab_is_eog(target.vocab, choice):
                ended = True
                break
            tokens.append(choice)
        counts["steps"] += 1
        counts["drafted"] += len(drafts)
        counts["accepted"] += accepted
        if accepted < len(drafts):
            if checkpoint is None:
                target.cut(n_past + accepted + 1)
            else:
                target.restore(checkpoint, n_past)
                block = block[: accepted + 1]
                target.decode(block, n_past)
        drafter.saw(block, n_past, accepted + 1)
        n_past += accepted + 1
        last = own[accepted]
    return {"prompt": prompt, "tokens": tokens, "by_position": by_position, **counts}


def _logits(job: dict[str, Any]) -> dict[str, Any]:
    prompt, answer = job["prompt"], {}
    for name in ("batch", "single"):
        target = _Llama(job["target"], job, mtp=False)
        if name == "batch":
            target.decode(prompt, 0)
            rows = target.logits(len(prompt))
        else:
            rows = np.vstack([_one(target, token, i) for i, token in enumerate(prompt)])
        answer[name] = rows.tolist()
    return answer


def _one(target: _Llama, token: int, pos: int) -> np.ndarray:
    target.decode([token], pos)
    return target.logits(1)


def _quantize(job: dict[str, Any]) -> dict[str, Any]:
    import llama_cpp as L

    kind = job["quantize"]
    names = (f"LLAMA_FTYPE_MOSTLY_{kind}", f"LLAMA_FTYPE_MOSTLY_{kind}_S")
    types = [getattr(L, name) for name in names if hasattr(L, name)]
    if not types:
        raise RawError(f"llama.cpp has no type {kind}")
    params = L.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.pure = types[0], 1, True
    code = L.llama_model_quantize(job["source"].encode(), job["path"].encode(), ctypes.byref(params))
    if code != 0:
        raise RawError(f"cannot quantise to {kind}: code {code}")
    return {}


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    if "quantize" in job:
        return _quantize(job)
    return _logits(job) if job.get("logits") else _cycle(job)


def _main() -> None:
    import llama_cpp as L

    @L.llama_log_callback  # type: ignore[untyped-decorator]
    def errors_only(level: int, text: bytes, _data: Any) -> None:
        if level == 4:
            sys.stderr.write(text.decode(errors="replace"))

    L.llama_log_set(errors_only, ctypes.c_void_p(0))
    L.llama_backend_init()
    jobs = json.loads(sys.argv[1])
    print(json.dumps([_answer(job) for job in jobs]))


if __name__ == "__main__":
    _main()
