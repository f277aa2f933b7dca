"""The solvers on other people's problems: what they reach, next to peers, and whether what they return is true."""

import functools
import json
import math
from pathlib import Path

import pytest
import torch
from peer_nets import BUDGETS, NETS, num_solved
from peer_problems import PEER_PROBLEMS, num_evals_to_reach

from steadeq import Anderson, Broyden, NewtonKrylov, Picard, Status, fixed_point

RECORD = json.loads(
    (Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "reach.json").read_text(encoding="utf-8")
)
"""Evaluations of each peer on each problem, and what it solves of the nets, as benchmarks/reach.py found them."""

BUDGET = 300
"""The most evaluations; few problems need more, and those that are not solved cost all of it."""

SOLVERS = {
    "Picard": Picard,
    "Anderson": Anderson,
    "Anderson 11": functools.partial(Anderson, memory=11),
    "Broyden": Broyden,
    "NewtonKrylov": NewtonKrylov,
}

PAIRS = (
    ("Anderson", "QR-Anderson 5"),
    ("Anderson 11", "QR-Anderson 10"),
    ("Broyden", "scipy broyden1"),
    ("NewtonKrylov", "dense Newton"),
)
"""Each kind of method, and who does it best elsewhere."""

TWINS = (("Broyden", "scipy broyden1, no line search"), ("Broyden", "torchdeq broyden"))
"""The same method by others. Its paths agree for about a hundred evaluations; beyond that rounding decides."""

SOME_NETS = [
    net
    for net in NETS
    if net[:2]
    in (("tanh", 1.2), ("tanh", 3.0), ("relu", 1.2), ("MLP+LN", 5.0), ("residual", 5.0), ("Transformer", 2.0))
]


@functools.cache
def num_evals_of(name):
    """Return the evaluations of a solver on each problem that has a solution, None where it does not get there."""
    # Below every criterion, so that a solve does not end before the criterion is met.
    solver = SOLVERS[name](max_evals=BUDGET, tol=1e-14)
    return {
        problem.name: num_evals_to_reach(lambda f, z0: fixed_point(f, z0, solver=solver), problem, BUDGET)
        for problem in PEER_PROBLEMS
        if problem.has_solution
    }


def num_evals_of_peer(name):
    # The steps of a dense Newton method cost D + 1 evaluations, which is not held against it.
    limit = math.inf if name == "dense Newton" else BUDGET
    return {
        key: count if count is not None and count <= limit else None for key, count in RECORD["problems"][name].items()
    }


def test_every_problem_that_has_a_solution_is_in_the_record_of_the_peers():
    names = {problem.name for problem in PEER_PROBLEMS if problem.has_solution}
    assert len(names) == sum(problem.has_solution for problem in PEER_PROBLEMS) >= 100
    for counts in RECORD["problems"].values():
        assert set(counts) == names


@pytest.mark.parametrize(("name", "peer"), PAIRS)
def test_reach_is_at_least_that_of_the_peer(name, peer):
    found, others = num_evals_of(name), num_evals_of_peer(peer)
    missed = [key for key in found if found[key] is None and others[key] is not None]
    gained = [key for key in found if found[key] is not None and others[key] is None]
    # The peer's counts were recorded on another processor; on a few chaotic problems rounding decides.
    assert len(missed) <= len(gained) + 1, f"missed: {missed}; gained: {gained}"


@pytest.mark.parametrize(("name", "peer"), PAIRS)
def test_evaluations_are_within_five_percent_of_the_peer(name, peer):
    found, others = num_evals_of(name), num_evals_of_peer(peer)
    shared = [key for key in found if found[key] is not None and others[key] is not None]
    assert len(shared) > 80
    slower = {key: (found[key], others[key]) for key in shared if found[key] > 1.3 * others[key] + 2}
    assert sum(found[key] for key in shared) <= 1.05 * sum(others[key] for key in shared), slower


@pytest.mark.parametrize(("name", "peer"), TWINS)
def test_the_same_method_takes_the_same_evaluations(name, peer):
    found, others = num_evals_of(name), num_evals_of_peer(peer)
    soon = [key for key, count in others.items() if count is not None and count <= 100]
    # On this one f has flat parts, where the two fall out of step at once.
    soon.remove("constant increments")
    assert not [key for key in soon if found[key] is None]
    # Some of them are chaotic, so that the sum depends on the processor: up to 1.08 times as many were seen.
    assert sum(found[key] for key in soon) <= 1.1 * sum(others[key] for key in soon)


@pytest.mark.parametrize(("name", "peer"), [("Anderson", "torchdeq anderson"), ("Broyden", "torchdeq broyden")])
@pytest.mark.parametrize(("kind", "radius", "tol"), SOME_NETS)
def test_as_many_samples_of_nets_are_solved_as_by_the_peer(kind, radius, tol, name, peer):
    solver = SOLVERS[name](max_evals=max(BUDGETS), tol=tol)
    found = num_solved(lambda f, z0: fixed_point(f, z0, solver=solver, compact=False), kind, radius, tol)
    rows = {(row["net"], row["radius"], row["contender"]): row["num_solved"] for row in RECORD["nets"]}
    others = rows[kind, radius, peer]
    # One or two samples on the verge of the tolerance are decided by rounding.
    assert all(count >= other - 2 for count, other in zip(found, others, strict=True)), (
        f"{found} samples within {BUDGETS} evaluations; the peer {others}"
    )


def solve_watched(problem, solver):
    """Return the equilibrium and all points that were evaluated with their images, up to where the solve ended."""
    points = []

    def f(z):
        fz = problem.f(z)
        points.append((z.clone(), fz))
        return fz

    with torch.no_grad():
        eq = fixed_point(f, problem.z0, solver=solver)
    return eq, points[: int(eq.stats.num_evals)]


def residual_norm(z, fz):
    return torch.linalg.vector_norm((fz - z).double()).item()


@pytest.mark.parametrize("name", ["Picard", "Anderson", "Broyden", "NewtonKrylov"])
@pytest.mark.parametrize("problem", PEER_PROBLEMS, ids=lambda problem: problem.name)
def test_what_is_returned_is_true(problem, name):
    solver = SOLVERS[name](max_evals=40, tol=problem.tol)
    eq, points = solve_watched(problem, solver)
    z, image = eq.z, problem.f(eq.z)
    residual, status = eq.stats.residual.item(), Status(int(eq.stats.status))

    assert z.isfinite().all()
    assert image.isfinite().all()
    size = torch.linalg.vector_norm(image.double()).item()
    eps, tiny = torch.finfo(z.dtype).eps, torch.finfo(z.dtype).tiny
    norm = residual_norm(z, image)
    z0, f0 = points[0]
    # What rounding at the scale of the start cannot tell from zero is measured as if it were that large.
    size = max(size, eps * max(torch.linalg.vector_norm(point.double()).item() for point in (z0, f0)))
    # Squares of what is smaller underflow, and the residual may be taken for zero.
    if norm > math.sqrt(tiny):
        # A second evaluation may round differently, by some epsilons of the image.
        assert residual == pytest.approx(norm / size, rel=1e-6, abs=10 * eps)
    assert (status == Status.CONVERGED) == (residual <= solver.tol)

    if status != Status.CONVERGED:
        # Smaller relative to an image that has grown, which counts as long as it has not grown more than tenfold.
        assert norm <= 10 * residual_norm(z0, f0), "far worse than the start"

    is_seen = any(problem.is_solved(z, fz, 0.1) for z, fz in points)
    if is_seen and (status == Status.CONVERGED or problem.is_zero_solution):
        assert problem.is_solved(z, image), "a point that is solved was seen and thrown away"


@pytest.mark.parametrize("name", SOLVERS)
def test_a_start_at_the_solution_is_returned_after_one_evaluation(name):
    for problem in PEER_PROBLEMS:
        if problem.exact is not None:
            exact = problem.exact.to(problem.z0)
            eq = fixed_point(problem.f, exact, solver=SOLVERS[name](tol=1e-7))
            assert eq.stats.converged.all(), problem.name
            assert int(eq.stats.num_evals) == 1, problem.name
            assert torch.equal(eq.z, exact), problem.name


@pytest.mark.parametrize(
    "problem", [problem for problem in PEER_PROBLEMS if problem.exact is not None], ids=lambda problem: problem.name
)
def test_known_solutions_are_fixed_points_that_meet_the_criterion(problem):
    exact = problem.exact.to(problem.z0)
    image = problem.f(exact)
    torch.testing.assert_close(image, exact, rtol=1e-9, atol=1e-9)
    assert problem.is_solved(exact, image)
    if problem.name != "F2 from its root":
        assert not problem.is_solved(problem.z0, problem.f(problem.z0))


@pytest.mark.parametrize(
    "problem", [problem for problem in PEER_PROBLEMS if problem.num_picard], ids=lambda problem: problem.name
)
def test_plain_iteration_takes_as_many_evaluations_as_the_suite_prints(problem):
    solver = Picard(max_evals=500, tol=1e-14)
    run = lambda f, z0: fixed_point(f, z0, solver=solver)  # noqa: E731
    assert num_evals_to_reach(run, problem, 500) == problem.num_picard
