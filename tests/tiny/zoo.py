"""A tiny GGUF of any architecture in tiny.species, with the tensors that llama.cpp asks for.

Its loader names the first tensor that it misses, or the shape that one should have had: the file is written
again until it loads. Then the tensors are filled in one of three styles:

- chain: the trunk is silent and the target says tiny.chain; its NextN heads err as tiny.draft_output does;
- mixed: random weights, a NextN head that is right about as often as wrong;
- random: random weights, a head that is nearly never right. Where chain proves counters, these two prove
  caches: the next token depends on every cell.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ds4chat.engine.llama import LlamaError, Model
from tiny import chain, species, vocab
from tiny.species import LAYERS, WIDTH, Species
from tiny.tensors import (
    Tensors,
    draft_output,
    embedding,
    mixing_matrix,
    random_table,
    target_output,
    write,
)

Style = Literal["chain", "mixed", "random"]
Part = Literal["whole", "trunk", "support"]
"""The model with its NextN blocks, without them, or the blocks alone."""

Shapes = dict[str, tuple[int, ...]]
"""Tensor -> dimensions in ggml's order, the row's length first."""

_MISSING = re.compile(r"missing tensor '([^']+)'|tensor '([^']+)' not found")
_WRONG_SHAPE = re.compile(r"tensor '([^']+)' has wrong shape; expected\s+([\d, ]+), got")
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_ADDS = re.compile(r"attn_output|attn_out|ffn_down|ssm_out|shortconv.out|ffn_latent_up|mix_output|mix_value")
"""Matrices whose product a block adds to what comes in: at 0 it says nothing."""
_ROUNDS = 3000


def build(
    name: str, folder: Path, style: Style = "chain", part: Part = "whole", wrong_every: int = 4
) -> Path:
    """Path of the file in ``folder``, made on the first call."""
    path = folder / f"zoo-{name}-{style}-{part}-{wrong_every}.gguf"
    if not path.exists():
        kind = species.ALL[name]
        changed = {} if part != "trunk" else _without_nextn(kind)
        # Another test process may look for the same file: it is there whole or not at all.
        made = path.with_suffix(f".{os.getpid()}.gguf")
        save(made, kind, part_of(fill(kind, _shapes(name, folder), style, wrong_every), part), **changed)
        made.replace(path)
    return path


def save(path: Path, kind: Species, tensors: Tensors, **changed: object) -> None:
    """Write a model of this kind. ``changed`` metadata is written in place of the kind's own, None leaves a
    key out; dots in keys are written as double underscores."""
    keys = kind.keys | {key.replace("__", "."): value for key, value in changed.items()}
    kept = {key: value for key, value in keys.items() if value is not None}
    write(path, kind.architecture, kept, tensors, name=f"tiny {kind.architecture}", pre=kind.pre)


def tensors_of(name: str, folder: Path, style: Style = "chain", wrong_every: int = 4) -> Tensors:
    """All tensors of a kind."""
    return fill(species.ALL[name], _shapes(name, folder), style, wrong_every)


@cache
def _shapes(name: str, folder: Path) -> Shapes:
    folder.mkdir(parents=True, exist_ok=True)
    return grow(species.ALL[name], folder / f"{name}-growing-{os.getpid()}.gguf")


def grow(kind: Species, path: Path) -> Shapes:
    """Every tensor of the kind, from what llama.cpp says to files without it, written to ``path``."""
    known: dict[str, tuple[int, ...] | None] = dict.fromkeys(("output.weight", *kind.optional))
    if kind.heads:
        known["blk.0.attn_norm.weight"] = None
        known.update({f"blk.{LAYERS + i}.nextn.eh_proj.weight": None for i in range(kind.heads)})
    for _ in range(_ROUNDS):
        save(path, kind, {n: np.zeros(tuple(reversed(d or (1,))), np.float32) for n, d in known.items()})
        try:
            Model(str(path), mtp=True, gpu_layers=0).close()
        except LlamaError as error:
            _learn(known, str(error))
        else:
            path.unlink()
            return {name: dims or (1,) for name, dims in known.items()}
    raise AssertionError(f"llama.cpp never loaded {kind.architecture}")


def _learn(known: dict[str, tuple[int, ...] | None], said: str) -> None:
    """Take in one tensor's name or shape; raises AssertionError where llama.cpp complains of another
    thing."""
    shape = _WRONG_SHAPE.search(said)
    if shape:
        dims = [int(n) for n in shape[2].split(",")]
        while len(dims) > 1 and dims[-1] == 1:
            dims.pop()
        known[shape[1]] = tuple(dims)
        return
    missing = _MISSING.search(said)
    assert missing, said
    name = missing[1] or missing[2]
    alike = (dims for other, dims in known.items() if dims and stem(other) == stem(name))
    known[name] = next(alike, None)


def stem(name: str) -> str:
    """A tensor's name without its block's."""
    block = _BLOCK.fullmatch(name)
    return block[2] if block else name


def fill(kind: Species, shapes: Shapes, style: Style, wrong_every: int = 4) -> Tensors:
    """Values for every tensor."""
    rng = np.random.default_rng(1)
    tensors: Tensors = {name: _values(rng, stem(name), dims, style) for name, dims in shapes.items()}
    n_vocab = vocab.N_VOCAB
    if style == "chain":
        tensors["token_embd.weight"] = embedding(n_vocab)
        tensors["output.weight"] = target_output(n_vocab)
    else:
        tensors |= random_table(rng, WIDTH)
        tensors["output.weight"][vocab.FIRST_WORD + 90 :] = 0
    for head in range(kind.heads):
        prefix = f"blk.{LAYERS + head}.nextn."
        if style == "chain":
            tensors[prefix + "eh_proj.weight"] = mixing_matrix()
            own = draft_output(n_vocab, wrong_every, head=head)
        elif style == "mixed":
            eye = np.eye(WIDTH, dtype=np.float32)
            noise = rng.standard_normal((WIDTH, 2 * WIDTH)) / np.sqrt(WIDTH)
            tensors[prefix + "eh_proj.weight"] = (np.hstack([eye, 0 * eye]) + noise / 4).astype(np.float32)
            own = tensors["output.weight"]
        else:
            continue
        if prefix + "shared_head_head.weight" in tensors:
            tensors[prefix + "shared_head_head.weight"] = own
    return tensors


def _values(rng: np.random.Generator, stem: str, dims: tuple[int, ...], style: Style) -> NDArray[np.float32]:
    shape = tuple(reversed(dims))
    noise = rng.standard_normal(shape)
    if "norm" in stem and stem.endswith("weight"):
        values = np.ones(shape) if style == "chain" else 1 + 0.1 * noise
    elif stem == "ssm_a":
        values = -np.abs(noise) - 0.1
    elif stem == "ssm_d" or "conv" in stem:
        values = 0.5 * noise
    elif stem.endswith("bias") or "exp_probs_b" in stem or "sinks" in stem:
        values = 0.1 * noise
    elif "rope_freqs" in stem:
        values = np.ones(shape)
    else:
        values = noise / np.sqrt(shape[-1])
    if _ADDS.search(stem):
        values = values * {"chain": 0.0, "mixed": 0.3, "random": 1.0}[style]
    return values.astype(np.float32)


def _without_nextn(kind: Species) -> dict[str, object]:
    """Metadata of the trunk alone."""
    lists = {key: value[:LAYERS] for key, value in kind.metadata.items() if isinstance(value, list)}
    alone = {**lists, "block_count": LAYERS, "nextn_predict_layers": None}
    return {key.replace(".", "__"): value for key, value in alone.items()}


def part_of(tensors: Tensors, part: Part) -> Tensors:
    """The tensors of one part, shared ones included."""
    if part == "whole":
        return tensors
    blocks = {name: int(block[1]) for name in tensors if (block := _BLOCK.fullmatch(name))}
    return {
        name: values
        for name, values in tensors.items()
        if name not in blocks or (blocks[name] >= LAYERS) == (part == "support")
    }


assert chain.N_CLASSES == WIDTH
