"""The parts of the training that decide something, by numbers worked out by hand. Needs PyTorch."""

from __future__ import annotations

import math
import random

import pytest

torch = pytest.importorskip("torch", reason="the training needs PyTorch: pip install torch==2.13.0")

from eagle3_training import data, evaluate, generation  # noqa: E402
from eagle3_training.acceptance import Acceptance  # noqa: E402
from eagle3_training.head import NORMS, Head, HeadConfig, default_layers, weight_shapes  # noqa: E402
from eagle3_training.kernels import EAGER, WeightedCrossEntropy, softmax  # noqa: E402
from eagle3_training.objective import Batch, Objective, States, target_states  # noqa: E402
from eagle3_training.prompts import ASSISTANT, USER, Continuation, Prompts  # noqa: E402
from eagle3_training.target import LlamaShape, Target, dequantised, open_gguf, read_shape  # noqa: E402
from eagle3_training.train import TrainConfig, random_positions  # noqa: E402
from train_target import write_target  # noqa: E402


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(write_target(tmp_path_factory.mktemp("parts") / "t.gguf"), dtype=torch.float32)


def random_head(target: Target, vocabulary: list[int], seed: int = 0) -> Head:
    config = HeadConfig(target.shape, (1, 3, 5), 40, len(vocabulary))
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.ones(shape)
        if name in NORMS
        else torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        for name, shape in weight_shapes(config).items()
    }
    return Head(config, weights, torch.tensor(vocabulary), target)


# ------------------------------------------------------------------------------------ data


def test_a_loop_counts_from_its_24th_repeated_token() -> None:
    """Period 7: tokens 17.. equal the token 7 before, so token 17 + 23 is the first with 24 equal ones."""
    ids = torch.arange(100, 170).repeat(1, 1)
    ids[0, 17:57] = ids[0, 10:17].repeat(6)[:40]
    found = data.loops(ids)[0].nonzero().flatten().tolist()
    assert found == list(range(40, 57))


def test_a_loop_of_a_long_period_needs_two_repetitions() -> None:
    """Period 20: 40 equal tokens before one counts, from 20 + 39 on."""
    ids = torch.arange(20).repeat(4)[None]
    assert data.loops(ids)[0].nonzero().flatten().tolist() == list(range(59, 80))


def test_the_evaluation_finds_loops_where_the_data_does() -> None:
    rng = random.Random(4)
    for _ in range(20):
        period, cut = rng.randint(1, 30), rng.randint(0, 20)
        ids = [rng.randint(0, 9) + 100 for _ in range(cut)] + list(range(period)) * 5
        marked = data.loops(torch.tensor([ids]))[0]
        first = int(marked.int().argmax()) if marked.any() else len(ids)
        assert evaluate.loop_start(ids) == first


def test_weights_are_those_of_the_predicted_token() -> None:
    """Sources given, user, greedy, sampled count 0.05, 0.3, 1, 1; a greedy token in a loop 0.2."""
    ids = torch.arange(40)[None].clone()
    source = torch.full((1, 40), generation.GREEDY, dtype=torch.uint8)
    source[0, :4] = torch.tensor([0, 0, 1, 3])
    ids[0, 6:36] = 7  # period 1: token 30 is the 24th that equals the one before
    weights = data.position_weights(ids, source)[0]
    assert weights[:3].tolist() == pytest.approx([0.05, 0.3, 1.0])
    assert weights[28].item() == 1.0
    assert weights[29].item() == pytest.approx(0.2)
    assert weights[34].item() == pytest.approx(0.2)
    assert weights[35].item() == 1.0
    assert weights[39].item() == 0.0  # nothing follows the last token


def test_the_draft_vocabulary_holds_what_answers_use() -> None:
    """Uses: token 5 twice as answer and once as argmax, 6 once as argmax, 7 at 0.2 as the user's word; 0 is
    asked for. Of 4.2 uses 5 and 6 are 4."""
    ids = torch.tensor([[9, 7, 5, 5]])
    source = torch.tensor([[0, 1, 2, 2]], dtype=torch.uint8)
    argmax = torch.tensor([[8, 5, 6, 8]], dtype=torch.int32)
    chosen, covered = data.draft_vocabulary(ids, source, argmax, 12, 3, [0])
    assert chosen.tolist() == [0, 5, 6]
    assert covered == pytest.approx(4 / 4.2)


def test_conversations_follow_the_format(target: Target) -> None:
    """A user turn that the target writes ends in user_close, an answer that reaches its limit in
    assistant_close and a continuation; each token knows its source."""
    prompts = Prompts(
        n_vocab=target.shape.n_vocab,
        openings=[[300, 301]],
        opening_weights=[1],
        starts=[],
        continuations=[Continuation([310, 311], USER)],
        user_close=[3, 4, 6],
        assistant_close=1,
        stops=[1, 3],
        held_out=[],
    )
    rows = generation.Rows([[300, 301], [302, 3, 4]], [USER, ASSISTANT], [0.7, 0.0], [5, 5])
    torch.manual_seed(0)
    made = generation.Generator(target, 2, 160).run(rows, prompts)
    for ids, source in zip(made.ids.tolist(), made.source.tolist(), strict=True):
        for t, token in enumerate(ids[2:-3], 2):
            if token == 3:  # ends a user turn
                assert ids[t + 1 : t + 3] == [4, 6]
                assert source[t + 1] == generation.FORCED
            if token == 1:  # ends an answer
                assert ids[t + 1 : t + 3] == [310, 311]
    assert 3 in made.ids[0, 2:]
    answers = made.source[1]
    assert made.source[0, 2] == generation.USER_TEXT
    assert answers[3:8].tolist() == [generation.GREEDY] * 5
    assert made.ids[1, 8] == 1  # the limit of 5 tokens
    assert answers[8] == generation.FORCED  # an end that the limit forced is not the target's
    assert generation.SAMPLED not in answers.tolist()


def test_greedy_generation_is_the_forward_pass_argmax(target: Target) -> None:
    rows = generation.Rows([[300, 20, 40]], [ASSISTANT], [0.0], [100])
    prompts = Prompts(target.shape.n_vocab, [], [], [], [Continuation([5], 1)], [3], 1, [], [])
    made = generation.Generator(target, 1, 40).run(rows, prompts)
    _, hidden = target.forward(made.ids, ())
    best = target.logits(hidden)[0].argmax(-1)
    assert made.ids[0, 3:].tolist() == best[2:-1].tolist()


# ------------------------------------------------------------------------------------ head and loss


def test_default_layers_are_those_of_the_shipped_head() -> None:
    assert default_layers(30) == (15, 21, 29)


def test_no_draft_sees_the_future(target: Target) -> None:
    """Draft j of position p reads tokens up to p + 1 + j and layer inputs up to p, nothing behind them."""
    head = random_head(target, list(range(50)))
    ids = torch.arange(100, 120)[None]
    inputs = torch.randn(1, 20, 3 * 64, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(20)[None]
    before = list(head.logits(ids, inputs, positions, 3))
    p = 8
    for j in range(3):
        changed_ids, changed_inputs = ids.clone(), inputs.clone()
        changed_ids[0, p + 2 + j :] = 7
        changed_inputs[0, p + 1 :] = 0
        after = list(head.logits(changed_ids, changed_inputs, positions, 3))[j]
        assert torch.allclose(after[0, p], before[j][0, p], atol=1e-5)
        changed_ids[0, p + 1 + j] = 7
        after = list(head.logits(changed_ids, changed_inputs, positions, 3))[j]
        assert (after[0, p] - before[j][0, p]).abs().max() > 1e-2


def test_one_softmax_over_both_groups_of_scores() -> None:
    """Scores 0 and ln 3 of the past (the future masked), ln 4 of the own cells: 1/8, 3/8, 4/8."""
    causal = torch.tensor([[0.0, 9.0], [0.0, math.log(3)]])
    own = torch.tensor([[-math.inf], [math.log(4)]])
    p, p_own = softmax(causal, own, torch.tensor([[False, True], [False, False]]))
    assert p.flatten().tolist() == pytest.approx([1, 0, 1 / 8, 3 / 8])
    assert p_own.flatten().tolist() == pytest.approx([0, 1 / 2])


def test_the_written_backward_pass_is_the_gradient() -> None:
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(2, 3, 8, generator=generator, dtype=torch.float64).float().requires_grad_()
    output = torch.randn(11, 8, generator=generator).requires_grad_()
    teacher = torch.softmax(torch.randn(2, 3, 11, generator=generator), -1)
    weight = torch.rand(2, 3, generator=generator)
    loss, by_row, _ = WeightedCrossEntropy.apply(hidden, output, teacher, weight, EAGER)
    loss.backward()
    ours = hidden.grad.clone(), output.grad.clone()
    hidden.grad = output.grad = None
    logits = hidden @ output.T
    plain = -(torch.log_softmax(logits, -1) * teacher).sum(-1)
    assert torch.allclose(by_row, plain, atol=1e-5)
    (plain * weight).sum().backward()
    assert torch.allclose(ours[0], hidden.grad, atol=1e-5)
    assert torch.allclose(ours[1], output.grad, atol=1e-5)


def test_the_teacher_is_six_tenths_soft_and_four_tenths_hard(target: Target) -> None:
    head = random_head(target, [10, 20, 30, 40])
    objective = Objective(head, target, 0.6, (1.0,))
    ids = torch.tensor([[50, 60, 70]])
    _, hidden = target.forward(ids, ())
    rows = target.logits(hidden)[..., [10, 20, 30, 40]]
    want = 0.6 * rows.softmax(-1)
    want[..., 2] += 0.4
    assert torch.allclose(objective.teacher(hidden, torch.full((1, 3), 2)), want, atol=1e-6)


def test_loss_and_acceptance_of_each_step_by_hand(target: Target) -> None:
    """Two steps, every position in the vocabulary: step j of row p is held against the target's argmax after
    token p + 1 + j, and counts only while the steps before it were right."""
    head = random_head(target, list(range(target.shape.n_vocab)))
    ids = torch.tensor([[50, 60, 70, 80, 90, 100, 110, 120]])
    states = target_states(target, ids, head.config.layers)
    weights = torch.tensor([[0.0, 1.0, 0.5, 1.0, 0.0, 1.0, 1.0, 0.0]])
    positions = torch.arange(8)[None]
    objective = Objective(head, target, 0.6, (1.0, 0.5))
    # Make some drafts right: the target's choice becomes what the head drafts there.
    drafted = head.drafts(ids, states.inputs, positions, 2)[0]
    argmax = states.argmax[0]
    argmax[1], argmax[2], argmax[3] = drafted[0, 0], drafted[1, 0], drafted[1, 1]
    total, figures = objective.loss(Batch(ids, states, weights, positions))
    teacher = objective.teacher(states.hidden, argmax[None].long())[0]
    losses = []
    for j, logits in enumerate(head.logits(ids, states.inputs, positions, 2)):
        log_p = torch.log_softmax(logits[0], -1)
        pairs = [(p, p + 1 + j) for p in range(8) if p + 1 + j < 8]
        counted = [(weights[0, i].item(), -(log_p[p] * teacher[i]).sum().item()) for p, i in pairs]
        losses.append(sum(w * x for w, x in counted) / sum(w for w, _ in counted))
    assert figures[:, 0].tolist() == pytest.approx(losses, rel=1e-4)
    assert total.item() == pytest.approx(losses[0] + 0.5 * losses[1], rel=1e-4)
    right = [int(drafted[p, 0] == argmax[p + 1]) for p in range(7)]
    assert right[:2] == [1, 1]
    first = sum(r * weights[0, p + 1].item() for p, r in enumerate(right)) / 4.5
    assert figures[0, 1].item() == pytest.approx(first)
    alive = [p for p in range(6) if right[p]]
    judged = sum(weights[0, p + 2].item() for p in alive)
    kept = sum(weights[0, p + 2].item() for p in alive if drafted[p, 1] == argmax[p + 2])
    assert figures[1, 1].item() == pytest.approx(kept / judged)
    assert kept > 0


def test_a_choice_outside_the_vocabulary_teaches_nothing_and_counts_as_a_miss(target: Target) -> None:
    head = random_head(target, [10, 20, 30])
    ids = torch.tensor([[50, 60, 70, 80]])
    states = target_states(target, ids, head.config.layers)
    states = States(states.inputs, states.hidden, torch.full((1, 4), 99, dtype=torch.int32))
    batch = Batch(ids, states, torch.ones(1, 4), torch.arange(4)[None])
    total, figures = Objective(head, target, 0.6, (1.0, 0.5)).loss(batch)
    assert total.item() == 0
    assert figures[:, 1].tolist() == [0, 0]


# ------------------------------------------------------------------------------------ schedule


def test_the_rate_warms_up_and_falls_as_a_cosine() -> None:
    config = TrainConfig(peak_rate=1e-3, warmup=10, floor=0.02)
    assert config.rate(0, 1000) == pytest.approx(1e-4)
    assert config.rate(500, 1000) == pytest.approx(1e-3 * (0.02 + 0.98 * 0.5))
    assert config.rate(999, 1000) == pytest.approx(2e-5, rel=1e-2)


def test_positions_jump_once_and_stay_inside_the_context() -> None:
    config = TrainConfig(gap_share=0.5, largest_gap=6000)
    torch.manual_seed(1)
    positions = random_positions(400, 64, config, 8192, 5, "cpu")
    steps = positions[:, 1:] - positions[:, :-1]
    jumps = (steps > 1).sum(1)
    assert jumps.max() == 1
    assert 150 < jumps.sum() < 250
    assert steps.min() == 1
    assert steps[steps > 1].min() >= 9
    assert 1000 < positions.max() < 6064
    small = random_positions(400, 64, config, 128, 5, "cpu")
    assert 64 < small.max() + 5 < 128
    plain = random_positions(3, 64, TrainConfig(gap_share=0.0), 8192, 5, "cpu")
    assert torch.equal(plain, torch.arange(64).expand(3, 64))


# ------------------------------------------------------------------------------------ acceptance


def test_acceptance_and_passes_by_hand() -> None:
    """An answer of tokens 2..7, so drafts are made at rows 0..5. First drafts are right but at row 2, second
    ones at rows 0 and 4.

    Position 1: 6 judged, 5 right. Position 2: rows 0, 1, 3, 4 (row 5 has no second token left): 4 judged, 2
    right. Depth 1: rows 0 (2 tokens), 2 (1), 3 (2), 5 (1): 4 passes, 6 tokens. Depth 2: rows 0 (2 right, 3
    tokens), 3 (1 right, 2 tokens), 5 (the last token): 3 passes, 6 tokens.
    """
    right = torch.zeros(8, 2, dtype=torch.bool)
    right[[0, 1, 3, 4, 5], 0] = True
    right[[0, 4], 1] = True
    counts = Acceptance.zero(2)
    counts.add(right, 2, 7)
    assert counts.judged == [6, 4]
    assert counts.accepted == [5, 2]
    assert counts.passes == [4, 3]
    assert counts.emitted == [6, 6]
    assert counts.tokens_per_pass == [1.5, 2.0]


# ------------------------------------------------------------------------------------ target


def test_the_shape_comes_from_the_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    reader = open_gguf(write_target(tmp_path_factory.mktemp("shape") / "t.gguf"))
    assert read_shape(reader) == LlamaShape(6, 64, 4, 2, 16, 96, 384, 2048, pytest.approx(1e-5), 10000.0)
    assert dequantised(reader)["blk.0.attn_k.weight"].shape == (32, 64)
