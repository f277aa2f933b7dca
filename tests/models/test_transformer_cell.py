"""The Transformer cell: its variants by definition, causal also through a solver, counted at paper scale."""

import pytest
import torch
from torch.nn import functional as F

from steadeq.models.transformer import DropoutMasks, TransformerCell

NORMS = ["post", "pre", "pre-textbook"]
B, L, M, FEATURES, HIDDEN = 3, 5, 4, 8, 12


def make(norm="post", **options):
    return TransformerCell(features=FEATURES, num_heads=2, hidden_features=HIDDEN, norm=norm, **options).double()


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def sample(num_memory=M, batch=B):
    return draw(batch, L, FEATURES), draw(batch, L, 24), draw(batch, num_memory, FEATURES), draw(batch, num_memory, 24)


def normalize(z):
    return F.layer_norm(z, (FEATURES,))


@pytest.mark.parametrize("weight_norm", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_it_is_its_definition(norm, weight_norm):
    cell = make(norm, weight_norm=weight_norm)
    z, x, memory, injected = sample()
    masks = cell.draw_masks(L, like=z, num_memory=M, dropout=0.3, attention_dropout=0.2)

    def attend(z, memory):
        prepared = cell.attention.prepare(L, memory=memory, injected=injected)
        return cell.attention(z, x, *prepared, masks.attention) * masks.attended

    def feed(y):
        return cell.linear2(F.relu(cell.linear1(y)) * masks.hidden) * masks.output

    if norm == "post":
        y = normalize(z + attend(z, memory))
        expected = normalize(y + feed(y))
    else:
        y = z + attend(normalize(z), normalize(memory))
        n = normalize(y)
        expected = (n if norm == "pre" else y) + feed(n)
    torch.testing.assert_close(cell(z, x, *cell.prepare(L, memory=memory, injected=injected), masks), expected)


def test_masks_have_the_batch_first_and_stay_the_same_along_positions():
    masks = make().draw_masks(L, like=draw(B, 1), num_memory=M, dropout=0.5, attention_dropout=0.5)
    assert [tuple(mask.shape) for mask in masks] == [
        (B, 2, L, M + L),
        (B, 1, FEATURES),
        (B, 1, HIDDEN),
        (B, 1, FEATURES),
    ]
    assert all(set(mask.unique().tolist()) == {0.0, 2.0} for mask in masks)
    assert make().draw_masks(L, like=draw(B, 1)) == DropoutMasks()
