"""A fixed point in one dimension: solve it, differentiate it, compare solvers.

Run: python examples/01_scalar.py
"""

import torch

from steadeq import Anderson, Broyden, NewtonKrylov, Picard, fixed_point


def f(z, x):
    """Babylon's square root, slowed down: the fixed point is sqrt(x)."""
    return 0.5 * z + 0.5 * x / z - 0.2 * (z - x / z)


x = torch.tensor([[2.0], [9.0], [100.0]], dtype=torch.float64, requires_grad=True)
z0 = torch.ones(3, 1, dtype=torch.float64)

print("solver        evaluations per sample   largest residual")
for solver in (Picard, Anderson, Broyden, NewtonKrylov):
    with torch.no_grad():
        stats = fixed_point(f, z0, x, solver=solver(max_evals=60, tol=1e-10)).raise_if_failed().stats
    print(f"{solver.__name__:14s}{stats.num_evals.tolist()!s:25s}{stats.residual.max():.1e}")

# The gradient follows from the implicit function theorem: no step of the solver is stored.
eq = fixed_point(f, z0, x, solver=Anderson(max_evals=60, tol=1e-12))
eq.z.sum().backward()
exact = 0.5 / x.detach().sqrt()
print("\nsqrt(x)  ", [round(z, 6) for z in eq.z.flatten().tolist()])
print(
    "gradient ",
    [round(g, 6) for g in x.grad.flatten().tolist()],
    "exact",
    [round(g, 6) for g in exact.flatten().tolist()],
)
print("backward ", eq.backward)
assert torch.allclose(x.grad, exact, rtol=1e-6)
