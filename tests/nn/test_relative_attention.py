"""Relative attention: against loops over positions, causal, windowed, with a memory, twice differentiable."""

import math

import pytest
import torch

from steadeq.nn import RelativeAttention, cached_parameters
from steadeq.nn.relative_attention import encode_distances, rel_shift

B, L, M, FEATURES, HEADS, WIDTH = 2, 5, 4, 6, 2, 4


def make(**options):
    attention = RelativeAttention(features=FEATURES, num_heads=HEADS, head_features=WIDTH, **options).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return attention


def draw(*shape, requires_grad=False):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=requires_grad)


def sample(length=L, num_memory=M):
    """Return positions, what is injected there, and the same of the memory."""
    width = 3 * HEADS * WIDTH
    return draw(B, length, FEATURES), draw(B, length, width), draw(B, num_memory, FEATURES), draw(B, num_memory, width)


def weight(linear):
    return linear.compute() if hasattr(linear, "compute") else linear.weight


def loops(attention, z, x, memory, injected, mask=None, position_mask=None):
    """The formula, one query and one key at a time."""
    everything, injections = torch.cat([memory, z], dim=1), torch.cat([injected, x], dim=1)
    num_memory, length, window = memory.shape[1], z.shape[1], attention.window or math.inf
    w_q, w_k, w_v = weight(attention.qkv).unflatten(0, (3, HEADS, WIDTH))
    x_q, x_k, x_v = injections.unflatten(2, (3, HEADS, WIDTH)).permute(2, 0, 1, 3, 4)
    w_r = weight(attention.position).unflatten(0, (HEADS, WIDTH))
    u, v = attention.content_bias[:, 0], attention.position_bias[:, 0]
    out = torch.zeros(B, length, HEADS, WIDTH, dtype=z.dtype)
    for b in range(B):
        for h in range(HEADS):
            for i in range(length):
                at = num_memory + i
                q = w_q[h] @ everything[b, at] + x_q[b, at, h]
                scores, keys = [], []
                for j in range(at + 1):
                    distance = at - j
                    if distance >= window:
                        continue
                    angles = [distance / 10_000 ** (2 * n / FEATURES) for n in range(FEATURES // 2)]
                    code = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=z.dtype)
                    r = w_r[h] @ (code if position_mask is None else code * position_mask)
                    k = w_k[h] @ everything[b, j] + x_k[b, j, h]
                    scores.append(((q + u[h]) @ k + (q + v[h]) @ r) / math.sqrt(WIDTH))
                    keys.append(j)
                for j, p in zip(keys, torch.stack(scores).softmax(dim=0), strict=True):
                    p = p if mask is None else p * mask[b, h, i, j]
                    out[b, i, h] += p * (w_v[h] @ everything[b, j] + x_v[b, j, h])
    return out.flatten(2) @ weight(attention.out).T + attention.out.bias


@pytest.mark.parametrize("weight_norm", [True, False])
@pytest.mark.parametrize("window", [None, 3, 1])
@pytest.mark.parametrize("num_memory", [0, M])
def test_it_is_the_formula(weight_norm, window, num_memory):
    attention = make(weight_norm=weight_norm, window=window)
    z, x, memory, injected = sample(num_memory=num_memory)
    mask = (torch.rand(B, HEADS, L, num_memory + L) < 0.7) / 0.7
    position_mask = (torch.rand(FEATURES) < 0.5) * 2.0
    prepared = attention.prepare(L, memory=memory, injected=injected, mask=position_mask)
    with torch.no_grad():
        found = attention(z, x, *prepared, mask)
        torch.testing.assert_close(found, loops(attention, z, x, memory, injected, mask, position_mask))
    assert (prepared[0] is None) == (num_memory == 0)


@torch.no_grad()
def test_nothing_is_dropped_or_injected_unless_it_is_given():
    attention, (z, x, memory, injected) = make(), sample()
    found = attention(z, x, *attention.prepare(L, memory=memory, injected=injected))
    torch.testing.assert_close(found, loops(attention, z, x, memory, injected))
    found = attention(z, None, *attention.prepare(L, memory=memory))
    torch.testing.assert_close(found, loops(attention, z, 0 * x, memory, 0 * injected))


@pytest.mark.parametrize("num_keys", [L, L + M])
def test_rel_shift_is_a_gather_by_distance(num_keys):
    by_distance = draw(B, HEADS, L, num_keys)
    queries, keys = torch.arange(num_keys - L, num_keys)[:, None], torch.arange(num_keys)
    distances = queries - keys
    index = (num_keys - 1 - distances).clamp(max=num_keys - 1).expand(B, HEADS, -1, -1)
    expected = by_distance.gather(3, index)
    is_past = distances >= 0
    assert torch.equal(rel_shift(by_distance)[..., is_past], expected[..., is_past])


def test_distances_are_encoded_by_sines_and_then_cosines_from_far_to_near():
    codes = encode_distances(4, 6, like=torch.zeros(1, dtype=torch.float64))
    for row, distance in enumerate([3, 2, 1, 0]):
        angles = [distance / 10_000 ** (2 * n / 6) for n in range(3)]
        expected = [*map(math.sin, angles), *map(math.cos, angles)]
        assert codes[row].tolist() == pytest.approx(expected, abs=1e-15)
    half = encode_distances(1000, 6, like=torch.zeros(1, dtype=torch.bfloat16))
    torch.testing.assert_close(half.float(), encode_distances(1000, 6, like=torch.zeros(1)), atol=4e-3, rtol=0)


@pytest.mark.parametrize("weight_norm", [True, False])
def test_its_double_backward_is_right(weight_norm):
    attention = RelativeAttention(features=2, num_heads=1, window=2, weight_norm=weight_norm).double()
    names, parameters = zip(*attention.named_parameters(), strict=True)
    parameters = [draw(*parameter.shape, requires_grad=True) for parameter in parameters]
    inputs = [draw(1, n, width, requires_grad=True) for n, width in ((2, 2), (2, 6), (1, 2), (1, 6))]

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, z, x, memory, injected):
            return self.attention(z, x, *self.attention.prepare(2, memory=memory, injected=injected))

    whole = Whole()

    def evaluate(*tensors):
        given = {f"attention.{name}": tensor for name, tensor in zip(names, tensors[4:], strict=True)}
        return torch.func.functional_call(whole, given, tensors[:4])

    assert torch.autograd.gradcheck(evaluate, (*inputs, *parameters))
    assert torch.autograd.gradgradcheck(evaluate, (*inputs, *parameters))


def test_gradients_of_what_is_prepared_reach_all_parameters_after_a_solve_without_gradients():
    attention, (z, x, memory, injected) = make(), sample()
    with cached_parameters(attention):
        prepared = attention.prepare(L, memory=memory, injected=injected)
        with torch.no_grad():
            attention(z, x, *prepared)
        found = attention(z, x, *prepared)
    expected = attention(z, x, *attention.prepare(L, memory=memory, injected=injected))
    parameters = list(attention.parameters())
    gradients = [torch.autograd.grad(out.square().sum(), parameters) for out in (found, expected)]
    torch.testing.assert_close(*gradients)
    assert all(gradient.abs().sum() > 0 for gradient in gradients[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 8, "num_heads": 3}, "multiple of num_heads"),
        ({"features": 9, "num_heads": 3}, "even"),
        ({"features": 8, "num_heads": 2, "window": 0}, "see itself"),
    ],
)
def test_impossible_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RelativeAttention(**options)


def test_a_memory_must_fit_what_was_injected_there():
    _, _, memory, injected = sample()
    with pytest.raises(ValueError, match="same positions"):
        make().prepare(L, memory=memory, injected=injected[:, 1:])
