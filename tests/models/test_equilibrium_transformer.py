"""Equilibria of modern Transformer blocks: by definition, causal, relative in their positions, and differentiable."""

import dataclasses

import pytest
import torch

from steadeq import DEQ, Anderson, Picard, frobenius_norm, jacobian_penalty, spectral_radius
from steadeq.lab import recipes
from steadeq.lab.serialization import differences
from steadeq.models import BlockCell, EquilibriumTransformer, Predictions, StackedTransformer, TransformerBlock
from steadeq.models.equilibrium_transformer import AbstractBlockConfig, Positions

TIGHT = Anderson(max_evals=100, tol=1e-13)
SMALL = {"features": 16, "num_heads": 2, "hidden_features": 24}
KINDS = {
    "language": {"vocab_size": 20, "cutoffs": (5,), "div_value": 2.0},
    "image": {"image_channels": 1, "patch_size": 2, "num_classes": 5},
    "grid": {"vocab_size": 7, "num_classes": 5},
}
each_kind = pytest.mark.parametrize("kind", KINDS)
each_norm = pytest.mark.parametrize("norm", ["pre", "post"])
each_model = pytest.mark.parametrize("model_class", [EquilibriumTransformer, StackedTransformer])


def make(kind, model_class=EquilibriumTransformer, *, seed=0, **fields):
    torch.manual_seed(seed)
    return model_class(kind=kind, **{**SMALL, **KINDS[kind], **fields})


def sample(kind, batch=3, *, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    if kind == "image":
        return torch.randn(batch, 1, 6, 8, generator=generator, dtype=dtype)
    return torch.randint(7, (batch, 5) if kind == "language" else (batch, 3, 4), generator=generator)


def as_tensor(output):
    return output.log_probabilities() if isinstance(output, Predictions) else output


def positions_of(shape, x, *, causal=False, base=100.0, head_features=8):
    return Positions.of_grid(shape, head_features=head_features, base=base, causal=causal, like=x)


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


# What a block and a cell compute


@each_norm
def test_a_block_is_its_definition(norm):
    block = TransformerBlock(**SMALL, norm=norm, residual_scale=0.3).double()
    x = draw(2, 5, 16)
    angles = torch.arange(5, dtype=torch.float64)[:, None] * 100 ** (-torch.arange(4, dtype=torch.float64) / 4)
    turns = torch.polar(torch.ones_like(angles), angles)

    def attend(x):
        heads = [part.unflatten(2, (2, 8)).transpose(1, 2) for part in block.attention.qkv(x).chunk(3, dim=2)]
        # A pair of features is a complex number, and the score the real part of a product.
        q, k = (torch.complex(*part.chunk(2, dim=-1)) * turns for part in heads[:2])
        scores = (q @ k.conj().mT).real / 8**0.5
        return block.attention.out((scores.softmax(dim=-1) @ heads[2]).transpose(1, 2).flatten(2))

    def feed(x):
        gate, value = block.feed.up(x).chunk(2, dim=-1)
        return block.feed.down(gate * torch.sigmoid(gate) * value)

    def normalize(x):
        return x / (x.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()

    if norm == "pre":
        y = x + 0.3 * attend(normalize(x))
        expected = y + 0.3 * feed(normalize(y))
    else:
        y = normalize(x + 0.3 * attend(x))
        expected = normalize(y + 0.3 * feed(y))
    torch.testing.assert_close(block(x, positions_of((5,), x)), expected)


@pytest.mark.parametrize("injection", ["add", "concat"])
def test_a_cell_is_its_definition_and_concatenation_begins_as_the_sum(injection):
    blocks = [TransformerBlock(**SMALL) for _ in range(2)]
    cell = BlockCell(blocks, features=16, injection=injection, relaxation=0.4).double()
    z, x = draw(2, 5, 16), draw(2, 5, 16)
    positions = positions_of((5,), x)
    image = cell.outer_norm(blocks[1](blocks[0](z + x, positions), positions))
    torch.testing.assert_close(cell(z, x, positions), z + 0.4 * (image - z))


@pytest.mark.parametrize(("shape", "causal"), [((5,), True), ((3, 4), False)])
@each_norm
def test_fused_and_written_out_attention_agree(norm, shape, causal):
    x = torch.randn(2, *shape, 16)
    outputs, gradients = [], []
    for attention in ("math", "fused"):
        torch.manual_seed(0)
        block = TransformerBlock(**SMALL, norm=norm, attention=attention)
        outputs.append(block(x, positions_of(shape, x, causal=causal)))
        gradients.append(torch.autograd.grad(outputs[-1].square().mean(), list(block.parameters())))
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-6)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)


# Positions


@pytest.mark.parametrize("shape", [(9,), (3, 5), (2, 3, 4)])
def test_scores_depend_on_differences_of_positions_only(shape):
    """All scores of a small grid reappear for the same grid anywhere in a larger one."""
    q, k = draw(1, 1, 1, 12), draw(1, 1, 1, 12)

    def scores(grid):
        positions = positions_of(grid, q, head_features=12)
        rotated = [positions.rotate(x.expand(-1, -1, len(positions.cos), -1))[0, 0] for x in (q, k)]
        return (rotated[0] @ rotated[1].T).reshape(*grid, *grid)

    small, large = scores(shape), scores(tuple(size + 3 for size in shape))
    for shift in (0, 1, 3):
        window = tuple(slice(shift, shift + size) for size in shape)
        torch.testing.assert_close(large[window * 2], small)
    # And they do depend on these.
    flat = small.flatten(len(shape)).flatten(0, len(shape) - 1)
    assert (flat[0] - flat[0, 0]).abs()[1:].min() > 1e-6


def test_rotations_keep_the_length_of_vectors_and_every_axis_has_its_own():
    x = draw(1, 1, 12, 8)
    positions = positions_of((3, 4), x)
    torch.testing.assert_close(positions.rotate(x).norm(dim=-1), x.norm(dim=-1))
    angles = torch.atan2(positions.sin, positions.cos).reshape(3, 4, 4)
    # Pairs 0 and 2 turn along rows, 1 and 3 along columns.
    torch.testing.assert_close(angles[..., 0::2], angles[:, :1, 0::2].expand(3, 4, 2))
    torch.testing.assert_close(angles[..., 1::2], angles[:1, :, 1::2].expand(3, 4, 2))
    assert angles[1, 0, 0] == angles[0, 1, 1] == 1


def test_without_positions_a_permuted_grid_has_the_permuted_answer():
    x = sample("grid")
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    permuted = x.flatten(1)[:, order].reshape(x.shape)
    for base, is_same in ((None, True), (100.0, False)):
        model = make("grid", rotary_base=base).double()
        with torch.no_grad():
            answer, other = (model(tokens, solver=TIGHT).flatten(2) for tokens in (x, permuted))
        assert torch.allclose(answer[:, :, order], other, rtol=0, atol=1e-9) == is_same


def test_a_string_and_a_grid_of_one_row_have_axes_of_their_own():
    model = make("grid").double()
    x = sample("grid")
    assert model(x).shape == (3, 5, 3, 4)
    assert model(x.flatten(1)).shape == (3, 5, 12)
    with pytest.raises(ValueError, match=r"^A head has 2 features, but a grid of 2 axes"):
        make("grid", num_heads=8)(x)


# Causality


@each_norm
@pytest.mark.parametrize("attention", ["math", "fused"])
def test_a_later_token_changes_nothing_before_it_at_any_evaluation(norm, attention):
    model = make("language", norm=norm, attention=attention, num_blocks=2)
    tokens = sample("language", 1)
    changed = tokens.clone()
    changed[:, 3] = 19
    with torch.no_grad():
        states, others = model.encode(tokens), model.encode(changed)
        z, other = states[0], others[0]
        for _ in range(6):
            z, other = model.layer.cell(z, *states[1]), model.layer.cell(other, *others[1])
            assert torch.equal(z[:, :3], other[:, :3])
            assert not torch.equal(z[:, 3:], other[:, 3:])


@pytest.mark.parametrize("kind", ["image", "grid"])
def test_images_and_grids_see_all_of_themselves(kind):
    model = make(kind).double()
    z0, (x, positions) = model.encode(sample(kind, 1))
    x = x.detach().requires_grad_()
    z = model.layer.cell(z0, x, positions)
    (gradient,) = torch.autograd.grad(z.flatten(1, -2)[:, 0].square().sum(), x)
    assert (gradient.flatten(1, -2).abs().sum(dim=(0, 2)) > 0).all()


# Solves


@each_kind
@each_norm
def test_a_fresh_model_of_default_sizes_converges_from_zero_and_is_a_contraction(kind, norm):
    torch.manual_seed(0)
    fields = KINDS[kind] | ({} if kind == "image" else {"vocab_size": 50})
    model = EquilibriumTransformer(kind=kind, norm=norm, **fields)
    with torch.no_grad():
        _, eq = model.solve(sample(kind, dtype=torch.float32))
    assert eq.stats.converged.all()
    radius = spectral_radius(eq)
    assert (radius.value + radius.error < 1).all()


def test_without_an_outer_norm_the_skips_of_a_pre_norm_block_leave_a_radius_of_one():
    """J is the identity plus what the branches add, so that the mean of its squared singular values is about one."""
    norms = []
    for outer_norm in (True, False):
        model = make("grid", outer_norm=outer_norm)
        _, eq = model.solve(sample("grid"), solver=Picard(max_evals=8, tol=0))
        norms.append(frobenius_norm(eq).value / eq.z[0].numel() ** 0.5)
    assert (norms[0] < 0.6).all()
    assert (norms[1] > 0.9).all()


# The penalty


def test_the_penalty_of_fused_attention_is_refused_unless_it_takes_differences():
    model = make("language", attention="fused")
    _, eq = model.solve(sample("language"))
    with pytest.raises(RuntimeError, match="scaled_dot_product_attention") as refusal:
        jacobian_penalty(eq)
    assert "\n" not in str(refusal.value)
    penalty = jacobian_penalty(eq, num_probes=50, estimator="difference", generator=torch.Generator().manual_seed(0))
    penalty.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.layer.cell.parameters())
    truth = (frobenius_norm(eq, num_probes=50).value.square() / eq.z[0].numel()).mean()
    assert penalty.item() == pytest.approx(float(truth), rel=0.1)


# Sizes, files, precision


@each_kind
def test_the_twin_has_depth_times_the_parameters_of_the_block_and_the_same_head(kind):
    twins = {depth: make(kind, StackedTransformer, depth=depth) for depth in (1, 4)}
    model = make(kind)
    block, head = (sum(p.numel() for p in part.parameters()) for part in (model.layer.cell.blocks[0], model.head))
    assert block == 4 * 16**2 + 3 * 16 * 24 + 2 * 16
    for depth, twin in twins.items():
        assert sum(p.numel() for p in twin.parameters()) == head + depth * block
    weights = [p for block in twins[4].blocks for p in block.parameters()]
    assert len({p.data_ptr() for p in weights}) == len(weights)


@each_kind
def test_a_stack_of_one_block_is_one_evaluation_from_zero_without_the_outer_norm(kind):
    model = make(kind, outer_norm=False)
    twin = make(kind, StackedTransformer, depth=1)
    with torch.no_grad():
        x = sample(kind, dtype=torch.float32)
        torch.testing.assert_close(as_tensor(twin(x)), as_tensor(model.unroll(x, 1)[0]))


@each_kind
@pytest.mark.parametrize(("norm", "attention"), [("pre", "math"), ("post", "fused")])
def test_the_state_keeps_single_precision_under_autocast(kind, norm, attention):
    model = make(kind, norm=norm, attention=attention)
    x = sample(kind, dtype=torch.float32)
    exact, _ = model.solve(x)
    with torch.autocast("cpu", torch.bfloat16):
        z0, inputs = model.encode(x)
        assert model.layer.cell(z0, *inputs).dtype == torch.float32
        output, eq = model.solve(x)
    assert eq.z.dtype == torch.float32
    torch.testing.assert_close(as_tensor(output).float(), as_tensor(exact), rtol=0, atol=0.1)
    as_tensor(output).float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


# What torch says about itself while it compiles.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch")
@pytest.mark.slow
@pytest.mark.parametrize("attention", ["math", "fused"])
def test_a_compiled_cell_has_the_equilibrium_of_the_cell(attention):
    model = make("grid", attention=attention)
    z0, inputs = model.encode(sample("grid"))
    states = [
        DEQ(model.layer.cell, solver=Anderson(max_evals=40, tol=1e-6), compile=is_compiled).solve(*inputs, z0=z0).z
        for is_compiled in (False, True)
    ]
    torch.testing.assert_close(*states, rtol=0, atol=1e-4)


# Refusals


@each_model
@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("image", {"vocab_size": 9}, "^vocab_size is 9, but images have no tokens"),
        ("grid", {"vocab_size": None}, "^vocab_size is missing; kind 'grid'"),
        ("image", {"image_size": 0}, "^image_size is 0"),
        ("image", {"image_size": 7}, r"^image_size is 7; it must be a multiple of patch_size \(2\)"),
        ("image", {"features": 18}, "^features is 18; it must be a multiple of twice num_heads"),
        ("language", {"cutoffs": (30,)}, r"^cutoffs is \(30,\)"),
    ],
)
def test_bad_configs_are_refused_by_name(model_class, kind, fields, message):
    with pytest.raises(ValueError, match=message):
        model_class(**{"kind": kind, **SMALL, **KINDS[kind], **fields})


def test_a_step_beyond_the_image_of_the_cell_is_refused():
    with pytest.raises(ValueError, match=r"^relaxation is 1\.5"):
        make("grid", relaxation=1.5)


def test_images_that_patches_do_not_cover_are_refused():
    with pytest.raises(
        ValueError, match=r"^The images are \(6, 7\) pixels; both must be multiples of patch_size \(2\)"
    ):
        make("image")(torch.randn(1, 1, 6, 7))
    with pytest.raises(ValueError, match=r"^The images are \(6, 8\) pixels; height and width must be image_size \(8\)"):
        make("image", image_size=8)(torch.randn(1, 1, 6, 8))


def test_places_that_are_learned_tell_patches_apart_where_distances_do_not():
    x = torch.zeros(1, 1, 8, 8)
    for image_size, is_same in ((None, True), (8, False)):
        z = make("image", image_size=image_size).encode(x)[1][0].flatten(1, 2)
        assert torch.equal(z, z[:, :1].expand_as(z)) == is_same


# Recipes


@pytest.mark.parametrize(
    ("plain", "regularized", "stacked"),
    [
        ("digits-vit", "digits-vit-jr", "digits-stacked-vit"),
        ("cifar10-vit-cpu", "cifar10-vit-cpu-jr", "cifar10-stacked-vit-cpu"),
        ("addition", "addition-jr", "addition-stacked"),
        ("wikitext2-modern-cpu", "wikitext2-modern-jr-cpu", "wikitext2-stacked-modern-cpu"),
    ],
)
def test_recipes_compare_the_same_model_with_a_penalty_and_with_blocks_of_the_same_sizes(plain, regularized, stacked):
    before, after, twin = (recipes.get(name).build() for name in (plain, regularized, stacked))
    changed = {field.split(".")[0] for field, _, _ in differences(before, after)}
    has_smaller_budget = plain != "addition"
    assert changed == {"recipe", "regularizer"} | ({"solver", "adjoint"} if has_smaller_budget else set())
    assert (after.solver.max_evals < before.solver.max_evals) == has_smaller_budget
    for field in dataclasses.fields(AbstractBlockConfig):
        assert getattr(twin.model, field.name) == getattr(before.model, field.name), field.name
    assert before.model.attention == "math"
