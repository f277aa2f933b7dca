"""Look at the spectrum of a cell, and see why the usual power method misleads.

Run: python examples/04_spectrum.py
"""

import torch

from steadeq import fixed_point, frobenius_norm, operator_norm, spectral_radius

torch.manual_seed(0)
W = torch.randn(300, 300) / 300**0.5
x = torch.randn(4, 300)


def cell(z, x):
    return torch.tanh(z @ W.T + x)


eq = fixed_point(cell, torch.zeros(4, 300), x)

# The truth, by forming the Jacobian. Nothing below does.
slope = 1 - cell(eq.z, x).square()
truth = torch.linalg.eigvals(slope[:, :, None] * W).abs().amax(dim=1)
print(f"{'true spectral radius':32s}", [round(v, 3) for v in truth.tolist()])
for method in ("arnoldi", "power", "rayleigh"):
    estimate = spectral_radius(eq, method=method, max_products=150)
    values = [f"{value:.3f} ± {error:.3f}" for value, error in zip(estimate.value, estimate.error, strict=True)]
    print(f"{method + f' ({estimate.num_products} products)':32s}", values)

sigma = operator_norm(eq)
frobenius = frobenius_norm(eq, num_probes=16)
print(f"{'largest singular value':32s}", [f"{v:.3f} ± {e:.3f}" for v, e in zip(sigma.value, sigma.error, strict=True)])
print(f"{'Frobenius norm':32s}", [f"{v:.2f} ± {e:.2f}" for v, e in zip(frobenius.value, frobenius.error, strict=True)])
print("rho <= sigma <= Frobenius: the norm that is penalized bounds rho, but loosely.")
