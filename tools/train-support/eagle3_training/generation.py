"""Self-generated data: the target writes both the answers and half of the users' words.

All rows of a batch stand at the same position, so one step decodes one token of every row. Text that is
given (chat format, prompts, follow-up turns) waits in a buffer of forced tokens; where the buffer is empty
the next token is sampled. A row never ends before the batch does: an ended turn writes the next turn's
opening into the buffer, and the conversation goes on.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3_training.prompts import ASSISTANT, USER, Prompts
from eagle3_training.target import Target, rotate

FORCED, USER_TEXT, GREEDY, SAMPLED = 0, 1, 2, 3
"""Where a token of the data comes from: given text, the user's words as the target wrote them, an answer at
temperature 0, an answer at a higher temperature. From GREEDY on it is an answer."""

USER_TURN_LIMIT = 110
MIN_P = 0.02
"""A token below this share of the likeliest one's probability is never sampled."""
TEMPERATURES = (0.0, 0.0, 0.0, 0.7, 0.7, 1.0)
ANSWER_LIMITS = (200, 320, 450, 650)

Log = Callable[[str], None]


@dataclass
class Rows:
    """What the rows of one batch begin with."""

    starts: list[list[int]]
    roles: list[int]
    """Whose words are sampled first, USER or ASSISTANT."""
    temperatures: list[float]
    limits: list[int]
    """Most tokens of one answer."""

    def __len__(self) -> int:
        return len(self.starts)


@dataclass
class Generated:
    """Tokens (rows, length) and the source of each, one of FORCED, USER_TEXT, GREEDY, SAMPLED."""

    ids: Tensor
    source: Tensor


def draw_rows(
    prompts: Prompts, n: int, rng: random.Random, pool: list[list[int]], self_started: float = 0.5
) -> Rows:
    """n rows: a share of ``self_started`` lets the target write the first user turn; the others take their
    prompt from ``pool``, which shrinks by it. An empty pool leaves self-started rows alone."""
    rows = Rows([], [], [], [])
    for _ in range(n):
        if rng.random() < self_started or not pool:
            opening = rng.choices(range(len(prompts.openings)), prompts.opening_weights)[0]
            rows.starts.append(prompts.openings[opening])
            rows.roles.append(USER)
        else:
            rows.starts.append(pool.pop())
            rows.roles.append(ASSISTANT)
        rows.temperatures.append(rng.choice(TEMPERATURES))
        rows.limits.append(rng.choice(ANSWER_LIMITS))
    return rows


Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one query position through PyTorch's kernel; q (rows, heads, 1, head_dim)."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def matmul_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same as two batched matrix products: on some GPUs faster for one query position."""
    grouped = q.view(q.shape[0], k.shape[1], -1, q.shape[-1])
    scores = torch.matmul(grouped * q.shape[-1] ** -0.5, k.transpose(-1, -2))
    return torch.matmul(scores.float().softmax(-1).to(v.dtype), v).view(q.shape)


class Generator:
    """A batch of the target's KV caches. Memory: 2 * layers * rows * kv heads * length * head_dim values."""

    def __init__(self, target: Target, rows: int, length: int) -> None:
        s = target.shape
        self.target, self.rows, self.length = target, rows, length
        cache = (s.n_layer, rows, s.n_head_kv, length, s.head_dim)
        self.keys = torch.zeros(cache, device=target.device, dtype=target.dtype)
        self.values = torch.zeros_like(self.keys)
        self.attention: Attention = fused_attention

    def choose_attention(self) -> None:
        """Take the faster of the two attentions, timed on this device at this batch size."""
        s, seconds = self.target.shape, {}
        q = torch.randn(
            self.rows, s.n_head, 1, s.head_dim, device=self.target.device, dtype=self.target.dtype
        )
        for attention in (fused_attention, matmul_attention):
            for timed in (False, True):
                torch.cuda.synchronize()
                started = time.perf_counter()
                for used in (self.length // 4, self.length * 3 // 4):
                    attention(q, self.keys[0, :, :, :used], self.values[0, :, :, :used])
                torch.cuda.synchronize()
                if timed:
                    seconds[attention] = time.perf_counter() - started
        self.attention = min(seconds, key=lambda a: seconds[a])

    @torch.no_grad()
    def step(self, tokens: Tensor, position: int) -> Tensor:
        """Logits (rows, n_vocab) after one token of every row, all at the same position."""
        target, s = self.target, self.target.shape
        x = target.embedding_cast[tokens].float()
        cos, sin = target.rope.cos[position], target.rope.sin[position]
        for i, layer in enumerate(target.layers):
            qkv = F.linear(target.norm(x, layer.attn_norm), layer.qkv).view(self.rows, s.n_qkv, s.head_dim)
            qk = rotate(qkv[:, : s.n_qk], cos, sin)
            self.keys[i, :, :, position] = qk[:, s.n_head :]
            self.values[i, :, :, position] = qkv[:, s.n_qk :]
            used = position + 1
            attended = self.attention(
                qk[:, : s.n_head, None], self.keys[i, :, :, :used], self.values[i, :, :, :used]
            )
            x = x + F.linear(attended.reshape(self.rows, -1), layer.attn_output)
            x = target.feed_forward(x, layer)
        return target.logits(target.norm(x, target.output_norm))

    @torch.no_grad()
    def run(self, rows: Rows, prompts: Prompts) -> Generated:
        """Fill every row to the full length. Uses PyTorch's global generator: seed it for repeatable data."""
        state = _Conversations(rows, prompts, self.length, self.target.device)
        for t in range(self.length - 1):
            state.append(t, self.step(state.ids[:, t], t).float())
        return Generated(state.ids, state.source)


class _Conversations:
    """The rows under way: their tokens, the forced buffer, and whose turn it is."""

    def __init__(self, rows: Rows, prompts: Prompts, length: int, device: str) -> None:
        n = len(rows)
        texts = [prompts.user_close[1:], *(c.tokens for c in prompts.continuations)]
        self.width = max(1, *map(len, texts))
        self.forced = _padded([start[:length] for start in rows.starts], length + self.width + 4).to(device)
        self.next_text = _padded(texts, self.width).to(device)
        """Row 0 leads from the user's turn to the assistant's, the others from the assistant's on."""
        self.next_role = torch.tensor([ASSISTANT, *(c.role for c in prompts.continuations)], device=device)
        self.role = torch.tensor(rows.roles, device=device)
        self.temperature = torch.tensor(rows.temperatures, device=device)
        self.limit = torch.tensor(rows.limits, device=device)
        self.turn_length = torch.zeros(n, dtype=torch.int64, device=device)
        self.ids = torch.zeros(n, length, dtype=torch.int64, device=device)
        self.ids[:, 0] = self.forced[:, 0]
        self.source = torch.zeros(n, length, dtype=torch.uint8, device=device)
        self.stops = torch.tensor(prompts.stops, device=device)
        self.close = {USER: prompts.user_close[0], ASSISTANT: prompts.assistant_close}

    def append(self, t: int, logits: Tensor) -> None:
        """Give every row its token t + 1: the forced one, or one drawn from its logits after token t."""
        by_user = self.role == USER
        drawn = self._draw(logits, torch.where(by_user, 1.0, self.temperature))
        forced = self.forced[:, t + 1]
        free = forced < 0
        too_long = free & (self.turn_length >= torch.where(by_user, USER_TURN_LIMIT, self.limit))
        ended = free & (too_long | torch.isin(drawn, self.stops))
        close = torch.where(by_user, self.close[USER], self.close[ASSISTANT])
        self.ids[:, t + 1] = torch.where(free, torch.where(ended, close, drawn), forced)
        answer = torch.where(self.temperature == 0, GREEDY, SAMPLED)
        # An end that a limit forced is not what the target would have said.
        source = torch.where(free & ~too_long, torch.where(by_user, USER_TEXT, answer), FORCED)
        self.source[:, t + 1] = source.to(torch.uint8)
        self.turn_length = torch.where(ended, 0, self.turn_length + free)
        self._open_turns(t, ended, by_user)

    def _open_turns(self, t: int, ended: Tensor, by_user: Tensor) -> None:
        pick = torch.randint(1, len(self.next_role), (len(self.role),), device=self.role.device)
        pick = torch.where(by_user, 0, pick)
        ahead = self.forced[:, t + 2 : t + 2 + self.width]
        ahead.copy_(torch.where(ended[:, None], self.next_text[pick], ahead))
        self.role = torch.where(ended, self.next_role[pick], self.role)

    @staticmethod
    def _draw(logits: Tensor, temperature: Tensor) -> Tensor:
        """A token a row by the Gumbel-max trick (argmax at temperature 0) among those that pass MIN_P."""
        negative_gumbel = torch.empty_like(logits).exponential_().log_()
        likely = logits >= logits.amax(-1, keepdim=True) + math.log(MIN_P)
        return torch.where(likely, logits - temperature[:, None] * negative_gumbel, -math.inf).argmax(-1)


def _padded(texts: list[list[int]], width: int) -> Tensor:
    """(texts, width), -1 behind each text."""
    table = torch.full((len(texts), width), -1, dtype=torch.int64)
    for row, text in zip(table, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    return table
