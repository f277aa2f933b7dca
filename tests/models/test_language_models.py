"""Language models: causal, with a memory that makes segments one text, trained by all kinds of gradients."""

import math

import pytest
import torch
from torch import nn

from steadeq import GMRES, Anderson, Broyden, Implicit, Picard, models
from steadeq.models import DEQTransformerLM, EquilibriumTransformer, TiedTransformer, TransformerXL
from steadeq.nn import WeightNormLinear

COUNTS = {
    # The paper's 98 and 110 million; the official code counts what embedding and softmax share, 159,600 entries, twice.
    "deq-transformer/wt103": 97_691_888,
    "deq-transformer/wt103-jr": 97_691_888,
    "deq-transformer/wt103-pre": 97_691_888,
    "deq-transformer/wt103-pre-jr": 97_691_888,
    "tied-transformer/wt103": 97_691_888,
    "transformer-xl/wt103": 109_989_673,
    "deq-transformer/wt2-cpu": 1_034_480,
    "tied-transformer/wt2-cpu": 1_034_480,
    "transformer-xl/wt2-cpu": 1_034_508,
}
KINDS = ["deq", "tied", "xl"]
NORMS = ["post", "pre", "pre-textbook"]
VOCAB_SIZE, FEATURES, B, L = 20, 8, 3, 8
TIGHT = Anderson(max_evals=200, tol=1e-12)
EXACT = Implicit(GMRES(max_evals=100, tol=1e-12, memory=100))


def make(kind="deq", **options):
    options = {
        "vocab_size": VOCAB_SIZE,
        "features": FEATURES,
        "num_heads": 2,
        "hidden_features": 12,
        "memory_length": L,
        "std": 0.5,
        **options,
    }
    if kind == "xl":
        return TransformerXL(num_layers=3, **options).double()
    if kind == "tied":
        return TiedTransformer(**{"depth": 40, **options}).double()
    return DEQTransformerLM(solver=TIGHT, adjoint=EXACT, **options).double()


def make_tame(kind="deq", **options):
    """Return a model whose equilibrium is easy to find, as what is injected outweighs the state."""
    model = make(kind, **options)
    cell = (model.model if kind == "tied" else model).cell
    with torch.no_grad():
        for linear in (cell.attention.qkv, cell.attention.position, cell.linear1, cell.linear2):
            linear.g.mul_(0.3)
        cell.attention.out.g.mul_(20)
    return model


def draw(*shape):
    return torch.randint(VOCAB_SIZE, shape)


def read(model, tokens, carry=None):
    """Return predictions, and insist on a converged solve where there is one."""
    if not isinstance(model, DEQTransformerLM):
        return model(tokens, carry)
    predictions, eq = model.solve(tokens, carry)
    assert eq.stats.converged.all()
    return predictions


def read_in_parts(model, tokens, lengths):
    carry, parts = None, []
    for part in tokens.split(lengths, dim=1):
        predictions = read(model, part, carry)
        carry = predictions.carry
        parts.append(predictions.log_probabilities())
    return torch.cat(parts, dim=1)


def embedded(model, tokens, carry, **how):
    """Return predictions and the token vectors that they were made from."""
    caught = []
    softmax = (model.model if isinstance(model, TiedTransformer) else model).softmax
    hook = softmax.embedding.register_forward_hook(lambda module, inputs, output: caught.append(output))
    predictions = model(tokens, carry, **how)
    hook.remove()
    return predictions, caught[0]


def gradients_of(loss, model):
    return torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, materialize_grads=True)


# Presets


def test_presets_have_their_number_of_parameters():
    with torch.device("meta"):
        built = {name: models.create(name) for name in models.available() if "transformer" in name}
    assert {name: sum(p.numel() for p in model.parameters()) for name, model in built.items()} == COUNTS


def test_without_weight_norm_linear_maps_begin_as_in_the_official_code():
    model = DEQTransformerLM(vocab_size=50, features=64, num_heads=4, hidden_features=256, weight_norm=False)
    linear = [part for part in model.cell.modules() if isinstance(part, nn.Linear)]
    assert len(linear) == 5
    for part in linear:
        assert part.weight.std().item() == pytest.approx(0.01, rel=0.05)
        assert part.bias is None or not part.bias.any()


@pytest.mark.parametrize("name", ["wt103", "wt2-cpu"])
def test_twins_differ_in_nothing_but_the_depth_and_baselines_read_the_same_tokens(name):
    deq, tied, baseline = (
        models.preset(f"{kind}/{name}") for kind in ("deq-transformer", "tied-transformer", "transformer-xl")
    )
    assert DEQTransformerLM.Config.part_of(tied) == deq
    assert {*vars(tied)} - {*vars(deq)} == {"depth"}
    for field in ("vocab_size", "cutoffs", "div_value", "memory_length"):
        assert getattr(baseline, field) == getattr(deq, field)


# Memory


class TestMemory:
    @pytest.mark.parametrize("window", [None, 4])
    @pytest.mark.parametrize(("kind", "norm"), [("deq", "post"), ("deq", "pre"), *(("xl", norm) for norm in NORMS)])
    def test_segments_read_one_after_another_are_one_text(self, kind, norm, window):
        # States in the memory saw all that they would see in one text, so a window's worth of them is enough at any
        # depth. The second part is shorter than the memory, which has to keep some of the first.
        options = {"norm": norm, "window": window, "memory_length": L if window is None else window - 1}
        model = make(kind, **options) if kind == "xl" else make_tame(kind, **options)
        tokens = draw(B, L)
        with torch.no_grad():
            whole = read(model, tokens).log_probabilities()
            parts = read_in_parts(model, tokens, [4, 1, 3])
        torch.testing.assert_close(parts, whole, atol=1e-8 if kind == "deq" else 1e-12, rtol=0)

    def test_at_a_finite_depth_the_tied_model_is_one_text_only_near_its_equilibrium(self):
        # The memory holds final states, where one long text would show the states of each depth.
        tokens = draw(B, L)
        differences = []
        for depth in (3, 40):
            torch.manual_seed(0)
            model = make_tame("tied", depth=depth)
            with torch.no_grad():
                whole, parts = read(model, tokens).log_probabilities(), read_in_parts(model, tokens, [4, 4])
            differences.append((whole - parts).abs().max())
        assert differences[0] > 1e-5
        assert differences[1] < 1e-10

    @pytest.mark.parametrize("kind", KINDS)
    def test_it_grows_to_its_length_and_has_no_graph(self, kind):
        model = make(kind, memory_length=7)
        carry, lengths = None, []
        for _ in range(4):
            carry = model(draw(B, 3), carry).carry
            lengths.append({part.shape[1] for part in carry})
            assert not any(part.requires_grad for part in carry)
        assert lengths == [{3}, {6}, {7}, {7}]
        assert make(kind, memory_length=0)(draw(B, L)).carry is None
        widths = [part.shape[2] for part in carry]
        assert widths == ([FEATURES] * 3 if kind == "xl" else [FEATURES, 3 * FEATURES])

    def test_of_a_deq_it_is_the_last_equilibria_and_what_was_injected_there(self):
        model = make_tame(memory_length=5)
        tokens = draw(B, L)
        predictions, eq = model.solve(tokens)
        states, injected = predictions.carry
        assert torch.equal(states, eq.z[:, -5:])
        torch.testing.assert_close(injected, model.injection(model.softmax.embedding(tokens))[:, -5:])

    def test_one_of_another_depth_or_batch_is_refused(self):
        model = make("deq")
        carry = model(draw(2, L)).carry
        with pytest.raises(ValueError, match=r"carry has 2 parts.*each of 3 layers"):
            make("xl")(draw(2, L), carry)
        with pytest.raises(ValueError, match="batch of the state"):
            model(draw(B, L), carry)


# Causality


class TestCausality:
    @pytest.mark.parametrize(
        ("kind", "how"),
        [
            ("deq", {}),
            ("deq", {"solver": Anderson(max_evals=3, tol=0)}),
            ("deq", {"solver": Anderson(max_evals=3, tol=0), "adjoint": Implicit(GMRES(max_evals=3, tol=0))}),
            ("tied", {}),
            ("xl", {}),
        ],
        ids=["converged", "stopped early", "both solves stopped early", "tied", "explicit"],
    )
    @pytest.mark.parametrize("norm", ["post", "pre"])
    def test_no_gradient_reaches_a_later_token(self, kind, how, norm):
        model = make(kind, norm=norm)
        carry = read(model, draw(B, 4)).carry
        predictions, vectors = embedded(model, draw(B, L), carry, **how)
        for i in range(L):
            loss = (predictions.hidden[:, i] * torch.arange(FEATURES)).sum()
            (gradient,) = torch.autograd.grad(loss, vectors, retain_graph=True)
            reached = gradient.abs().sum(dim=(0, 2))
            # The adjoint system is block triangular, however far it and the forward solve got.
            assert (reached[i + 1 :] == 0).all()
            assert (reached[: i + 1] > 0).all()


@pytest.mark.parametrize("method", [Anderson, Broyden])
@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_with_weights_from_prefixes_no_state_changes_with_later_tokens_by_a_bit(method, norm):
    model = make(norm=norm).float()
    carry = model(draw(B, L)).carry
    tokens, i = draw(B, L), 4
    changed = torch.cat([tokens[:, :i], (tokens[:, i:] + 7) % VOCAB_SIZE], dim=1)
    for max_evals, tol in ((2, 0), (3, 1e-2), (6, 1e-2), (7, 0), (12, 1e-2), (12, 0)):
        solver = method(max_evals=max_evals, tol=tol, causal=True)
        one, two = (model.solve(w, carry, solver=solver)[1].z for w in (tokens, changed))
        assert torch.equal(one[:, :i], two[:, :i]), solver
        assert not torch.equal(one[:, i:], two[:, i:]), solver


def test_language_models_solve_with_weights_from_prefixes_unless_told_otherwise():
    sizes = {"vocab_size": VOCAB_SIZE, "features": FEATURES, "hidden_features": 12}
    assert DEQTransformerLM(num_heads=2, **sizes).layer.solver.causal
    assert EquilibriumTransformer(kind="language", **sizes).layer.solver.causal
    assert not EquilibriumTransformer(kind="grid", num_classes=3, **sizes).layer.solver.causal
    assert EquilibriumTransformer(kind="language", solver=Picard(), **sizes).layer.solver == Picard()


# Training


@pytest.mark.parametrize(
    ("kind", "norm", "weight_norm"),
    [("deq", "pre-textbook", False), *((kind, "pre", weight_norm) for kind in KINDS for weight_norm in (True, False))],
)
def test_all_parameters_get_gradients(kind, norm, weight_norm):
    model = make(kind, norm=norm, weight_norm=weight_norm, cutoffs=(5, 12), div_value=2, dropout=0.1)
    how = {"solver": Anderson(max_evals=8)} if kind == "deq" else {}
    tokens = torch.arange(24).reshape(3, 8) % VOCAB_SIZE
    carry = model(tokens, **how).carry
    predictions = model(tokens, carry, **how)
    predictions.losses(tokens.roll(-1, 1)).mean().backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not 0 < p.grad.abs().sum() < math.inf]
    assert not without
    assert any(isinstance(module, WeightNormLinear) for module in model.modules()) == weight_norm


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_deep_enough_the_tied_model_has_the_output_and_the_gradients_of_the_equilibrium(norm):
    model = make_tame(norm=norm, dropout=0.2, attention_dropout=0.1)
    tokens, following = draw(B, L), draw(B, L)
    tied = make("tied", norm=norm, dropout=0.2, attention_dropout=0.1, depth=150)
    tied.model.load_state_dict(model.state_dict())
    carry = model(draw(B, 5)).carry
    losses, gradients = [], []
    for twin in (model, tied):
        torch.manual_seed(1)  # for the same masks
        losses.append(read(twin, tokens, carry).losses(following).mean())
        gradients.append(gradients_of(losses[-1], twin))
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=1e-6)


def test_weights_are_normalized_once_for_all_uses(monkeypatch):
    calls = []
    plain = WeightNormLinear.compute
    monkeypatch.setattr(WeightNormLinear, "compute", lambda self: (calls.append(self), plain(self))[1])
    for kind in ("tied", "xl"):
        model = make(kind, weight_norm=True)
        carry = model(draw(B, L)).carry
        calls.clear()
        model(draw(B, L), carry)
        normalized = sum(isinstance(module, WeightNormLinear) for module in model.modules())
        # Before the first application of a tied cell, two are needed for the memory and for the positions.
        assert len(calls) == normalized + (2 if kind == "tied" else 0)


# Dropout


class TestDropout:
    def test_masks_are_the_same_for_all_evaluations_of_a_solve_and_fresh_for_the_next(self):
        model = make(features=64, dropout=0.5, attention_dropout=0.5)
        carry = model.eval()(draw(B, 5)).carry
        model.train()
        seen = []
        model.cell.register_forward_hook(lambda module, inputs, output: seen.append(inputs))
        tokens = draw(B, L)
        for _ in range(2):
            predictions = model(tokens, carry, solver=Anderson(max_evals=4, tol=0))
            predictions.losses(tokens).mean().backward()
        first, second = seen[: len(seen) // 2], seen[len(seen) // 2 :]
        assert len(first) == len(second) >= 5
        for solve in (first, second):
            assert all(torch.equal(a, b) for inputs in solve for a, b in zip(inputs[4], solve[0][4], strict=True))
            assert all(inputs[3] is solve[0][3] for inputs in solve)
        assert not any(torch.equal(a, b) for a, b in zip(first[0][4], second[0][4], strict=True))
        assert not torch.equal(first[0][3].projected, second[0][3].projected)
        # What is injected, after dropout of the token vectors.
        assert not torch.equal(first[0][1], second[0][1])

    @pytest.mark.parametrize("options", [{"dropout": 0.5}, {"attention_dropout": 0.5}])
    @pytest.mark.parametrize("kind", KINDS)
    def test_training_has_it_and_evaluation_does_not(self, kind, options):
        model, tokens = make(kind, **options), draw(B, L)
        outputs = [model(tokens).hidden for _ in range(2)]
        assert not torch.allclose(*outputs)
        model.eval()
        outputs = [model(tokens).hidden for _ in range(2)]
        assert torch.equal(*outputs)

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_same_features_are_dropped_at_all_positions(self, kind):
        is_zero = make(kind, dropout=0.5)(draw(B, L)).hidden == 0
        assert is_zero.any()
        assert torch.equal(is_zero.all(dim=1), is_zero.any(dim=1))

    def test_each_layer_has_masks_of_its_own(self):
        model = make("xl", dropout=0.5, attention_dropout=0.5)
        seen = []
        for layer in model.layers:
            layer.register_forward_hook(lambda module, inputs, output: seen.append(inputs[4]))
        model(draw(B, L))
        assert not any(torch.equal(a, b) for a, b in zip(seen[0], seen[1], strict=True))


# The Jacobian


# What is kept, and what is refused


def test_a_tied_model_has_the_parameters_of_a_deq_and_begins_as_one():
    torch.manual_seed(0)
    model = make(cutoffs=(5, 12), div_value=2)
    torch.manual_seed(0)
    twin = make("tied", cutoffs=(5, 12), div_value=2)
    ours = {f"model.{name}": value for name, value in model.state_dict().items()}
    theirs = twin.state_dict()
    assert list(theirs) == list(ours)
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)
    assert twin.model.config == model.config


def test_a_tied_model_is_its_deq_unrolled():
    model = make("tied", depth=3)
    tokens, carry = draw(B, L), model(draw(B, 5)).carry
    unrolled, eq = model.model.unroll(tokens, 3, carry)
    predictions = model(tokens, carry)
    assert torch.equal(predictions.hidden, unrolled.hidden)
    assert all(torch.equal(a, b) for a, b in zip(predictions.carry, unrolled.carry, strict=True))
    assert torch.equal(eq.z, unrolled.hidden)
    assert eq.stats.num_evals.tolist() == [3] * B


def test_a_state_by_itself_is_decoded_without_anything_to_carry():
    model = make()
    predictions, eq = model.solve(draw(B, L))
    alone = model.decode(eq.z)
    assert torch.equal(alone.hidden, predictions.hidden)
    assert alone.carry is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 1.0}, r"^dropout is 1.0.*\[0, 1\)"),
        ({"num_heads": 3}, "multiple of num_heads"),
        ({"window": 0}, "window is 0"),
        ({"head_features": 0}, "head_features is 0"),
        ({"features": 7, "num_heads": 1}, "features is 7"),
        ({"div_value": 0.5}, "div_value is 0.5"),
        ({"cutoffs": (VOCAB_SIZE,)}, "cutoffs"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_a_model_needs_some_depth():
    with pytest.raises(ValueError, match="depth is 0"):
        make().unroll(draw(B, L), 0)
