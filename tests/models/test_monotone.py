import pytest
import torch
from torch.nn import functional as F

from steadeq import (
    GMRES,
    Implicit,
    Picard,
    Unrolled,
    fixed_point,
)
from steadeq._internal.trees import leaves, map_leaves
from steadeq.models import create
from steadeq.models.monotone import (
    MonotoneCell,
    MonotoneConv,
    MonotoneDEQ,
    MonotoneLinear,
    MonotoneMultiConv,
    norm_bound,
)

KINDS = ("dense", "conv", "multi")
SPLITTINGS = ("peaceman-rachford", "forward-backward")
SIZES = ((4, 4), (3, 5), (6, 1))
TIERS = (((2, 3), (4, 6)), ((2, 1, 3), (8, 4)), ((1, 2, 2), (4, 4)), ((2, 3), (2, 2)), ((2,), (3, 5)))
"""Channels of tiers and the size of the finest, down to a single pixel."""
EXACT = Implicit(GMRES(max_evals=200, tol=1e-12))


def make_operator(kind, *, gain=1.0, m=0.5, size=(4, 3)):
    """Return an operator in double precision, and the shape of a state: a list of shapes if it has tiers."""
    if kind == "dense":
        operator = MonotoneLinear(features=7, m=m).double()
        with torch.no_grad():
            operator.A.mul_(gain)
            operator.B.mul_(gain)
        return operator, (7,)
    if kind == "multi":
        return make_tiers((2, 3), (4, 2), gain=gain, m=m)
    operator = MonotoneConv(channels=2, size=size, m=m).double()
    with torch.no_grad():
        # A negative gain must not cost the margin.
        operator.gain_A.fill_(-gain)
        operator.gain_B.fill_(gain)
    return operator, (2, *size)


def make_tiers(channels, size, *, gain=1.0, m=0.5):
    operator = MonotoneMultiConv(channels=channels, size=size, m=m).double()
    with torch.no_grad():
        for sign, parameter in ((-1, operator.gain_A), (1, operator.gain_B), (-1, operator.gain_S)):
            parameter.copy_(sign * gain * torch.linspace(0.5, 1.0, len(parameter)))
    return operator, [(c, size[0] >> tier, size[1] >> tier) for tier, c in enumerate(channels)]


def to_state(matrix, shape):
    """Return the state that the rows of a matrix stand for."""
    if not isinstance(shape, list):
        return matrix.reshape(-1, *shape)
    parts = matrix.split([torch.Size(tier).numel() for tier in shape], dim=1)
    return tuple(part.reshape(-1, *tier) for part, tier in zip(parts, shape, strict=True))


def to_matrix(state):
    return torch.cat([tier.flatten(1) for tier in (state if isinstance(state, tuple) else (state,))], dim=1)


def dim_of(shape):
    return sum(torch.Size(tier).numel() for tier in (shape if isinstance(shape, list) else [shape]))


def random_state(batch, shape, *, scale=1.0):
    return to_state(scale * torch.randn(batch, dim_of(shape), dtype=torch.float64), shape)


def materialize(function, shape):
    """Return the matrix of a linear map of states."""
    return to_matrix(function(to_state(torch.eye(dim_of(shape), dtype=torch.float64), shape))).detach().T


def solve(operator, x, *, splitting="peaceman-rachford", alpha=None, max_evals=20_000, tol=1e-11, z0=None):
    cell = MonotoneCell(operator, splitting=splitting, alpha=alpha)
    with torch.no_grad():
        start = z0 if z0 is not None else map_leaves(torch.zeros_like, x)
        eq = fixed_point(cell, start, x, cell.prepare(), solver=Picard(max_evals=max_evals, tol=tol))
        return cell.equilibrium(eq.z), eq.stats


@torch.no_grad()
def distance(z, operator, x):
    """Return how far z is from ReLU(W z + x), relative to its size."""
    z, Wz, x = map(to_matrix, (z, operator(z), x))
    return ((z - torch.relu(Wz + x)).norm() / z.norm()).item()


@pytest.mark.parametrize("kind", KINDS)
def test_transpose_is_the_adjoint(kind):
    operator, shape = make_operator(kind)
    torch.testing.assert_close(materialize(operator.transpose, shape), materialize(operator, shape).T)


@pytest.mark.parametrize(("channels", "size"), TIERS)
def test_tiers_have_the_form_of_the_definition_and_nothing_flows_from_coarse_to_fine(channels, size):
    operator, shapes = make_tiers(channels, size, gain=2.0, m=0.3)
    starts = [dim_of(shapes[:tier]) for tier in range(len(shapes))]

    def assemble(kernels, gains, *, stride):
        """Return the matrix of convolutions that stay in their tiers, or with a stride go to the next."""
        matrix = torch.zeros(dim_of(shapes), dim_of(shapes), dtype=torch.float64)
        for tier, (kernel, gain) in enumerate(zip(kernels, gains, strict=True)):
            images = torch.eye(dim_of(shapes[tier]), dtype=torch.float64).reshape(-1, *shapes[tier])
            padded = F.pad(images, (1, 1, 1, 1), mode="circular")
            block = F.conv2d(padded, gain * kernel / kernel.norm(), stride=stride).flatten(1).T.detach()
            row, column = starts[tier + stride - 1], starts[tier]
            matrix[row : row + block.shape[0], column : column + block.shape[1]] = block
        return matrix

    A = assemble(operator.A, operator.gain_A, stride=1)
    S = assemble(operator.S, operator.gain_S, stride=2)
    B = assemble(operator.B, operator.gain_B, stride=1) - A.T @ S
    W = materialize(operator, shapes)
    identity = torch.eye(len(W), dtype=W.dtype)
    torch.testing.assert_close(W, (1 - 0.3) * identity - (A + S).T @ (A + S) + B - B.T)
    for start in starts:
        assert not W[:start, start:].any()


@pytest.mark.parametrize(("channels", "size"), TIERS)
def test_blocks_of_tiers_are_the_convolutions_and_their_inverse(channels, size):
    operator, shapes = make_tiers(channels, size, gain=3.0)
    W, blocks = materialize(operator, shapes), operator.blocks()
    torch.testing.assert_close(materialize(lambda v: operator.apply_blocks(blocks, v), shapes), W)
    for alpha in (0.05, 1.0, 20.0):
        inverse = materialize(lambda v, alpha=alpha: operator.inverse(v, alpha=alpha), shapes)
        identity = torch.eye(len(W), dtype=W.dtype)
        torch.testing.assert_close(inverse @ ((1 + alpha) * identity - alpha * W), identity, rtol=0, atol=1e-10)


@pytest.mark.parametrize("gain", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_margin_of_monotonicity_and_the_norm_bound_hold_for_any_weights(kind, gain):
    operator, shape = make_operator(kind, gain=gain, m=0.3)
    W = materialize(operator, shape)
    identity = torch.eye(len(W), dtype=W.dtype)
    assert torch.linalg.eigvalsh(identity - (W + W.T) / 2).min() >= 0.3 - 1e-10 * max(1, gain)
    norm = torch.linalg.matrix_norm(identity - W, ord=2)
    bound = norm_bound(operator.blocks())
    slack = len(W) ** (1 / 64) * 2**0.5 if kind == "multi" else 7 ** (1 / 64) * (1 + 1e-12)
    assert norm * (1 - 1e-12) <= bound <= norm * slack
    assert norm_bound(operator.blocks(), num_squarings=2) >= bound


@pytest.mark.parametrize(("kind", "size"), [("dense", (0, 0)), *(("conv", size) for size in SIZES)])
def test_the_inverse_is_that_of_the_materialized_operator(kind, size):
    operator, shape = make_operator(kind, gain=3.0, size=size)
    W = materialize(operator, shape)
    v = random_state(3, shape)
    for alpha in (0.05, 1.0, 20.0):
        expected = torch.linalg.solve((1 + alpha) * torch.eye(len(W), dtype=W.dtype) - alpha * W, to_matrix(v).T).T
        torch.testing.assert_close(to_matrix(operator.inverse(v, alpha=alpha)), expected)
    if kind == "conv":
        torch.testing.assert_close(operator.apply_blocks(operator.blocks(), v), operator(v))


@pytest.mark.parametrize("alpha", [None, 0.02, 1.0, 30.0])
@pytest.mark.parametrize("kind", KINDS)
def test_peaceman_rachford_converges_for_every_step_size_where_plain_iteration_diverges(kind, alpha):
    operator, shape = make_operator(kind, gain=4.0)
    x = random_state(4, shape)

    def plain_step(z, x):
        return to_state(torch.relu(to_matrix(operator(z)) + to_matrix(x)), shape)

    with torch.no_grad():
        plain = fixed_point(plain_step, x, x, solver=Picard(max_evals=200, tol=1e-6))
    assert not plain.stats.converged.any()
    z, stats = solve(operator, x, alpha=alpha)
    assert stats.converged.all()
    assert distance(z, operator, x) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_peaceman_rachford_contracts_everywhere(kind):
    operator, shape = make_operator(kind, gain=10.0)
    cell = MonotoneCell(operator)
    scale = torch.logspace(-6, 6, 13, dtype=torch.float64)[:, None]
    u, v, x = (random_state(13, shape, scale=scale) for _ in range(3))
    with torch.no_grad():
        shared = cell.prepare()
        before = to_matrix(u) - to_matrix(v)
        after = to_matrix(cell(u, x, shared)) - to_matrix(cell(v, x, shared))
    assert (after.norm(dim=1) < before.norm(dim=1)).all()


def test_the_default_step_follows_the_scale_of_the_weights():
    operator, shape = make_operator("conv", gain=40.0)
    x = torch.randn(8, *shape, dtype=torch.float64)
    _, followed = solve(operator, x, tol=1e-4)
    _, fixed = solve(operator, x, alpha=1.0, tol=1e-4)
    assert 3 * followed.num_evals.max() < fixed.num_evals.max()


@pytest.mark.parametrize("kind", KINDS)
def test_both_splittings_reach_the_equilibrium(kind):
    operator, shape = make_operator(kind, gain=2.0)
    x = random_state(4, shape, scale=10.0)
    states = {splitting: solve(operator, x, splitting=splitting) for splitting in SPLITTINGS}
    for z, stats in states.values():
        assert stats.converged.all()
        assert distance(z, operator, x) < 1e-6
    torch.testing.assert_close(states["peaceman-rachford"][0], states["forward-backward"][0], rtol=1e-7, atol=1e-7)


def small_model(*, kind="conv", splitting="peaceman-rachford", **options):
    options = {"solver": Picard(max_evals=2000, tol=1e-12), "adjoint": EXACT, **options}
    options |= {"tiers": (4, 5)} if kind == "multi" else {"kind": kind}
    return MonotoneDEQ(channels=6, image_size=4, num_classes=3, splitting=splitting, **options).double()


@pytest.mark.parametrize("splitting", SPLITTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_depend_on_the_iterate_is_done_once_per_solve(kind, splitting, monkeypatch):
    model = small_model(kind=kind, splitting=splitting)
    calls = []
    blocks = type(model.cell.operator).blocks
    monkeypatch.setattr(type(model.cell.operator), "blocks", lambda self: calls.append(1) or blocks(self))
    logits, eq = model.solve(torch.randn(8, 1, 4, 4, dtype=torch.float64))
    assert eq.stats.num_evals.min() > 3
    logits.sum().backward()
    assert len(calls) == 1


def test_a_cell_that_prepares_its_own_step_has_a_second_derivative():
    operator, shape = make_operator("dense")
    cell = MonotoneCell(operator, alpha=1.0)
    x = torch.randn(2, *shape, dtype=torch.float64, requires_grad=True)
    solver = Picard(max_evals=2000, tol=1e-13)
    results = []
    for adjoint in (EXACT, Unrolled()):
        u = fixed_point(cell, torch.zeros_like(x), x, solver=solver, adjoint=adjoint).z
        (slope,) = torch.autograd.grad(cell.equilibrium(u).pow(3).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(slope.square().sum(), [x, *operator.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        # "Single conv" of Winston and Kolter's Table 1 for CIFAR-10.
        ({"channels": 81}, 172_218),
        # "Multi-tier" and "multi-tier lg": 170,194 and 1,014,546, less the weights of the head for the border of one
        # pixel that their code holds at zero.
        ({"channels": 16, "tiers": (32, 60)}, 170_194 - 10 * 60 * (10**2 - 8**2)),
        ({"channels": 64, "tiers": (128, 128)}, 1_014_546 - 10 * 128 * (10**2 - 8**2)),
    ],
)
def test_the_classifier_has_the_published_number_of_parameters(options, count):
    with torch.device("meta"):
        model = MonotoneDEQ(image_channels=3, image_size=32, **options)
        preset = create("monotone/cifar10-multi")
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert sum(parameter.numel() for parameter in preset.parameters()) == 968_466


def test_the_finest_tier_is_an_equilibrium_by_itself_and_the_image_reaches_the_coarsest():
    model = small_model(kind="multi")
    x = torch.randn(2, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    logits, eq = model.solve(x)
    z = model.cell.equilibrium(eq.z)
    torch.testing.assert_close(logits, model.head(z[-1].flatten(1)))
    with torch.no_grad():
        injected = model.injection(x)
        Wz, *coarser = model.cell.operator(z)
        torch.testing.assert_close(z[0], torch.relu(Wz + injected), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(z[1:], tuple(map(torch.relu, coarser)), rtol=1e-8, atol=1e-8)
    fine, middle, coarse = (torch.autograd.grad(tier.sum(), x, retain_graph=True)[0].abs().sum() for tier in eq.z)
    assert min(fine, middle, coarse) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_the_state_keeps_its_precision(kind):
    model = MonotoneDEQ(channels=6, **({"tiers": (4,)} if kind == "multi" else {"kind": kind}))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, eq = model.solve(torch.randn(3, 1, 8, 8), solver=Picard(max_evals=30, tol=1e-2))
        loss = logits.float().square().sum()
    loss.backward()
    assert {tensor.dtype for tensor in leaves(eq.z)} == {block.real.dtype for block in eq.inputs[1].blocks}
    assert leaves(eq.z)[0].dtype == torch.float32
    assert eq.stats.converged.all()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("size", [(4, 5), (7, 4)])
def test_tiers_of_odd_images_are_refused(size):
    with pytest.raises(ValueError, match=f"size is {max(size)}; 2 tiers need a multiple of 2"):
        MonotoneMultiConv(channels=(2, 2), size=size)
