"""How many problems of other people's suites each solver reaches, and in how many evaluations.

    python benchmarks/reach.py                                        all contenders, on problems and nets (minutes)
    python benchmarks/reach.py --only ours --sections problems        our solvers on the problems of the suites
    python benchmarks/reach.py --only Anderson "QR-Anderson 5" --details
    python benchmarks/reach.py --json benchmarks/results/reach.json   keep the numbers too; those of contenders that
                                                                      were left out stay as they are in the file

Problems are those of tests/peer_problems.py. A solver reaches a problem when it evaluates f at a point that meets the
criterion of the suite; what counts is the number of that evaluation, whatever the solver itself thinks of the point.
Solvers run with a tolerance below every criterion, so that they are not stopped by it but may give up by themselves.

Nets are those of tests/peer_nets.py. A sample is solved when the relative residual ‖f(z) - z‖ / ‖f(z)‖ at a point that
was evaluated is within the tolerance.

Peers are the solvers of scipy and torchdeq where they are installed, and two textbook methods: Anderson acceleration
by QR factorization, which drops the oldest columns while the condition number exceeds 1e10 (Walker and Ni, 2011), and
Newton's method with a dense Jacobian, as optimistix has it. A dense Jacobian counts as D evaluations.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steadeq import Anderson, Broyden, NewtonKrylov, Picard, fixed_point
from steadeq.solvers import AbstractSolver

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from peer_nets import BATCH_SIZE, BUDGETS, NETS, NUM_SEEDS, num_solved
from peer_problems import PEER_PROBLEMS, StopError, Watched, num_evals_to_reach

BUDGET = 1000
"""The most evaluations on a problem of a suite; Newton's method may make at least 50 steps."""
TOL = 1e-14
"""Tolerance of our solvers on the problems: stricter than every criterion."""

Map = Callable[[Tensor], Tensor]
Run = Callable[[Watched, Tensor], Any]
"""Solves from a start until the watched map stops it, or until it gives up."""


def ours() -> dict[str, Run]:
    """Return the solvers of this library."""

    def run(make: Callable[..., AbstractSolver], **options: Any) -> Run:
        solver = make(max_evals=BUDGET, tol=TOL, **options)
        return lambda f, z0: fixed_point(f, z0, solver=solver)

    return {
        "Picard": run(Picard),
        "Anderson": run(Anderson),
        "Anderson 11": run(Anderson, memory=11),
        "Broyden": run(Broyden),
        "Broyden full": run(Broyden, memory=BUDGET),
        "NewtonKrylov": run(NewtonKrylov),
        "NewtonKrylov 40": run(NewtonKrylov, memory=40),
    }


def peers() -> dict[str, Run]:
    """Return the textbook methods, and the solvers of the libraries that are installed."""
    found: dict[str, Run] = {
        "QR-Anderson 5": lambda f, z0: qr_anderson(f, z0, window=5),
        "QR-Anderson 10": lambda f, z0: qr_anderson(f, z0, window=10),
        "dense Newton": dense_newton,
    }
    if package_version("scipy"):
        from scipy import optimize

        found["scipy anderson"] = _scipy(optimize.anderson, alpha=1.0)
        found["scipy broyden1"] = _scipy(optimize.broyden1, alpha=1.0)
        found["scipy broyden1, no line search"] = _scipy(optimize.broyden1, alpha=1.0, line_search=None)
        found["scipy newton_krylov"] = _scipy(optimize.newton_krylov)
    if package_version("torchdeq"):
        found["torchdeq anderson"] = _torchdeq("anderson")
        found["torchdeq broyden"] = _torchdeq("broyden")
    return found


def qr_anderson(f: Watched, z: Tensor, *, window: int, max_condition: float = 1e10) -> None:
    """Accelerate by Anderson's method with differences of the last evaluations, until f stops it."""
    fz = f(z)
    g = fz - z
    images: list[Tensor] = []
    residuals: list[Tensor] = []
    while True:
        z = fz
        if residuals:
            images, residuals = images[-window:], residuals[-window:]
            while True:
                q, r = torch.linalg.qr(torch.cat(residuals).T)
                # More columns than rows have no triangle of full rank.
                if r.shape[0] == r.shape[1] and torch.linalg.cond(r) <= max_condition:
                    break
                images, residuals = images[1:], residuals[1:]
                if not residuals:
                    break
            if residuals:
                weights = torch.linalg.solve_triangular(r, q.T @ g.T, upper=True)
                z = fz - (torch.cat(images).T @ weights).T
        following = f(z)
        images.append(following - fz)
        residuals.append(following - z - g)
        fz, g = following, following - z


def dense_newton(f: Watched, z: Tensor) -> None:
    """Take full Newton steps until f stops it."""
    while True:
        g = f(z) - z
        jacobian = f.jacobian(z) - torch.eye(z.shape[1], dtype=z.dtype)
        z = z - torch.linalg.solve(jacobian, g.T).T


def _scipy(solve: Callable[..., Any], **options: Any) -> Run:
    def run(f: Watched, z0: Tensor) -> None:
        def g(x: Any) -> Any:
            z = torch.as_tensor(np.asarray(x)).to(z0).view(1, -1)
            return (f(z) - z)[0].double().numpy()

        with np.errstate(all="ignore"):
            solve(g, z0[0].double().numpy(), maxiter=BUDGET, f_tol=1e-300, **options)

    return run


def _torchdeq(name: str) -> Run:
    from torchdeq.solver import get_solver

    solver = get_solver(name)
    return lambda f, z0: solver(f, z0, max_iter=BUDGET, tol=0.0, stop_mode="rel")


def measure_problems(contenders: dict[str, Run]) -> dict[str, dict[str, int | None]]:
    """Return the evaluations of each contender on each problem that has a solution."""
    found: dict[str, dict[str, int | None]] = {}
    problems = [problem for problem in PEER_PROBLEMS if problem.has_solution]
    for name, run in contenders.items():
        start = time.perf_counter()
        # Peers fail on hard problems in many ways: no convergence, singular matrices, values that are not finite.
        may_raise = StopError if name in ours() else Exception
        found[name] = {}
        for problem in problems:
            budget = max(BUDGET, 50 * (problem.dim + 1)) if name == "dense Newton" else BUDGET
            found[name][problem.name] = num_evals_to_reach(run, problem, budget, may_raise=may_raise)
        num_reached = sum(count is not None for count in found[name].values())
        seconds = time.perf_counter() - start
        print(f"{name:32} reaches {num_reached:3} of {len(problems)} ({seconds:.1f} s)", flush=True)
    return found


PAIRS = (
    ("Anderson", "QR-Anderson 5"),
    ("Anderson 11", "QR-Anderson 10"),
    ("Anderson", "scipy anderson"),
    ("Anderson", "torchdeq anderson"),
    ("Broyden", "scipy broyden1"),
    ("Broyden", "scipy broyden1, no line search"),
    ("Broyden full", "scipy broyden1, no line search"),
    ("Broyden", "torchdeq broyden"),
    ("NewtonKrylov", "dense Newton"),
    ("NewtonKrylov 40", "dense Newton"),
    ("NewtonKrylov", "scipy newton_krylov"),
)
"""Who is compared with whom."""


def compare(evaluations: dict[str, dict[str, int | None]]) -> None:
    """Print for each pair what both reach, and what only one of them does."""
    print("\nevaluations over the problems that both reach, and problems that only one reaches")
    for one, other in PAIRS:
        if one in evaluations and other in evaluations:
            a, b = evaluations[one], evaluations[other]
            shared = [name for name in a if a[name] is not None and b[name] is not None]
            sums = [sum(counts[name] or 0 for name in shared) for counts in (a, b)]
            ratio = sums[0] / max(sums[1], 1)
            print(f"{one} {sums[0]} : {other} {sums[1]} over {len(shared)} problems, ratio {ratio:.3f}")
            print(f"    only {one}: {', '.join(n for n in a if a[n] is not None and b[n] is None) or '-'}")
            print(f"    only {other}: {', '.join(n for n in a if a[n] is None and b[n] is not None) or '-'}")


def print_details(evaluations: dict[str, dict[str, int | None]]) -> None:
    """Print one line for each problem."""
    names = list(evaluations)
    print("\n" + " " * 38 + " ".join(f"{index:5}" for index in range(1, len(names) + 1)))
    for index, name in enumerate(names, 1):
        print(f"{index:4} = {name}")
    for problem in next(iter(evaluations.values())):
        counts = " ".join(f"{evaluations[name][problem] or '-':>5}" for name in names)
        print(f"{problem:37} {counts}")


def net_contenders(tol: float) -> dict[str, Callable[[Map, Tensor], Any]]:
    """Return who is compared on nets, with the largest budget."""
    budget = max(BUDGETS)

    def run(solver: AbstractSolver) -> Callable[[Map, Tensor], Any]:
        # Finished samples stay in the batch that f sees, so that a sample is always the same row.
        return lambda f, z0: fixed_point(f, z0, solver=solver, compact=False)

    found: dict[str, Callable[[Map, Tensor], Any]] = {
        "Anderson": run(Anderson(max_evals=budget, tol=tol)),
        "Broyden": run(Broyden(max_evals=budget, tol=tol)),
        "NewtonKrylov": run(NewtonKrylov(max_evals=budget, tol=tol)),
    }
    if package_version("torchdeq"):
        from torchdeq.solver import get_solver

        def run_peer(name: str) -> Callable[[Map, Tensor], Any]:
            solver = get_solver(name)
            # Its solvers count differently from each other; the map ends them at the budget.
            return lambda f, z0: solver(f, z0, max_iter=budget + 1, tol=0.0, stop_mode="rel")

        for name in ("anderson", "broyden"):
            found[f"torchdeq {name}"] = run_peer(name)
    return found


def measure_nets(only: list[str] | None = None) -> list[dict[str, Any]]:
    """Return the number of samples within the tolerance, by net, contender and budget."""
    rows = []
    num_samples = NUM_SEEDS * BATCH_SIZE
    print(f"\n% of {num_samples} samples within the tolerance after {'/'.join(map(str, BUDGETS))} evaluations")
    for kind, radius, tol in NETS:
        for name, run in net_contenders(tol).items():
            if only is None or name in only:
                counts = num_solved(run, kind, radius, tol)
                rows.append({"net": kind, "radius": radius, "tol": tol, "contender": name, "num_solved": counts})
                shares = "/".join(f"{100 * count / num_samples:.0f}" for count in counts)
                print(f"{kind} {radius:g}, {tol:g}: {name:18} {shares}", flush=True)
    return rows


def package_version(name: str) -> str | None:
    """Return the version of a package, or None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    sections = ["problems", "nets"]
    parser = argparse.ArgumentParser(description="Count what solvers reach on problems of other people's suites.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="contenders by name, or `ours` or `peers`")
    parser.add_argument("--sections", nargs="+", choices=sections, default=sections, help="what to measure")
    parser.add_argument("--details", action="store_true", help="print the evaluations on each problem")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers are kept")
    return parser.parse_args()


def main() -> None:
    """Measure, print, and keep."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    contenders = {**ours(), **peers()}
    only = arguments.only
    if only is not None:
        groups = {"ours": list(ours()), "peers": list(peers())}
        only = [name for entry in only for name in groups.get(entry, [entry])]
        unknown = [name for name in only if name not in contenders]
        if unknown:
            sys.exit(f"There is no contender {', '.join(unknown)}; there are {', '.join(contenders)}.")
        contenders = {name: run for name, run in contenders.items() if name in only}
    results: dict[str, Any] = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "versions": {
            name: package_version(name) for name in ("torch", "scipy", "torchdeq") if package_version(name) is not None
        },
        "budget": BUDGET,
    }
    if "problems" in arguments.sections:
        results["problems"] = measure_problems(contenders)
        if arguments.details:
            print_details(results["problems"])
        compare(results["problems"])
    if "nets" in arguments.sections:
        results["nets"] = measure_nets(only)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        if arguments.json.exists():
            results = merge(json.loads(arguments.json.read_text(encoding="utf-8")), results)
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the new results, and the old ones of what was not measured again."""
    rows = {(row["net"], row["radius"], row["contender"]): row for row in old.get("nets", []) + new.get("nets", [])}
    return {
        **new,
        "versions": {**old["versions"], **new["versions"]},
        "problems": {**old.get("problems", {}), **new.get("problems", {})},
        "nets": list(rows.values()),
    }


if __name__ == "__main__":
    main()
