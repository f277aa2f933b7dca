"""Adaptive embedding and softmax: against plain ones, against torch's, and counted."""

import math

import pytest
import torch
from torch import nn

from steadeq.nn import AdaptiveEmbedding, AdaptiveSoftmax

CUTOFFS = [10, 25, 60]
VOCAB_SIZE, FEATURES = 80, 64
TYINGS = ["none", "tails", "all"]


def make(*, cutoffs=CUTOFFS, div_value=4, tied="tails", std=0.5):
    embedding = AdaptiveEmbedding(VOCAB_SIZE, FEATURES, cutoffs=cutoffs, div_value=div_value, std=std)
    softmax = AdaptiveSoftmax(embedding, tied=tied, std=std).double()
    with torch.no_grad():
        for bias in softmax.biases:
            bias.normal_()
    return softmax


def draw(*shape):
    return torch.randn(*shape, FEATURES, dtype=torch.float64), torch.randint(VOCAB_SIZE, shape)


def count(parameters):
    return sum(parameter.numel() for parameter in parameters)


# Embedding


def test_each_token_is_its_row_projected_and_scaled():
    embedding = make().embedding
    tokens = torch.randperm(VOCAB_SIZE).reshape(4, 20)
    rows = torch.cat([table @ map_.T for table, map_ in zip(embedding.tables, embedding.projections, strict=True)])
    torch.testing.assert_close(embedding(tokens), rows[tokens] * math.sqrt(FEATURES))


def test_without_cutoffs_it_is_a_plain_embedding():
    embedding = AdaptiveEmbedding(VOCAB_SIZE, FEATURES)
    tokens = torch.randint(VOCAB_SIZE, (3, 5))
    torch.testing.assert_close(embedding(tokens), embedding.tables[0][tokens] * 8)
    assert count(embedding.parameters()) == VOCAB_SIZE * FEATURES


def test_gradients_reach_the_rows_of_the_tokens_and_no_others():
    embedding = make().embedding
    tokens = torch.tensor([3, 30, 30, 79])
    embedding(tokens).square().sum().backward()
    touched = torch.cat([table.grad.abs().sum(dim=1) for table in embedding.tables]).nonzero().flatten()
    assert touched.tolist() == [3, 30, 79]
    # Of the cluster that has no tokens too: data-parallel training waits for all of them.
    assert all(parameter.grad is not None for parameter in embedding.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"cutoffs": cutoffs}, "cutoffs") for cutoffs in ([0, 10], [10, 10], [20, 10], [80], [-1])),
        ({"cutoffs": CUTOFFS, "div_value": 40}, "less than one"),
        ({"cutoffs": CUTOFFS, "div_value": 0.5}, "div_value"),
        ({"tied": "some"}, "'none', 'tails', 'all'"),
    ],
)
def test_clusters_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize("token", [-1, -100, VOCAB_SIZE])
@pytest.mark.parametrize("cutoffs", [CUTOFFS, []])
def test_tokens_outside_the_vocabulary_are_refused(token, cutoffs):
    softmax = make(cutoffs=cutoffs)
    tokens = torch.tensor([0, token])
    with pytest.raises((IndexError, RuntimeError)):
        softmax.embedding(tokens)
    with pytest.raises((IndexError, RuntimeError)):
        softmax(torch.zeros(2, FEATURES, dtype=torch.float64), tokens)


# Softmax


@pytest.mark.parametrize("tied", TYINGS)
@pytest.mark.parametrize("cutoffs", [CUTOFFS, [79], []])
def test_probabilities_sum_to_one_and_losses_are_their_logarithms_in_order(tied, cutoffs):
    softmax = make(tied=tied, cutoffs=cutoffs)
    hidden, tokens = draw(7, 30)
    logs = softmax.log_probabilities(hidden)
    torch.testing.assert_close(logs.exp().sum(dim=-1), torch.ones(7, 30, dtype=torch.float64))
    torch.testing.assert_close(softmax(hidden, tokens), -logs.gather(-1, tokens[..., None]).squeeze(-1))


def test_without_cutoffs_it_is_cross_entropy_with_the_tied_table():
    softmax = make(cutoffs=[])
    hidden, tokens = draw(9)
    logits = hidden @ softmax.embedding.tables[0].T + softmax.biases[0]
    torch.testing.assert_close(softmax(hidden, tokens), nn.functional.cross_entropy(logits, tokens, reduction="none"))


def oracle_of(softmax):
    """Return torch's module with the same weights; it has neither a projection of the head nor biases in the tails."""
    with torch.no_grad():
        softmax.projections[0].copy_(torch.eye(FEATURES))
        for bias in softmax.biases[1:]:
            bias.zero_()
        oracle = nn.AdaptiveLogSoftmaxWithLoss(FEATURES, VOCAB_SIZE, CUTOFFS, div_value=4, head_bias=True).double()
        oracle.head.weight.copy_(torch.cat([softmax.embedding.tables[0], softmax.cluster_weight]))
        oracle.head.bias.copy_(torch.cat([softmax.biases[0], softmax.cluster_bias]))
        for cluster, tail in enumerate(oracle.tail, start=1):
            owner = softmax if softmax.tied == "none" else softmax.embedding
            tail[0].weight.copy_(owner.projections[cluster].T)
            tail[1].weight.copy_(softmax.embedding.tables[cluster])
    return oracle


@pytest.mark.parametrize("tied", ["none", "tails"])
def test_it_agrees_with_torch_in_values_and_gradients(tied):
    softmax = make(tied=tied)
    oracle = oracle_of(softmax)
    hidden, tokens = draw(50)
    hidden.requires_grad_()
    losses, expected = softmax(hidden, tokens), -oracle(hidden, tokens).output
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(softmax.log_probabilities(hidden), oracle.log_prob(hidden))
    weights = torch.randn(50, dtype=torch.float64)
    owner = softmax if tied == "none" else softmax.embedding
    ours = [hidden, softmax.embedding.tables[2], owner.projections[2], softmax.embedding.tables[0]]
    theirs = [hidden, oracle.tail[1][1].weight, oracle.tail[1][0].weight, oracle.head.weight]
    found, known = (
        torch.autograd.grad((value * weights).sum(), sources) for value, sources in ((losses, ours), (expected, theirs))
    )
    torch.testing.assert_close(found[0], known[0])
    torch.testing.assert_close(found[1], known[1])
    torch.testing.assert_close(found[2], known[2].T)
    torch.testing.assert_close(found[3], known[3][: CUTOFFS[0]])


def test_no_more_logits_are_computed_than_the_clusters_of_the_tokens_need(monkeypatch):
    softmax = make()
    sizes = []
    linear = nn.functional.linear
    monkeypatch.setattr(
        nn.functional,
        "linear",
        lambda *arguments: [sizes.append(tuple(linear(*arguments).shape)), linear(*arguments)][1],
    )
    hidden, _ = draw(12)
    softmax(hidden, torch.tensor([0] * 9 + [12, 70, 71]))
    assert sizes == [(12, 13), (1, 15), (0, 35), (2, 20)]


def test_all_parameters_get_gradients_even_if_no_token_is_rare():
    softmax = make(tied="none")
    hidden, _ = draw(4)
    (
        softmax(hidden, torch.zeros(4, dtype=torch.long)) + softmax.embedding(torch.zeros(4).long()).sum()
    ).sum().backward()
    assert all(parameter.grad is not None for parameter in softmax.parameters())


def test_losses_have_single_precision_under_autocast():
    softmax = make().float()
    hidden, tokens = torch.randn(50, FEATURES), torch.randint(VOCAB_SIZE, (50,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses, logs = softmax(hidden, tokens), softmax.log_probabilities(hidden)
    assert losses.dtype == logs.dtype == torch.float32
    torch.testing.assert_close(logs.exp().sum(dim=-1), torch.ones(50))


# Paper scale


@pytest.mark.parametrize(("tied", "own"), [("none", 649_600), ("tails", 490_000), ("all", 0)])
def test_parameters_of_wikitext_103_are_those_of_the_official_code_and_tied_ones_counted_once(tied, own):
    with torch.device("meta"):
        embedding = AdaptiveEmbedding(267_735, 700, cutoffs=[20_000, 40_000, 200_000], div_value=4)
        softmax = AdaptiveSoftmax(embedding, tied=tied)
    assert [table.shape[1] for table in embedding.tables] == [700, 175, 43, 10]
    assert count(embedding.tables) == 25_057_350
    assert count(embedding.projections) == 649_600
    assert count(softmax.projections) == own
    assert count(softmax.biases) == 267_735
    assert count([softmax.cluster_weight, softmax.cluster_bias]) == 2_103
    assert count(softmax.parameters()) == 26_626_388 - 649_600 + own
