from dataclasses import replace

import pytest
import torch
from problems import PROBLEMS, affine

from steadeq import Anderson, Broyden, NewtonKrylov, Picard, Status, fixed_point
from steadeq._internal.trees import leaves

SOLVERS = {
    "picard": lambda tol: Picard(max_evals=3000, tol=tol),
    "anderson": lambda tol: Anderson(max_evals=100, tol=tol),
    "anderson_mixing": lambda tol: Anderson(max_evals=100, tol=tol, mixing=0.7),
    "broyden": lambda tol: Broyden(max_evals=100, tol=tol, memory=16),
    "newton_krylov": lambda tol: NewtonKrylov(max_evals=100, tol=tol),
}
# What a residual can reach in each precision, with room for the rounding of f itself.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 3e-6, torch.float16: 4e-3, torch.bfloat16: 3.2e-2}


def can_solve(solver, name, dtype):
    problem = PROBLEMS[name](torch.float64, 1)
    if solver == "newton_krylov":  # whose differences of f keep half of the digits
        return problem.condition * torch.finfo(dtype).eps ** 0.5 < 1
    return solver != "picard" or problem.radius < 1


SOLVABLE = [
    (solver, name, dtype)
    for solver in SOLVERS
    for name in PROBLEMS
    for dtype in TOLERANCES
    if can_solve(solver, name, dtype)
]


@pytest.mark.parametrize(("solver", "name", "dtype"), SOLVABLE, ids=str)
def test_every_sample_reaches_its_exact_solution(solver, name, dtype):
    problem, tol = PROBLEMS[name](dtype, 5), TOLERANCES[dtype]
    eq = fixed_point(problem.f, problem.z0, *problem.inputs, solver=SOLVERS[solver](tol))
    assert eq.stats.status.tolist() == [Status.CONVERGED] * 5
    assert eq.z.dtype == dtype
    assert (eq.stats.residual <= tol).all()
    # The error is the residual seen through (I - J)^-1, and no smaller than rounding allows.
    bound = 2 * problem.condition * (eq.stats.residual.double() + torch.finfo(dtype).eps)
    assert (problem.error(eq.z) <= bound).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("solver", "max_evals"), [("anderson", 26), ("broyden", 14)])
@pytest.mark.parametrize("name", [name for name, make in PROBLEMS.items() if make(torch.float64, 1).is_affine])
def test_six_dimensions_are_exhausted_whatever_their_spectrum(name, solver, max_evals, dtype):
    # Broyden has them all after 12 steps, windowed Anderson somewhat later; Picard needs up to 1800 evaluations.
    problem = PROBLEMS[name](dtype, 3)
    method = replace(SOLVERS[solver](TOLERANCES[dtype]), max_evals=max_evals)
    assert fixed_point(problem.f, problem.z0, *problem.inputs, solver=method).stats.converged.all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_picard_cannot_solve_the_expanding_rotation_and_says_so(dtype):
    problem = PROBLEMS["rotation"](dtype, 3)
    assert problem.radius == pytest.approx(1.2)
    picard = fixed_point(problem.f, problem.z0, *problem.inputs, solver=Picard(max_evals=100, tol=1e-3))
    assert picard.stats.status.tolist() == [Status.DIVERGED] * 3
    damped = fixed_point(problem.f, problem.z0, *problem.inputs, solver=Picard(max_evals=100, tol=1e-3, damping=0.5))
    assert damped.stats.converged.all()


# Structures: the six coordinates of a problem dealt out to leaves.
STRUCTURES = {
    "image": (lambda z: z.reshape(-1, 1, 2, 3), lambda s: s.reshape(s.shape[0], -1)),
    "tuple": (lambda z: (z[:, :2], z[:, 2:].reshape(-1, 2, 2)), lambda s: torch.cat([s[0], s[1].flatten(1)], 1)),
    "list": (lambda z: [z[:, :1], z[:, 1:]], lambda s: torch.cat(s, 1)),
    "nested": (
        lambda z: {"a": z[:, 0], "b": (z[:, 1:3], [z[:, 3:]])},
        lambda s: torch.cat([s["a"][:, None], s["b"][0], s["b"][1][0]], 1),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_structured_state_is_solved_like_its_matrix(solver, structure, dtype):
    problem, (deal, gather) = affine(dtype, 9), STRUCTURES[structure]
    method = SOLVERS[solver](TOLERANCES[dtype])
    plain = fixed_point(problem.f, problem.z0, *problem.inputs, solver=method)
    eq = fixed_point(
        lambda s, *inputs: deal(problem.f(gather(s), *inputs)), deal(problem.z0), *problem.inputs, solver=method
    )
    assert torch.equal(gather(eq.z), plain.z)
    assert torch.equal(eq.stats.residual, plain.stats.residual)
    assert torch.equal(eq.stats.num_evals, plain.stats.num_evals)
    assert torch.equal(eq.stats.status, plain.stats.status)


@pytest.mark.parametrize("solver", SOLVERS)
def test_leaves_of_different_dtypes_are_solved_together(solver):
    wide, narrow = affine(torch.float64, 3), affine(torch.bfloat16, 3)

    def f(z, *inputs):
        return {"wide": wide.f(z["wide"], inputs[0]), "narrow": narrow.f(z["narrow"], inputs[1])}

    z0 = {"wide": wide.z0, "narrow": narrow.z0}
    eq = fixed_point(f, z0, *wide.inputs, *narrow.inputs, solver=SOLVERS[solver](2e-2))
    assert eq.stats.converged.all()
    assert eq.stats.residual.dtype == torch.float64
    assert [leaf.dtype for leaf in leaves(eq.z)] == [torch.float64, torch.bfloat16]
    assert (wide.error(eq.z["wide"]) < 0.2).all()
    assert (narrow.error(eq.z["narrow"]) < 0.2).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_equilibrium_at_zero_that_is_reached_exactly_counts_as_solved(solver):
    # A nilpotent map: three applications annihilate every start, so that f is exactly zero at a point that is not.
    nilpotent = torch.tensor([[0.0, 1.0, -2.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    eq = fixed_point(lambda z: z @ nilpotent.T, torch.ones(2, 3, dtype=torch.float64), solver=SOLVERS[solver](1e-6))
    assert eq.stats.converged.all()
    assert (eq.z.abs() < 1e-20).all()
