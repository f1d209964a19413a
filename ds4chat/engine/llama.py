"""llama.cpp as ds4chat uses it: Model, Context, Sampler. The only module that touches llama_cpp or ctypes.

llama.cpp aborts the process on many mistakes, so every precondition that is known to abort is checked here
and raises LlamaError or ValueError instead. The files themselves are checked before, in ds4chat.models.

llama_cpp must be imported before numpy: a llama.cpp that is linked statically with libstdc++ crashes in
std::regex while it loads a vocabulary if numpy has loaded the shared libstdc++ first. So the modules with
which an engine process may start import this one first.

Rows that a Context returns are views of llama.cpp's buffers: the next decode overwrites them. Copy what must
live longer.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, Literal, NamedTuple

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # ggml_abort would run gdb first: slow, and noisy on stderr

from ds4chat.engine.build import rebuild, unusable

try:
    import llama_cpp
    import llama_cpp.llama_cpp as C
    import llama_cpp.llama_cpp_ext as ext
except (ImportError, OSError, RuntimeError, AttributeError) as error:
    raise unusable(error) from error

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from ds4chat.engine import stack
from ds4chat.engine.events import CONTEXT_LENGTH
from ds4chat.engine.judge import choose, largest
from ds4chat.errors import UserFacingError
from ds4chat.text import one_line, shortened

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

log = logging.getLogger("ds4chat.llama")

CACHE_TYPES = {
    name: int(GGMLQuantizationType[name.upper()])
    for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
}
_FLASH = {"auto": -1, "off": 0, "on": 1}
_SPLIT = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_MTP_CONTEXT = 1  # LLAMA_CONTEXT_TYPE_MTP
_RECURRENT_ONLY = 1  # a flag of llama_state_seq_get_size_ext
_CPU, _GPU, _INTEGRATED_GPU = 0, 1, 2  # GGML_BACKEND_DEVICE_TYPE_CPU, _GPU, _IGPU
PENALTY_WINDOW = 64
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data
STACK_PER_CHARACTER = 1024
"""Bytes of stack that splitting a text may take for each of its characters: most pre-tokenizers are
std::regex patterns, and libstdc++ matches a run of characters by recursion. 326 were measured, with the
optimisation that wheels are built with; the rest is for other compilers."""


class LlamaError(UserFacingError):
    """llama.cpp refused something."""


class DecodeError(LlamaError):
    """A decode or encode returned ``code``: 1 no room in the cache, 2 aborted, below 0 invalid or fatal."""

    def __init__(self, code: int, rows: int) -> None:
        self.code = code
        self.unchanged = code in (1, -1)
        """The cache is as it was before."""
        super().__init__(f"llama.cpp could not decode a batch of {rows} tokens (code {code}).")


class CacheTypeError(LlamaError):
    """The width of the model's heads is not a multiple of the cache type's block."""


class TooLongError(LlamaError):
    """A prompt of ``tokens``, such as "12" or "12 or more", does not fit into a context of ``room``."""

    def __init__(self, tokens: str, room: int) -> None:
        super().__init__(
            f"The prompt has {tokens} tokens and the context holds {room:,}. Shorten it, or raise "
            f"{CONTEXT_LENGTH}."
        )


class BadRowError(LlamaError):
    """A row of logits decides nothing: it holds NaN or infinity, or the same number everywhere."""

    def __init__(self) -> None:
        super().__init__(
            "The model's output is not numbers that decide anything. Most often the file is damaged, such as "
            "by a download that broke off: download or convert it again. Or its numbers overflow here: try "
            "another cache type (-ctk f16 -ctv f16), other flash attention (-fa off), or no GPU (-ngl 0)."
        )


# ------------------------------------------------------------------------------------ the library


def _symbol(name: str, restype: Any, *argtypes: Any) -> Any:
    """A function object of our own for this symbol, which leaves the shared bindings as they are."""
    try:
        function = C._lib[name]
    except AttributeError as error:
        raise unusable(error) from error
    function.restype, function.argtypes = restype, argtypes
    return function


_pointer, _i32, _u32, _size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_size_t
# Buffers as plain addresses: a typed pointer costs four times as much.
_get_logits = _symbol("llama_get_logits", _pointer, _pointer)
# C++ functions of llama-ext.h, which llama_cpp_ext does not bind.
_get_nextn = _symbol("_Z26llama_get_embeddings_nextnP13llama_context", _pointer, _pointer)
_set_layer_input = _symbol(
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb", None, _pointer, _u32, ctypes.c_bool
)
_get_layer_input = _symbol("_Z30llama_get_embeddings_layer_inpP13llama_contextj", _pointer, _pointer, _u32)
_target_layers = _symbol("_Z28llama_model_target_layer_idsPK11llama_model", ctypes.POINTER(_i32), _pointer)
_target_layers_n = _symbol("_Z30llama_model_target_layer_ids_nPK11llama_model", _u32, _pointer)

# ggml's own, which the loader finds through libllama.
_device_count = _symbol("ggml_backend_dev_count", _size)
_device_get = _symbol("ggml_backend_dev_get", _pointer, _size)
_device_type = _symbol("ggml_backend_dev_type", ctypes.c_int, _pointer)
_device_memory = _symbol(
    "ggml_backend_dev_memory", None, _pointer, ctypes.POINTER(_size), ctypes.POINTER(_size)
)
_device_description = _symbol("ggml_backend_dev_description", ctypes.c_char_p, _pointer)
_device_registry = _symbol("ggml_backend_dev_backend_reg", _pointer, _pointer)
_registry_name = _symbol("ggml_backend_reg_name", ctypes.c_char_p, _pointer)
_registry_count = _symbol("ggml_backend_reg_count", _size)
_registry_get = _symbol("ggml_backend_reg_get", _pointer, _size)
_registry_devices = _symbol("ggml_backend_reg_dev_count", _size, _pointer)
_registry_device = _symbol("ggml_backend_reg_dev_get", _pointer, _pointer, _size)
_registry_by_name = _symbol("ggml_backend_reg_by_name", _pointer, ctypes.c_char_p)
_registry_function = _symbol("ggml_backend_reg_get_proc_address", _pointer, _pointer, ctypes.c_char_p)
_register = _symbol("ggml_backend_register", None, _pointer)
_load_backend = _symbol("ggml_backend_load", _pointer, ctypes.c_char_p)
_version = _symbol("llama_version", ctypes.c_char_p)
_commit = _symbol("ggml_commit", ctypes.c_char_p)

_LOG_LINE = 1000
"""Characters of a line that are kept: llama.cpp quotes the file's metadata whole."""
_LEVELS = {2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}


class _LogSink:
    """llama.cpp's log lines, joined from their pieces, and the first error since it was reset, which tells
    most: those that follow come of it."""

    def __init__(self) -> None:
        self.part = ""
        self.level = 1
        self.first_error = ""
        self.callback = C.llama_log_callback(self.write)

    def write(self, level: int, text: bytes, _data: Any) -> None:
        if level != 5:  # 5 continues the line before it
            self.level = level
        self.part += text.decode("utf-8", "replace")
        *lines, self.part = self.part.split("\n")
        for line in lines:
            line = line[:_LOG_LINE]
            log.log(_LEVELS.get(self.level, logging.DEBUG), line)
            if self.level == 4 and line.strip() and not self.first_error:
                self.first_error = line.strip()


_sink = _LogSink()


@cache
def start() -> None:
    """Start the backends and send llama.cpp's log to Python's. Calling it again does nothing."""
    C.llama_log_set(_sink.callback, _pointer(0))
    C.llama_backend_init()


def _reason() -> str:
    """llama.cpp's first error line since the sink was reset."""
    return shortened(_sink.first_error or "it gave no reason", 300).rstrip(".")


_ODD_HEADS = "does not divide"
"""In llama.cpp's reason where the cache type's block does not fit the width of a layer's heads."""


def _context_advice(reason: str) -> str:
    """What to do where llama.cpp makes no context, by the reason that it logged."""
    if "quantized V cache" in reason:
        return "Switch flash attention on (-fa on), or choose a V cache that is not quantised (-ctv f16)."
    if _ODD_HEADS in reason:
        return "Choose a cache type that suits the model (-ctk f16 -ctv f16)."
    return f"Lower {CONTEXT_LENGTH}, or free memory."


def builtin_templates() -> list[str]:
    """Names of the chat templates that llama.cpp itself knows."""
    n = C.llama_chat_builtin_templates(None, 0)
    names = (ctypes.c_char_p * n)()
    C.llama_chat_builtin_templates(names, n)
    return [name.decode() for name in names if name]


def apply_builtin_template(name: str, messages: Sequence[tuple[str, str]], *, open_turn: bool) -> str:
    """The prompt's text of (role, content) pairs in one of llama.cpp's own layouts, by its name.

    Raises LlamaError where llama.cpp does not know it, and for a text with a NUL, which would end it there.
    """
    raw = [(role.encode(), content.encode("utf-8", "surrogatepass")) for role, content in messages]
    if any(b"\0" in content for _, content in raw):
        raise LlamaError("llama.cpp's own chat templates take no text with a NUL character.")
    turns = (C.llama_chat_message * len(raw))(*(C.llama_chat_message(*pair) for pair in raw))
    size = 2 * sum(len(role) + len(content) for role, content in raw) + 1024
    while True:
        buffer = ctypes.create_string_buffer(size)
        n = C.llama_chat_apply_template(name.encode(), turns, len(raw), open_turn, buffer, size)
        if n < 0:
            raise LlamaError(f"llama.cpp knows no chat template named {name}.")
        if n <= size:
            return buffer.raw[:n].decode("utf-8", "surrogatepass")
        size = n


@dataclass(frozen=True, slots=True)
class _Device:
    """A device of ggml."""

    handle: int
    kind: int
    """A ggml_backend_dev_type."""
    name: str
    """Its description, which of an RPC server's device is the server's address."""


def _devices() -> list[_Device]:
    start()
    handles = [_device_get(i) for i in range(_device_count())]
    return [_Device(h, _device_type(h), _text(_device_description(h))) for h in handles]


def devices(rpc_servers: Sequence[str] = ()) -> list[tuple[int, str]]:
    """Type (ggml_backend_dev_type) and description of ggml's devices, among them these RPC servers' alone."""
    unused = _rpc_servers - set(rpc_servers)
    return [(device.kind, device.name) for device in _devices() if device.name not in unused]


RPC_LIBRARY = "DS4CHAT_RPC_LIBRARY"
"""Path of a libggml-rpc that was built separately, for a llama.cpp that was built without RPC."""


def _rpc_function(name: bytes, restype: Any, *argtypes: Any) -> Any:
    """A function of the RPC backend. Raises LlamaError where this llama.cpp has none."""
    start()
    registry = _registry_by_name(b"RPC")
    if not registry and (library := os.environ.get(RPC_LIBRARY)):
        registry = _load_backend(os.fsencode(library))
    address = _registry_function(registry, name) if registry else None
    if not address:
        raise LlamaError(
            f"This llama-cpp-python was built without RPC. This command builds it in: {rebuild('GGML_RPC')}"
        )
    return ctypes.CFUNCTYPE(restype, *argtypes)(address)


_rpc_servers: set[str] = set()
"""Those that were added in this process; none can be removed."""


def add_rpc_servers(servers: Sequence[str]) -> None:
    """Add these RPC servers' devices to ggml's. They must answer, or llama.cpp aborts the process. Raises
    LlamaError."""
    if not servers:
        return
    add = _rpc_function(b"ggml_backend_rpc_add_server", _pointer, ctypes.c_char_p)
    for server in servers:
        if server not in _rpc_servers:
            registry = add(server.encode())
            if not registry:
                raise LlamaError(
                    f"The RPC server {server} has no device. Look at what it wrote when it started."
                )
            _register(registry)
            _rpc_servers.add(server)


def serve_rpc(endpoint: str, threads: int) -> None:
    """Lend this machine's devices at ``host:port``; returns only where that fails. Raises LlamaError."""
    serve = _rpc_function(
        b"ggml_backend_rpc_start_server",
        None,
        *(ctypes.c_char_p, ctypes.c_char_p, _size, _size, ctypes.POINTER(_pointer)),
    )
    found = _devices()
    gpus = [device.handle for device in found if device.kind in (_GPU, _INTEGRATED_GPU)]
    lent = gpus or [found[0].handle]
    serve(endpoint.encode(), None, threads, len(lent), (_pointer * len(lent))(*lent))


def _devices_with(servers: Sequence[str]) -> Any:
    """The devices that hold a model: those of these RPC servers, and the GPUs here. None for llama.cpp's own
    choice, where no RPC server was added in this process."""
    if not _rpc_servers:
        return None
    chosen = []
    for device in _devices():
        remote = (_registry_name(_device_registry(device.handle)) or b"").startswith(b"RPC")
        if device.name in servers if remote else device.kind == _GPU:
            chosen.append(device.handle)
    return (_pointer * (len(chosen) + 1))(*chosen, None)


def memory() -> int:
    """Bytes of memory, used or free, of the devices that the layers run on; 0 where that is not known."""
    for kind in (_GPU, _INTEGRATED_GPU, _CPU) if C.llama_supports_gpu_offload() else (_CPU,):
        total = 0
        for device in _devices():
            if device.kind == kind:
                free, size = _size(), _size()
                _device_memory(device.handle, ctypes.byref(free), ctypes.byref(size))
                total += size.value
        if total:
            return total
    return 0


def version() -> str:
    """llama.cpp's version and commit, and those of the llama-cpp-python that contains it:
    "0.5.0 (0c1e570) of llama-cpp-python 0.3.36"."""
    return f"{_text(_version())} ({_text(_commit())}) of llama-cpp-python {llama_cpp.__version__}"


def build() -> str:
    """What this llama.cpp is and which instructions it uses."""
    return f"{version()} {C.llama_print_system_info().decode('utf-8', 'replace')}"


def backends() -> list[tuple[str, tuple[str, ...]]]:
    """Name and devices, by their descriptions, of each of ggml's backends in this build."""
    start()
    return [
        (
            _text(_registry_name(registry)),
            tuple(
                _text(_device_description(_registry_device(registry, i)))
                for i in range(_registry_devices(registry))
            ),
        )
        for registry in (_registry_get(i) for i in range(_registry_count()))
    ]


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def device(rpc_servers: Sequence[str] = ()) -> str:
    """What the layers run on: "CPU" when this build cannot offload, else the descriptions of the GPUs and the
    addresses of these RPC servers."""
    found = devices(rpc_servers)
    gpus = any(type_ in (_GPU, _INTEGRATED_GPU) for type_, _ in found)
    return gpu_name(found) if gpus and C.llama_supports_gpu_offload() else "CPU"


def gpu_name(found: Sequence[tuple[int, str]]) -> str:
    """The descriptions of the GPUs among these devices, joined; "GPU" where there is none.

    An integrated GPU counts where there is no other, as in llama.cpp's choice of devices.
    """
    for kind in (_GPU, _INTEGRATED_GPU):
        if names := [description or "GPU" for type_, description in found if type_ == kind]:
            return " + ".join(names)
    return "GPU"


# ------------------------------------------------------------------------------------ model


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token with a text of its own, which llama.cpp looks for before it tokenizes the rest of a text."""

    id: int
    text: str
    control: bool
    """Recognised only where special tokens are asked for; the others (user-defined ones) in every text."""
    strips_left: bool = False
    """It swallows the blanks before it."""
    strips_right: bool = False


class Model:
    """A loaded GGUF and its vocabulary.

    ``mtp`` must be True for the model of an MTP context (a support file, or a target with an embedded NextN
    block): llama.cpp aborts when such a context is made of a model loaded without it.
    ``rpc_servers``: those of add_rpc_servers that hold a part of it.
    ``progress`` is called with 0..1 and may return False to stop the load. Raises LlamaError.
    """

    def __init__(
        self,
        path: str,
        *,
        mtp: bool = False,
        gpu_layers: int = -1,
        split_mode: str = "layer",
        extra_buffers: bool = True,
        rpc_servers: Sequence[str] = (),
        progress: Callable[[float], bool] | None = None,
    ) -> None:
        start()
        params = C.llama_model_default_params()
        params.load_mtp = mtp
        params.n_gpu_layers = gpu_layers if gpu_layers >= 0 else 999
        # Without a GPU there is nothing to split over, and llama.cpp refuses the tensor mode.
        params.split_mode = _SPLIT[split_mode if C.llama_supports_gpu_offload() else "layer"]
        params.use_extra_bufts = extra_buffers
        if (chosen := _devices_with(rpc_servers)) is not None:
            params.devices = ctypes.cast(chosen, _pointer)
        callback = C.llama_progress_callback(lambda f, _: progress(f) if progress else True)
        params.progress_callback = callback
        _sink.first_error = ""
        self.handle: Any = C.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise LlamaError(
                f"llama.cpp could not load {path}: {_reason()}. The log says more; most often the file needs "
                "a newer llama.cpp, or more memory than is free."
            )
        self.path = path
        self.mtp = mtp
        self.vocab = C.llama_model_get_vocab(self.handle)
        self.n_vocab: int = C.llama_vocab_n_tokens(self.vocab)
        self.n_embd: int = C.llama_model_n_embd(self.handle)
        self.n_embd_out: int = C.llama_model_n_embd_out(self.handle)
        self.n_layer: int = C.llama_model_n_layer(self.handle)
        self.n_layer_nextn: int = C.llama_model_n_layer_nextn(self.handle)
        self.n_ctx_train: int = C.llama_model_n_ctx_train(self.handle)
        self.n_params: int = C.llama_model_n_params(self.handle)
        self.size_bytes: int = C.llama_model_size(self.handle)
        self.recurrent: bool = C.llama_model_is_recurrent(self.handle) or C.llama_model_is_hybrid(self.handle)
        self.windowed: bool = C.llama_model_n_swa(self.handle) > 0
        """Some layers attend a sliding window."""
        self.is_eog: Callable[[int], bool] = cache(partial(C.llama_vocab_is_eog, self.vocab))
        """True for a token that ends a reply."""
        self.is_control: Callable[[int], bool] = cache(partial(C.llama_vocab_is_control, self.vocab))
        """True for a control token (end of turn, role marks, and the like)."""
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self.room = 0
        """Tokens of the context. A text that exceeds it however it is tokenized is refused before that, which
        would take time and memory with its length. 0: none is refused."""

    def close(self) -> None:
        """Free the model; its contexts must be closed before."""
        if self.handle:
            C.llama_model_free(self.handle)
            self.handle = None

    def meta(self, key: str) -> str:
        """A metadata value as text; empty when the file has no such key."""
        buffer = ctypes.create_string_buffer(1 << 16)
        n = C.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if n >= 0 else ""

    @property
    def chat_template(self) -> str:
        """The jinja2 chat template in the file; empty when there is none."""
        raw = C.llama_model_chat_template(self.handle, None)
        return raw.decode("utf-8", "replace") if raw else ""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text; special tokens are recognised in it when ``parse_special``.

        Raises TooLongError, and LlamaError where llama.cpp cannot take it apart.
        """
        raw = text.encode("utf-8", "surrogatepass")
        if self.room and len(raw) >= self.room and (fewest := self._fewest_tokens(raw)) >= self.room:
            raise TooLongError(f"{fewest:,} or more", self.room)
        if self._spelled is not None:
            self._check_spelling(text, self._spelled, parse_special=parse_special)
        try:
            return stack.call(
                lambda: self._tokenize(raw, add_special, parse_special), STACK_PER_CHARACTER * len(text)
            )
        except stack.NoStackError:
            raise LlamaError(
                f"A text of {len(text):,} characters may need more memory than this machine has to be turned "
                "into tokens. Send it in parts, or shorten it."
            ) from None

    def _tokenize(self, raw: bytes, add_special: bool, parse_special: bool) -> list[int]:
        capacity = len(raw) + 16
        buffer = (C.llama_token * capacity)()
        n = C.llama_tokenize(self.vocab, raw, len(raw), buffer, capacity, add_special, parse_special)
        if n < 0:
            raise LlamaError("llama.cpp could not turn the text into tokens.")
        return list(buffer[:n])

    @cached_property
    def _spelled(self) -> Spelled | None:
        """What a text may be spelled in. None for a vocabulary in which any text can be."""
        if C.llama_vocab_type(self.vocab) != C.LLAMA_VOCAB_TYPE_SPM:
            return None
        attributes = (C.llama_vocab_get_attr(self.vocab, token) for token in range(self.n_vocab))
        if sum(bool(attribute & C.LLAMA_TOKEN_ATTR_BYTE) for attribute in attributes) >= 256:
            return None
        texts = frozenset(C.llama_vocab_get_text(self.vocab, token) for token in range(self.n_vocab))
        characters = frozenset(text.decode("utf-8", "replace") for text in texts)
        return Spelled(characters, frozenset(_bytes_with_tokens(C.LLAMA_VOCAB_TYPE_SPM, texts)))

    def _check_spelling(self, text: str, spelled: Spelled, *, parse_special: bool) -> None:
        """Raise LlamaError for a character that has neither a token nor tokens for its bytes: llama.cpp would
        end the process."""
        for special in self.special_tokens:
            if parse_special or not special.control:
                text = text.replace(special.text, "")
        # It writes blanks so, and may put one before a text.
        used = set(f" {text}".replace(" ", "▁"))
        for char in sorted(used - spelled.characters):
            if not spelled.octets.issuperset(char.encode("utf-8", "surrogatepass")):
                raise LlamaError(
                    f'The vocabulary of {self.path} cannot spell "{one_line(char)}": it has no token for '
                    "this character and none for its bytes. Leave it out, or convert the model again."
                )

    def _fewest_tokens(self, raw: bytes) -> int:
        """A lower bound of the tokens that ``raw`` becomes.

        A byte that has a token of its own is never lost: it belongs to exactly one token, merged or by
        itself, unless it is a blank beside a special token that strips blanks. And a token holds at most as
        many bytes as its stored text has, which writes each byte as one character or more. So n tokens hold
        at most n times the longest text's length of such bytes.
        """
        lost, longest = self._bytes_lost_and_longest
        return -(-len(raw.translate(None, lost)) // longest)

    @cached_property
    def _bytes_lost_and_longest(self) -> tuple[bytes, int]:
        """The bytes that may be lost in tokenizing, and the length of the longest token's text."""
        texts = [C.llama_vocab_get_text(self.vocab, i) for i in range(self.n_vocab)]
        known = _bytes_with_tokens(C.llama_vocab_type(self.vocab), frozenset(texts))
        return bytes(set(range(256)) - known | set(b" \t\n\v\f\r")), max(map(len, texts))

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token; control tokens are empty unless ``special``."""
        known = self._pieces.get((token, special))
        if known is None:
            size = 64
            while True:
                buffer = ctypes.create_string_buffer(size)
                n = C.llama_token_to_piece(self.vocab, token, buffer, size, 0, special)
                if n >= 0:
                    break
                size = -n
            known = self._pieces[token, special] = buffer.raw[:n]
        return known

    @cached_property
    def special_tokens(self) -> tuple[SpecialToken, ...]:
        """The tokens that llama.cpp looks for in a text before it tokenizes the rest, in its order: the
        longest first."""
        hidden = C.LLAMA_TOKEN_ATTR_UNKNOWN | C.LLAMA_TOKEN_ATTR_CONTROL
        found: list[tuple[bytes, SpecialToken]] = []
        for token in range(self.n_vocab):
            attributes = C.llama_vocab_get_attr(self.vocab, token)
            if attributes & (hidden | C.LLAMA_TOKEN_ATTR_USER_DEFINED):
                raw = C.llama_vocab_get_text(self.vocab, token)
                special = SpecialToken(
                    token,
                    raw.decode("utf-8", "replace"),
                    control=bool(attributes & hidden),
                    strips_left=bool(attributes & C.LLAMA_TOKEN_ATTR_LSTRIP),
                    strips_right=bool(attributes & C.LLAMA_TOKEN_ATTR_RSTRIP),
                )
                found.append((raw, special))
        found.sort(key=lambda pair: -len(pair[0]))
        return tuple(special for raw, special in found if raw)

    @cached_property
    def any_token(self) -> int:
        """A token that any text may hold: the first of a plain letter's."""
        tokens = self.tokenize("a", add_special=False, parse_special=False)
        return tokens[0] if tokens else 0

    @property
    def first_token(self) -> int | None:
        """The token that this vocabulary wants before every text; None where it wants none."""
        return C.llama_vocab_bos(self.vocab) if C.llama_vocab_get_add_bos(self.vocab) else None

    @property
    def bos(self) -> str:
        """Text of the token that begins a sequence; empty when there is none."""
        return self._special(C.llama_vocab_bos(self.vocab))

    @property
    def eos(self) -> str:
        """Text of the token that ends a sequence; empty when there is none."""
        return self._special(C.llama_vocab_eos(self.vocab))

    def _special(self, token: int) -> str:
        return self.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    @property
    def eagle3_layers(self) -> list[int]:
        """Layers of the target whose inputs an EAGLE-3 model reads."""
        return list(_target_layers(self.handle)[: _target_layers_n(self.handle)])


class Spelled(NamedTuple):
    """What a vocabulary has tokens for: texts, single characters among them, and bytes."""

    characters: frozenset[str]
    octets: frozenset[int]


def _bytes_with_tokens(kind: int, texts: frozenset[bytes]) -> set[int]:
    """The bytes that a vocabulary of this kind has a token for: as ``<0xNN>``, or as GPT-2's character for
    it. None for kinds that may drop whole words, or make one token of them."""
    if kind not in (C.LLAMA_VOCAB_TYPE_SPM, C.LLAMA_VOCAB_TYPE_BPE):
        return set()
    found = {byte for byte in range(256) if b"<0x%02X>" % byte in texts}
    if found or kind == C.LLAMA_VOCAB_TYPE_SPM:
        return found
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    characters = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return {byte for byte, char in characters.items() if char.encode() in texts}


# ------------------------------------------------------------------------------------ context


class _Batch:
    """A llama_batch over numpy arrays, which each decode overwrites.

    ``width``: floats of the embedding in a row, 0 for none; ``tokens``: rows have token ids.
    """

    def __init__(self, capacity: int, width: int, *, tokens: bool = True) -> None:
        self.capacity = capacity
        self.token = np.zeros(capacity, np.int32)
        self.pos = np.zeros(capacity, np.int32)
        self.logits = np.zeros(capacity, np.int8)
        self.embd = np.zeros((capacity, width), np.float32) if width else None
        self.seq = np.zeros(capacity, np.int32)
        self._n_seq = np.ones(capacity, np.int32)
        self._seq = self.seq.ctypes.data + self.seq.itemsize * np.arange(capacity, dtype=np.uint64)
        self.struct = C.llama_batch(
            0,
            self.token.ctypes.data_as(ctypes.POINTER(C.llama_token)) if tokens else None,
            None if self.embd is None else self.embd.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            self.pos.ctypes.data_as(ctypes.POINTER(C.llama_pos)),
            self._n_seq.ctypes.data_as(ctypes.POINTER(_i32)),
            self._seq.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(C.llama_seq_id))),
            self.logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )


Outputs = Literal["all", "last", "none"]


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Types of the K and V cache (keys of CACHE_TYPES) and flash attention: auto, on or off."""

    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: str = "auto"


DEFAULT_CACHE = CacheConfig()

MOST_CELLS = 2**31 - 1
"""llama.cpp counts positions in 32 bits with a sign; a larger number would be cut to its low bits."""


class Context:
    """A KV cache with its compute buffers, for one sequence or several.

    ``n_outputs``: most rows that one decode may ask logits of. ``rollback``: how many tokens of the last
    batch a recurrent state can drop; it multiplies that state's memory. ``embd_width``: floats a row when
    decodes carry an embedding beside each token (MTP, EAGLE-3), else 0. ``n_ctx``: cells of all sequences
    together. Raises LlamaError, which is a CacheTypeError where ``cache`` cannot hold the model's heads, and
    ValueError where ``n_batch`` has no room for the rollback.
    """

    native_s = 0.0
    """Seconds that all contexts spent in llama_decode and llama_encode: the rest of a step is Python's."""

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int,
        n_batch: int = 512,
        n_outputs: int,
        threads: int,
        rollback: int = 0,
        mtp: bool = False,
        other: Context | None = None,
        embd_width: int = 0,
        encoder_width: int = 0,
        cache: CacheConfig = DEFAULT_CACHE,
        sequences: int = 1,
    ) -> None:
        if mtp and not (model.mtp and model.n_layer_nextn):
            raise LlamaError(f"{model.path} was not loaded with its NextN block, so it cannot draft.")
        if rollback and n_batch < rollback + 2:
            raise ValueError("the batch must be larger than the rollback by two rows")
        if n_ctx > MOST_CELLS:
            raise LlamaError(
                f"A context of {n_ctx:,} tokens in all is longer than the {MOST_CELLS:,} that llama.cpp "
                f"counts. Lower {CONTEXT_LENGTH}, or answer fewer prompts at once (--parallel)."
            )
        params = C.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = n_batch
        params.n_seq_max = sequences
        params.n_rs_seq = rollback
        params.n_outputs_max = min(n_outputs, n_batch)
        params.n_threads = params.n_threads_batch = threads
        params.ctx_type = _MTP_CONTEXT if mtp else 0
        params.flash_attn_type = _FLASH[cache.flash_attn]
        params.type_k, params.type_v = CACHE_TYPES[cache.type_k], CACHE_TYPES[cache.type_v]
        params.swa_full = True  # all cells, so that a cache with sliding windows can be rolled back
        params.no_perf = True
        if other is not None:
            params.ctx_other = other.handle
        _sink.first_error = ""
        self.handle: Any = C.llama_init_from_model(model.handle, params)
        if not self.handle:
            reason = _reason()
            kind = CacheTypeError if _ODD_HEADS in reason else LlamaError
            raise kind(
                f"llama.cpp could not make a context of {n_ctx:,} tokens for {model.path}: {reason}. "
                f"{_context_advice(reason)}"
            )
        self.model = model
        self.cache = cache
        self.memory = C.llama_get_memory(self.handle)
        self.n_ctx: int = C.llama_n_ctx(self.handle)
        self.n_batch = n_batch
        self.rollback: int = C.llama_n_rs_seq(self.handle)
        self._outputs_max = min(n_outputs, n_batch)
        self._batch = _Batch(n_batch, embd_width)
        # An encoder puts out a row for each input, so its batches are as long as there are output rows.
        self._encoder = _Batch(self._outputs_max, encoder_width, tokens=False) if encoder_width else None
        self._views: dict[tuple[int, int], Floats] = {}
        self._kept_layers: list[int] = []
        """The enabled layers whose inputs are kept, in llama.cpp's order."""
        self._layer_order: slice | list[int] = slice(None)
        """The order in which layer_inputs() gives them."""
        self._kept_at: int | None = None
        """Address of the layer inputs, of which ``_kept`` is a view."""
        self._kept: Floats = np.empty((0, 0, 0), np.float32)
        self._logits: int | None = None
        """Address of the last decode's logits."""

    def close(self) -> None:
        """Free the context."""
        if self.handle:
            C.llama_free(self.handle)
            self.handle = None

    # -- running

    def decode(
        self,
        tokens: Sequence[int] | Ints,
        pos: int,
        *,
        outputs: Outputs = "all",
        embd: Floats | None = None,
    ) -> None:
        """Decode tokens at positions pos, pos+1, ...

        tokens: n ids; embd: (n, embd_width) floats, required exactly when the context was made for them.
        Raises DecodeError with the cache as llama.cpp left it, ValueError for what would abort the process.
        """
        n = len(tokens)
        batch = self._batch
        if not 0 < n <= batch.capacity:
            raise ValueError(f"a batch takes 1 to {batch.capacity} tokens, not {n}")
        if (batch.embd is None) != (embd is None):
            raise ValueError(
                "this context decodes tokens with embeddings" if embd is None else "unexpected embd"
            )
        if n > self._outputs_max and outputs == "all":
            raise ValueError(f"this context has room for {self._outputs_max} output rows, not {n}")
        batch.token[:n] = tokens
        batch.pos[:n] = range(pos, pos + n)
        batch.logits[:n] = outputs == "all"
        if outputs == "last":
            batch.logits[n - 1] = 1
        if embd is not None and batch.embd is not None:
            batch.embd[:n] = embd
        self._run(C.llama_decode, batch, n)

    def decode_many(self, tokens: Ints, pos: Ints, seq: Ints, outputs: NDArray[np.bool_]) -> None:
        """Decode tokens of several sequences in one batch; all four arrays are (n,).

        Output rows come in the order of the batch. Raises DecodeError with the cache as llama.cpp left it,
        ValueError for more tokens or output rows than the context has room for.
        """
        n = len(tokens)
        batch = self._batch
        if not 0 < n <= batch.capacity:
            raise ValueError(f"a batch takes 1 to {batch.capacity} tokens, not {n}")
        if int(outputs.sum()) > self._outputs_max:
            raise ValueError(f"this context has room for {self._outputs_max} output rows")
        batch.token[:n], batch.pos[:n], batch.logits[:n] = tokens, pos, outputs
        batch.seq[:n] = seq
        try:
            self._run(C.llama_decode, batch, n)
        finally:
            batch.seq[:n] = 0

    def _run(self, native: Any, batch: _Batch, n: int) -> None:
        batch.struct.n_tokens = n
        started = time.perf_counter()
        code = native(self.handle, batch.struct)
        # A GPU still works when llama_decode returns: the wait belongs to this decode, not to whoever reads
        # its rows next, or every cost that is measured here would be wrong. This waits, too.
        self._logits = _get_logits(self.handle)
        Context.native_s += time.perf_counter() - started
        if code != 0:
            raise DecodeError(code, n)

    def encode(self, rows: Floats) -> Floats:
        """Encoder output, (n, n_embd), of (n, encoder_width) rows: a view, until the next decode.

        Raises DecodeError, and ValueError for more rows than ``n_outputs``, or where the context was made
        without an encoder.
        """
        batch, n = self._encoder, len(rows)
        if batch is None or batch.embd is None:
            raise ValueError("this context was made without an encoder")
        if not 0 < n <= batch.capacity:
            raise ValueError(f"this context encodes 1 to {batch.capacity} rows, not {n}")
        batch.embd[:n] = rows
        # llama.cpp checks that positions follow the cache's, though an encoder puts nothing there.
        batch.pos[:n] = np.arange(self.used, self.used + n)
        batch.logits[:n] = 1
        self._run(C.llama_encode, batch, n)
        return self.nextn(n, self.model.n_embd)

    # -- what the last decode left

    def _view(self, address: int | None, rows: int, width: int) -> Floats:
        if not address:
            raise LlamaError("llama.cpp kept no output rows of the last decode.")
        view = self._views.get((address, rows * width))
        if view is None:
            if len(self._views) > 64:
                self._views.clear()
            flat = np.ctypeslib.as_array((ctypes.c_float * (rows * width)).from_address(address))
            view = self._views[address, rows * width] = flat.reshape(rows, width)
        return view

    def logits(self, rows: int) -> Floats:
        """View of the last decode's logits, (rows, n_vocab), in the order of the batch's output rows."""
        return self._view(self._logits, rows, self.model.n_vocab)

    def nextn(self, rows: int, width: int) -> Floats:
        """View of the last decode's NextN hidden rows, (rows, width)."""
        return self._view(_get_nextn(self.handle), rows, width)

    def layer_inputs(self, rows: int) -> Floats:
        """The enabled layer inputs of the last decode's ``rows`` tokens, (layers, rows, n_embd): a view where
        the layers are in ascending order."""
        # llama.cpp keeps them one after the other, each with room for a batch. To ask for every address would
        # wait for the GPU as often.
        address = _get_layer_input(self.handle, self._kept_layers[0])
        if address != self._kept_at:
            room, width = C.llama_n_batch(self.handle), self.model.n_embd
            self._kept = self._view(address, len(self._kept_layers) * room, width).reshape(-1, room, width)
            self._kept_at = address
        return self._kept[self._layer_order, :rows]

    def enable_nextn(self, on: bool, *, masked: bool) -> None:
        """Keep NextN hidden rows: of output rows only when ``masked``, else of every row."""
        ext.llama_set_embeddings_nextn(self.handle, on, masked)

    def enable_layer_inputs(self, layers: Sequence[int], on: bool = True) -> None:
        """Keep the inputs of these layers of every row; that of layer n_layer is what the last one makes. The
        architecture must publish them. Raises ValueError for a layer that the model does not have."""
        for layer in layers:
            if not 0 <= layer <= self.model.n_layer:
                raise ValueError(f"layer {layer} is not one of the target's {self.model.n_layer}")
            _set_layer_input(self.handle, layer, on)
        self._kept_layers, self._kept_at = sorted(set(layers)) if on else [], None
        order = [self._kept_layers.index(layer) for layer in layers] if on else []
        self._layer_order = slice(None) if order == list(range(len(order))) else order

    def set_nextn_head(self, index: int) -> None:
        """Choose the NextN block that the next decode runs, for models with several heads."""
        ext.llama_set_nextn_layer_offset(self.handle, index)

    def set_threads(self, threads: int) -> None:
        """Threads of the next decodes; one number for single tokens and batches, or the two would run on
        pools of different size."""
        C.llama_set_n_threads(self.handle, threads, threads)

    @property
    def shares_memory(self) -> bool:
        """True when the drafter attends the target's KV cache instead of one of its own."""
        return bool(ext.llama_get_ctx_other(self.handle))

    # -- memory

    @property
    def used(self) -> int:
        """Tokens in the cache."""
        return int(C.llama_memory_seq_pos_max(self.memory, 0)) + 1

    def remove_from(self, pos: int, seq: int = 0) -> bool:
        """Drop the cells from ``pos`` on; False when the cache cannot, and then nothing changed."""
        return bool(C.llama_memory_seq_rm(self.memory, seq, pos, -1))

    def clear(self) -> None:
        """Empty the cache."""
        C.llama_memory_clear(self.memory, True)

    def state_size(self) -> int:
        """Bytes that save_state() takes now."""
        return int(C.llama_state_seq_get_size(self.handle, 0))

    def recurrent_size(self) -> int:
        """Bytes of one copy of the sequence's recurrent state; 0 where it has none, or is empty."""
        return int(C.llama_state_seq_get_size_ext(self.handle, 0, _RECURRENT_ONLY))

    def save_state(self) -> memoryview:
        """The sequence's state as llama.cpp writes it. Raises LlamaError."""
        content = bytearray(self.state_size())
        buffer = (ctypes.c_uint8 * len(content)).from_buffer(content)
        n = C.llama_state_seq_get_data(self.handle, buffer, len(content), 0)
        if not n:
            raise LlamaError("llama.cpp could not write the state of its cache.")
        return memoryview(content)[:n]

    def load_state(self, state: bytes | bytearray | memoryview) -> bool:
        """Put a state back that a context like this one wrote, into an empty cache; False when llama.cpp
        refuses it. It trusts the content: check before that it is whole."""
        content = state if not memoryview(state).readonly else bytearray(state)
        buffer = (ctypes.c_uint8 * len(content)).from_buffer(content)
        return len(content) == int(C.llama_state_seq_set_data(self.handle, buffer, len(content), 0)) > 0


# ------------------------------------------------------------------------------------ sampler


class Sampler:
    """Draws tokens by llama.cpp's sampler chain: top-k, top-p, min-p, temperature, distribution.

    The repeat penalty comes before them, over the last PENALTY_WINDOW tokens, as in llama.cpp's penalties
    sampler; at temperature 0 the best token after it is chosen, without a draw. ``history``: the tokens
    before the first draw.

    The chain gets only the tokens that it may draw, and draws exactly what it would draw from the whole
    vocabulary, which takes many times as long.
    """

    def __init__(
        self,
        model: Model,
        *,
        temp: float,
        top_k: int,
        top_p: float,
        min_p: float,
        penalty: float,
        seed: int,
        history: Sequence[int] = (),
    ) -> None:
        self._top_k, self._top_p, self._min_p = top_k, top_p, min_p
        self._penalty = np.float32(penalty)
        self._recent = deque(history, maxlen=PENALTY_WINDOW)
        candidates = np.zeros(model.n_vocab, _CANDIDATE)
        self._ids, self._logits = candidates["id"], candidates["logit"]
        self._array = C.llama_token_data_array(
            ctypes.cast(candidates.ctypes.data, C.llama_token_data_p), 0, -1, False
        )
        self._array_p = ctypes.byref(self._array)
        self._chain: Any = None
        if temp > 0:
            self._chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
            if top_k > 0:
                self._add(C.llama_sampler_init_top_k(top_k))
            if top_p < 1:
                self._add(C.llama_sampler_init_top_p(top_p, 1))
            if min_p > 0:
                self._add(C.llama_sampler_init_min_p(min_p, 1))
            self._add(C.llama_sampler_init_temp(temp))
            self._add(C.llama_sampler_init_dist(seed & 0xFFFFFFFF))

    def _add(self, sampler: Any) -> None:
        C.llama_sampler_chain_add(self._chain, sampler)

    def sample(self, logits: Floats) -> int:
        """The token chosen from a row (n_vocab,) whose best logit is finite; the penalties count it from now
        on. The row is unchanged afterwards."""
        draw = self._draw if self._chain else choose
        if self._penalty == 1:
            return draw(logits)
        recent = list(set(self._recent))
        before = logits[recent]
        logits[recent] = np.where(before <= 0, before * self._penalty, before / self._penalty)
        token = draw(logits)
        logits[recent] = before
        self._recent.append(token)
        return token

    def _draw(self, logits: Floats) -> int:
        ids = self._possible(logits)
        n, array = len(ids), self._array
        self._ids[:n], self._logits[:n] = ids, logits[ids]
        array.size, array.sorted = n, False
        C.llama_sampler_apply(self._chain, self._array_p)
        return int(self._ids[array.selected])

    def _possible(self, logits: Floats) -> NDArray[np.intp]:
        """Ids, in ascending order, of the tokens that the chain may draw, and of a few more, which it leaves
        out itself. All ids where the draw depends on every token: for top-p without top-k, which sums up all
        probabilities, and for top-k among equal logits, whose order after its sort depends on the others."""
        n = len(logits)
        if 0 < self._top_k < n:
            ids = largest(logits, self._top_k)
            if len(set(logits[ids].tolist())) == len(ids):
                return ids
        elif self._min_p > 0 and self._top_p >= 1:
            top = float(logits.max())
            least = top + math.log(self._min_p)
            return np.flatnonzero(logits >= least - 1e-5 * (1 + abs(top) + abs(least)))
        return np.arange(n)

    def emitted_instead(self, token: int) -> None:
        """Have the penalties count this token, which was emitted instead of the one just sampled."""
        if self._recent:
            self._recent[-1] = token

    def close(self) -> None:
        """Free the chain."""
        if self._chain:
            C.llama_sampler_free(self._chain)
            self._chain = None
