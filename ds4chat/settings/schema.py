"""The one option table: every setting's name, default, range, help, flags and environment switch.

Settings is a frozen dataclass whose fields carry an Option each; OPTIONS is read off it. The CLI help, the
comments of the TOML file, config.example.toml and the settings screen are generated from OPTIONS, so that
each fact about an option is written once.

A setting's key is the same on the command line (``--mtp-draft``), in TOML (``mtp-draft = 2``) and in the
TUI; as an attribute it has underscores (``settings.mtp_draft``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["int", "float", "bool", "str", "path", "choice", "names", "depth", "table"]
"""names: words out of ``choices``, in any order, none twice. table: a TOML table, not on the command line."""

_KINDS: dict[type, Kind] = {int: "int", float: "float", bool: "bool", str: "str", dict: "table"}
"""The kind of an option by its default's type, unless it has choices or names another."""

_METAVARS: dict[Kind, str] = {"int": "N", "depth": "N", "float": "F", "path": "FILE"}
"""What stands for a value in the help, if the option does not say."""

GROUPS = {
    "models": "Models",
    "servers": "Servers",
    "speculation": "Speculation (MTP)",
    "sampling": "Sampling",
    "context": "Context and hardware",
    "logs": "Logs",
    "interface": "Interface",
}


SERVER_KEY = "DS4CHAT_SERVER_KEY"
"""The environment variable that holds a server's key if no other place is named."""

SERVER_KEYS = ("url", "model", "key-file", "key-env", "ca-file")
"""The keys of a table in [servers]."""

PANELS = ("acceptance", "timings", "confidence", "tuning")
"""Names of the chat's panels."""


@dataclass(frozen=True, slots=True)
class Slider:
    """How the screens show and change a number that may change while a reply runs."""

    step: float
    """The change by one key press, or one cell of a drag."""
    low: float
    """The slider's range; a typed value may use the option's whole range."""
    high: float
    says: Callable[[float], str]
    """The meaning of a value, in at most 24 characters."""
    places: int = 2
    """Decimal places; 0 for whole numbers."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table. Ranges are inclusive; None is no bound."""

    key: str
    kind: Kind
    default: Any
    help: str
    group: str
    flags: tuple[str, ...] = ()
    """Further spellings on the command line; ``--<key>`` always works."""
    off_flags: tuple[str, ...] = ()
    """Further spellings that switch it off; ``--no-<key>`` always works."""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    env: str = ""
    """Environment variable that sets it."""
    env_wins: bool = False
    """The variable wins over the command line too, as DS4_MTP_MIN_MARGIN does in ds4."""
    metavar: str = ""
    optional_value: str = ""
    """For ``--key [VALUE]``: what the bare flag means."""
    names: bool = False
    """For a path: a word without a separator or a suffix is a name, not a file."""
    live: bool = False
    """It may change while a reply runs."""
    tuning: str = ""
    """Field of the engine's Tuning that it sets, from the next step of a running reply on."""
    label: str = ""
    """Short name in panels and charts, if it is not the key without ``mtp-``."""
    slider: Slider | None = None
    unit: str = ""

    @property
    def short(self) -> str:
        """Its name in panels and charts."""
        return self.label or self.key.removeprefix("mtp-")

    @property
    def attribute(self) -> str:
        """Name of the Settings field."""
        return self.key.replace("-", "_")

    @property
    def shown_default(self) -> str:
        """The default in words; empty for an empty text."""
        return ("on" if self.default else "off") if self.kind == "bool" else str(self.default)

    def names_file(self, value: str) -> bool:
        """``value`` is the path of a file, not a word with a meaning of its own."""
        if self.kind != "path" or value in ("", self.optional_value):
            return False
        return not self.names or re.search(r"[\\/]|\.[A-Za-z]\w*$", value) is not None


def option(default: Any, group: str, help: str, *, kind: Kind | None = None, **more: Any) -> Any:
    """A dataclass field that carries its Option. The key is derived from the field's name, the kind from the
    default unless it is named."""
    more.setdefault("live", "tuning" in more)
    if kind is None:
        kind = "choice" if "choices" in more else _KINDS[type(default)]
    more.setdefault("metavar", _METAVARS.get(kind, ""))
    metadata = {"option": {"kind": kind, "default": default, "help": help, "group": group, **more}}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, validated. Make changes with ``dataclasses.replace``."""

    # -- models
    model: str = option(
        "", "models", "Target GGUF: the model whose text you get.", flags=("-m",), kind="path"
    )
    mtp: str = option(
        "",
        "models",
        'Support GGUF that drafts. "embedded", or --mtp without a file, uses the NextN block inside the '
        "target; none loads no drafter.",
        flags=("--mtp-model",),
        optional_value="embedded",
        kind="path",
    )
    lookup: bool = option(
        False,
        "models",
        "Draft by looking up the last tokens in the conversation; needs no file and can run before a "
        "support model.",
    )
    demo: bool = option(
        False,
        "models",
        "Use the demo model that the extra 'demo' installs, with its own support model unless mtp names "
        "another; no download.",
    )
    mtp_convert: bool = option(
        False,
        "models",
        "Convert a support file in ds4's layout into the cache folder instead of refusing it.",
    )
    # -- servers
    server: str = option(
        "",
        "servers",
        "A server that answers instead of a local model: its address, or a name from [servers]. No model "
        "file is needed. Its key is taken from a file or the environment, never from the command line.",
        metavar="URL",
    )
    server_model: str = option(
        "",
        "servers",
        "The model to ask for if the server has several; empty: the server's choice.",
        metavar="NAME",
    )
    server_key_file: str = option(
        "",
        "servers",
        f"A file with the server's API key that nobody else can read; empty: the variable {SERVER_KEY}.",
        kind="path",
    )
    server_ca: str = option(
        "",
        "servers",
        "PEM file of certificates to trust instead of the system's, for a server with its own certificate.",
        kind="path",
    )
    # -- speculation
    mtp_draft: int | Literal["auto"] = option(
        "auto",
        "speculation",
        "Most drafts per step, 1 to 16, or auto: the depth that this machine's measured costs and "
        "the running acceptance say is fastest, 0 included. The demo, whose drafts seldom pay on a CPU, "
        "keeps 2, so that there are drafts to see. In ds4, 1 means no speculation; here it is one real "
        "draft.",
        low=1,
        high=16,
        tuning="depth",
        label="depth",
        slider=Slider(1, 0, 16, lambda n: "drafts a step at most" if n else "plain decoding", places=0),
        kind="depth",
    )
    mtp_margin: float = option(
        1.0,
        "speculation",
        "A draft is accepted when it is the target's own choice or its probability is at least this share "
        "of the likeliest token's. 1 is exact; below 1 the text is approximate. ds4's own margin is a logit "
        "gap: that is --mtp-gate here.",
        low=0.0,
        high=1.0,
        env="DS4_MTP_MIN_MARGIN",
        env_wins=True,
        tuning="margin",
        slider=Slider(
            0.05, 0, 1, lambda f: "only the target's choice" if f >= 1 else f"also ratios of ≥{f:.2f}"
        ),
    )
    mtp_gate: float = option(
        0.0,
        "speculation",
        "Stop drafting when the drafter's best logit leads its second by less than this; 0 is off.",
        low=0.0,
        high=1000.0,
        tuning="gate",
        slider=Slider(0.5, 0, 10, lambda f: "off: drafts up to depth" if f <= 0 else "stop below this d.gap"),
        unit="logits",
    )
    mtp_strict: bool = option(
        False,
        "speculation",
        "The token stream of one-token greedy decoding, proven by a self-test at load; where batches are "
        "not bit-equal, verify one token at a time. The margin is ignored.",
        env="DS4_MTP_STRICT",
        tuning="strict",
    )
    mtp_probe: bool = option(
        False,
        "speculation",
        "Draft and compare, but never use a draft: the text and its speed path are plain. Prints hits/total.",
        env="DS4_MTP_PROBE",
        tuning="probe",
    )
    mtp_full_logits: bool = option(
        False,
        "speculation",
        "Compute each judged row's full distribution: probabilities, entropy, five likeliest tokens.",
        env="DS4_MTP_FULL_LOGITS",
        tuning="full_logits",
    )
    mtp_keep_accepted: bool = option(
        True,
        "speculation",
        "Keep the accepted tokens when a reply is stopped, or meets its limit, inside a verified block; off "
        "drops that block.",
        env="DS4_MTP_KEEP_ACCEPTED",
    )
    # -- sampling
    predict: int = option(
        -1,
        "sampling",
        "Most tokens of a reply; -1: until the model stops or the context is full.",
        flags=("-n", "--n-predict"),
        low=-1,
        unit="tokens",
    )
    temp: float = option(
        0.0,
        "sampling",
        "Temperature; 0 always picks the likeliest token. If a model's file asks for sampling, the chat "
        "and the one shot use that instead of the defaults here.",
        low=0.0,
        high=10.0,
        tuning="temp",
        slider=Slider(0.1, 0, 2, lambda f: "always the likeliest" if f <= 0 else "samples the target"),
    )
    top_k: int = option(
        40,
        "sampling",
        "Sample among the K likeliest tokens; 0: all.",
        low=0,
        metavar="K",
        tuning="top_k",
        slider=Slider(
            5, 0, 100, lambda k: "off: all tokens" if k <= 0 else f"among the {k:.0f} likeliest", places=0
        ),
    )
    top_p: float = option(
        0.95,
        "sampling",
        "Sample among the likeliest tokens that hold this much probability; 1: all.",
        low=0.0,
        high=1.0,
        tuning="top_p",
        slider=Slider(0.05, 0, 1, lambda f: "off" if f >= 1 else f"likeliest {f:.0%} of mass"),
    )
    min_p: float = option(
        0.05,
        "sampling",
        "Leave out tokens below this share of the likeliest token's probability; 0: none.",
        low=0.0,
        high=1.0,
        tuning="min_p",
        slider=Slider(0.01, 0, 0.25, lambda f: "off" if f <= 0 else f"drops under {f:.0%} of top"),
    )
    repeat_penalty: float = option(
        1.0,
        "sampling",
        "Divide the logits of the last 64 tokens by this; 1 is off.",
        low=0.1,
        high=10.0,
        tuning="repeat_penalty",
        label="repeat",
        slider=Slider(0.05, 1, 2, lambda f: "off" if f == 1 else "divides repeated logits"),
    )
    seed: int = option(
        -1,
        "sampling",
        "Seed of the sampling; -1: a fresh one for every reply.",
        flags=("-s",),
        low=-1,
        high=2**32 - 2,
        tuning="seed",
        slider=Slider(
            1, -1, 99, lambda n: "a new one each reply" if n < 0 else "repeats the sampling", places=0
        ),
    )
    # -- context and hardware
    ctx_size: int = option(
        0,
        "context",
        "Context length; 0: the model's own, at most 8192.",
        flags=("-c",),
        low=0,
        unit="tokens",
    )
    threads: int = option(
        0,
        "context",
        "CPU threads of the engine; 0: chosen by the engine.",
        flags=("-t",),
        low=0,
        high=512,
    )
    gpu_layers: int = option(
        -1,
        "context",
        "Layers to offload to a GPU; -1: all, where this build of llama.cpp has a GPU backend.",
        flags=("-ngl", "--n-gpu-layers"),
        low=-1,
    )
    split_mode: str = option(
        "layer",
        "context",
        "How several devices share the model. row and tensor switch MTP off.",
        flags=("-sm",),
        choices=("none", "layer", "row", "tensor"),
    )
    rpc: str = option(
        "",
        "context",
        "RPC servers of llama.cpp on other machines that hold a part of the model, as host:port with commas "
        "between; ds4chat rpc-server starts one. Without encryption: only on a network of your own.",
        metavar="HOST:PORT,...",
    )
    cache_type_k: str = option(
        "f16",
        "context",
        "Type of the K cache.",
        flags=("-ctk",),
        choices=("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"),
    )
    cache_type_v: str = option(
        "f16",
        "context",
        "Type of the V cache; a quantised one needs flash attention.",
        flags=("-ctv",),
        choices=("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"),
    )
    flash_attn: str = option(
        "auto", "context", "Flash attention.", flags=("-fa",), choices=("auto", "on", "off")
    )
    system_prompt: str = option(
        "", "context", "System prompt of new conversations.", flags=("-sys",), metavar="TEXT"
    )
    chat_template: str = option(
        "",
        "context",
        "Chat template instead of the model's own: a file with a Jinja template, or the name of one that "
        "llama.cpp knows, such as chatml.",
        metavar="FILE|NAME",
        names=True,
        kind="path",
    )
    template: bool = option(
        True,
        "context",
        "Format conversations with a chat template; off writes plain 'User:' and 'Assistant:' lines.",
    )
    think: bool = option(
        True,
        "context",
        "Let the model think first, if its template supports that.",
        live=True,
        off_flags=("--nothink",),
    )
    end_loops: str = option(
        "demo",
        "context",
        "End a reply that repeats itself: always, never, or only with the demo's small model.",
        choices=("demo", "on", "off"),
        live=True,
    )
    keep_states: bool = option(
        True,
        "context",
        "Keep the KV state of the chat's last long conversations in the cache folder, for a week at most, "
        "if reading them again would take longer. The files hold what was said; off deletes them.",
    )
    # -- logs
    mtp_timing: bool = option(
        False,
        "logs",
        "Counters and phase times per step and per reply, on stderr.",
        env="DS4_MTP_TIMING",
    )
    mtp_spec_log: bool = option(False, "logs", "What each step did, on stderr.", env="DS4_MTP_SPEC_LOG")
    mtp_conf_log: bool = option(False, "logs", "Every judged draft, on stderr.", env="DS4_MTP_CONF_LOG")
    log_file: str = option(
        "",
        "logs",
        "Where ds4chat and llama.cpp log; empty: a file in the log folder.",
        kind="path",
    )
    # -- interface
    theme: str = option("ds4-dark", "interface", "Colour theme.", metavar="NAME")
    view: str = option(
        "tokens",
        "interface",
        "How a finished reply is shown.",
        choices=("tokens", "markdown"),
        live=True,
    )
    panels: str = option(
        " ".join(PANELS),
        "interface",
        f"Panels that are open, in order: {', '.join(PANELS)}; empty: none.",
        choices=PANELS,
        metavar="NAMES",
        live=True,
        kind="names",
    )
    model_folders: str = option(
        "",
        "interface",
        "Folders in which the model picker looks for GGUF files, separated by the system's path separator.",
        metavar="FOLDERS",
    )
    keys: dict[str, str] = option(
        {},
        "interface",
        'Key bindings: "action" = "key, key". F1 in the chat lists the actions, which are quoted here; '
        "an action that is not named keeps its default keys.",
    )
    servers: dict[str, dict[str, str]] = option(
        {},
        "servers",
        "Named servers for --server NAME: each table holds url and, where needed, model, key-file, key-env "
        "(the name of a variable) and ca-file.",
    )
    presets: dict[str, dict[str, Any]] = option(
        {},
        "interface",
        "Named tunings: each table holds options of speculation and sampling that are set together.",
    )


OPTIONS: tuple[Option, ...] = tuple(
    Option(key=f.name.replace("_", "-"), **f.metadata["option"]) for f in dataclasses.fields(Settings)
)
"""Every option in the order of the table."""

BY_KEY: dict[str, Option] = {o.key: o for o in OPTIONS}

TUNING: tuple[Option, ...] = tuple(o for o in OPTIONS if o.tuning)
"""What may change from one step of a reply to the next, a field of the engine's Tuning each."""

PRESET_KEYS: tuple[str, ...] = tuple(o.key for o in OPTIONS if o.group in ("speculation", "sampling"))
"""What a preset may hold."""
