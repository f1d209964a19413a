"""The training data: generated waves on disk, loops in them, weights of positions, the draft vocabulary."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eagle3_training.errors import TrainingError
from eagle3_training.generation import GREEDY, SAMPLED, USER_TEXT, Generated, Generator, Log, Rows, draw_rows
from eagle3_training.prompts import ASSISTANT, Prompts
from eagle3_training.target import Target

LONGEST_PERIOD = 64
SOURCE_WEIGHTS = (0.05, 0.3, 1.0, 1.0)
"""Weight of predicting a token, by its source. Drafts are judged on answers alone; the other text is there so
that the head's cache holds sensible rows."""
LOOP_WEIGHT = 0.2
"""A verbatim loop is easy to predict and far too frequent in a small model's own text."""
CONTROL_COUNT = 1e9
TEMPERATURE = 0.7
"""Of the second held-out set."""


def loops(ids: Tensor, longest_period: int = LONGEST_PERIOD) -> Tensor:
    """Bool (rows, length): for some period p, each of the last max(2p, 24) tokens, this one included, equals
    the token p before it."""
    rows, length = ids.shape
    position = torch.arange(length, device=ids.device)
    found = torch.zeros(rows, length, dtype=torch.bool, device=ids.device)
    for period in range(1, min(longest_period, length - 1) + 1):
        same = torch.zeros_like(found)
        same[:, period:] = ids[:, period:] == ids[:, :-period]
        last_break = torch.where(~same, position, -1).cummax(1).values
        found |= (position - last_break) >= max(2 * period, 24)
    return found


def position_weights(ids: Tensor, source: Tensor, chunk: int = 1024) -> Tensor:
    """Float32 (rows, length): what predicting the token after each position counts in the loss."""
    table = torch.tensor(SOURCE_WEIGHTS, device=source.device)
    weights = torch.zeros(source.shape, device=source.device)
    weights[:, :-1] = table[source[:, 1:].long()]
    for i in range(0, len(ids), chunk):
        looped = loops(ids[i : i + chunk].long())
        weights[i : i + chunk, :-1] *= torch.where(looped[:, 1:], LOOP_WEIGHT, 1.0)
    return weights


def draft_vocabulary(
    ids: Tensor, source: Tensor, argmax: Tensor, n_vocab: int, size: int, always: list[int]
) -> tuple[Tensor, float]:
    """The ``size`` tokens that answers use most, sorted by id, and the share of all uses that they cover.

    A use is a token of an answer, the target's argmax at a position of an answer, and, at a fifth, a token of
    the user's words. ``argmax`` (rows, length) is the target's choice after each position. ``always`` are in
    it whatever their count.
    """
    answer = (source >= GREEDY)[:, 1:]

    def count(tokens: Tensor) -> Tensor:
        return torch.bincount(tokens.long(), minlength=n_vocab).double()

    uses = count(ids[:, 1:][answer]) + count(argmax[:, :-1][answer]) + 0.2 * count(ids[source == USER_TEXT])
    ranked = uses.clone()
    ranked[always] += CONTROL_COUNT
    chosen = ranked.argsort(descending=True, stable=True)[: min(size, n_vocab)].sort().values
    return chosen, (uses[chosen].sum() / uses.sum().clamp(min=1)).item()


# ------------------------------------------------------------------------------------ files


@dataclass
class HeldOutRows:
    """Answers to the held-out prompts, cut where a turn ends or a loop begins."""

    ids: Tensor
    kinds: list[str]
    first: list[int]
    """Position of each answer's first token."""
    last: list[int]
    """Position of its last token that counts."""


def generate(
    target: Target, prompts: Prompts, folder: Path, *, rows: int, length: int, waves: int, log: Log
) -> None:
    """Write wave-000.npz, wave-001.npz, ... into the folder; a wave that is there already is kept.

    A wave is one batch of ``rows`` conversations of ``length`` tokens. The same prompts, sizes and device
    give the same waves.
    """
    if length > target.shape.n_ctx:
        raise TrainingError(
            f"The target's context is {target.shape.n_ctx} tokens: use a --length up to that."
        )
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(5)
    pool = list(prompts.starts)
    rng.shuffle(pool)
    generator = None
    for wave in range(waves):
        drawn = draw_rows(prompts, rows, rng, pool)
        path = folder / f"wave-{wave:03d}.npz"
        if path.exists():
            log(f"{path.name} is there already, kept")
            continue
        if generator is None:
            generator = Generator(target, rows, length)
            if target.device != "cpu":
                generator.choose_attention()
        torch.manual_seed(100 + wave)
        started = time.perf_counter()
        made = generator.run(drawn, prompts)
        _save(path, made)
        seconds = time.perf_counter() - started
        log(
            f"{path.name}: {rows * length} positions in {seconds:.0f} s, "
            f"{rows * length / seconds:.0f} a second"
        )


def generate_held_out(target: Target, prompts: Prompts, folder: Path, *, length: int) -> None:
    """Write the target's answers to the held-out prompts, greedy and at temperature 0.7."""
    n = len(prompts.held_out)
    longest = max(len(h.tokens) for h in prompts.held_out)
    if longest + 2 > length:
        raise TrainingError(
            f"The longest held-out prompt is {longest} tokens: use a larger --held-out-length."
        )
    generator = Generator(target, n, length)
    for name, temperature in (("greedy", 0.0), ("sampled", TEMPERATURE)):
        rows = Rows([h.tokens for h in prompts.held_out], [ASSISTANT] * n, [temperature] * n, [length] * n)
        torch.manual_seed(7)
        made = generator.run(rows, prompts)
        looped = loops(made.ids)
        first = [len(h.tokens) for h in prompts.held_out]
        last = [_last_token(made.ids[i], looped[i], first[i], prompts.assistant_close) for i in range(n)]
        np.savez(
            folder / f"held-out-{name}.npz",
            ids=made.ids.to(torch.int32).cpu().numpy(),
            kinds=np.array([h.kind for h in prompts.held_out]),
            first=np.array(first),
            last=np.array(last),
        )


def _last_token(ids: Tensor, looped: Tensor, first: int, end_of_turn: int) -> int:
    ends = (ids[first:] == end_of_turn) | looped[first:]
    return first + int(ends.int().argmax()) if ends.any() else len(ids) - 1


def _save(path: Path, made: Generated) -> None:
    ids = made.ids.to(torch.int32).cpu().numpy()
    if ids.max() < 1 << 16:
        ids = ids.astype(np.uint16)
    # A wave counts as made once its file has this name.
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, ids=ids, source=made.source.cpu().numpy())
    partial.replace(path)


def load_waves(folder: Path, limit: int | None = None) -> Generated:
    """The waves in the folder, or their first ``limit`` rows, on the CPU. Raises TrainingError."""
    paths = sorted(p for p in folder.glob("wave-*.npz") if not p.name.endswith(".partial.npz"))
    if not paths:
        raise TrainingError(f"{folder} holds no wave-*.npz. Run the step 'generate' first.")
    ids, source = [], []
    for path in paths:
        with np.load(path) as wave:
            ids.append(torch.from_numpy(wave["ids"].astype(np.int32)))
            source.append(torch.from_numpy(wave["source"]))
    if len({tuple(t.shape[1:]) for t in ids}) > 1:
        raise TrainingError(f"The waves in {folder} have rows of different length. Generate them anew.")
    return Generated(torch.cat(ids)[:limit], torch.cat(source)[:limit])


def load_held_out(folder: Path, name: str) -> HeldOutRows:
    """The held-out answers "greedy" or "sampled". Raises TrainingError."""
    path = folder / f"held-out-{name}.npz"
    if not path.exists():
        raise TrainingError(f"{path} is missing. Run the step 'generate' first.")
    with np.load(path) as file:
        return HeldOutRows(
            torch.from_numpy(file["ids"].astype(np.int64)),
            file["kinds"].tolist(),
            file["first"].tolist(),
            file["last"].tolist(),
        )


def share_by_source(source: Tensor) -> dict[str, float]:
    """Share of the positions by where their token comes from."""
    counts = torch.bincount(source.flatten().long(), minlength=SAMPLED + 1).double() / source.numel()
    return dict(zip(("given", "user", "greedy", "sampled"), counts.tolist(), strict=True))
