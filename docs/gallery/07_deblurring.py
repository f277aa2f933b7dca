# %% [markdown]
# # Deblurring with a learned denoiser
#
# **What you learn:** an iteration of deepinv becomes the cell of a DEQ: the reconstruction is its fixed point, and the
# denoiser inside of it is trained end to end with exact gradients.

# %%
import warnings

import deepinv
import matplotlib.pyplot as plt
import torch
from deepinv.optim.data_fidelity import L2
from deepinv.optim.optim_iterators import PGDIteration
from deepinv.optim.prior import PnP
from deepinv.physics.functional.blur import gaussian_blur
from torch import nn

from steadeq import DEQ, Anderson, ConvergenceWarning, JacobianRegularizer, Picard
from steadeq.integrations.deepinv import IterationCell

warnings.simplefilter("ignore", ConvergenceWarning)
torch.manual_seed(0)
torch.set_num_threads(1)


class Denoiser(nn.Module):
    """A small convolutional network that predicts the noise."""

    def __init__(self, channels=16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(channels, 1, 3, padding=1),
        )

    def forward(self, x, sigma, **_):
        return x - self.layers(x)


def shapes(count, size=32):
    """Disks of random places, sizes and brightness."""
    grid = torch.arange(size).float()
    images = torch.zeros(count, 1, size, size)
    for _ in range(4):
        a, b = size * torch.rand(2, count, 1, 1)
        radius, value = 3 + 6 * torch.rand(count, 1, 1), torch.rand(count, 1, 1)
        disk = (grid[:, None] - a).square() + (grid - b).square() < radius.square()
        images[:, 0] = torch.where(disk, value, images[:, 0])
    return images


# %%
blur = gaussian_blur(sigma=(1.5, 1.5))
physics = deepinv.physics.BlurFFT(img_size=(1, 32, 32), filter=blur, noise_model=deepinv.physics.GaussianNoise(0.02))
stepsize = torch.tensor(1.0, requires_grad=True)
cell = IterationCell(PGDIteration(), L2(), PnP(Denoiser()), physics, params={"stepsize": stepsize, "g_param": 0.05})
reconstruct = DEQ(cell, solver=Anderson(max_evals=15, tol=1e-3), init=cell.initial_state)
regularizer = JacobianRegularizer(weight=0.02)
optimizer = torch.optim.Adam(reconstruct.parameters(), lr=3e-3)
for step in range(100):
    x = shapes(16)
    with torch.no_grad():
        y = physics(x)
    eq = reconstruct.solve(y)
    loss = (eq.z - x).square().mean()
    optimizer.zero_grad()
    (loss + regularizer(eq, step=step)).backward()
    optimizer.step()


# %%
def psnr(a, b):
    return float(-10 * (a - b).square().mean((1, 2, 3)).log10().mean())


x = shapes(64)
with torch.no_grad():
    y = physics(x)
    ours, plain = reconstruct.solve(y), reconstruct.solve(y, solver=Picard(max_evals=200, tol=1e-3))
print(f"PSNR: blurred {psnr(y, x):.1f} dB, reconstructed {psnr(ours.z, x):.1f} dB")
evals = [f"{eq.stats.num_evals.float().mean():.0f}" for eq in (ours, plain)]
print(f"evaluations: Anderson {evals[0]}, plain iteration {evals[1]}")

# %%
figure, axes = plt.subplots(3, 5, figsize=(9, 5.4))
for row, (name, images) in zip(axes, (("truth", x), ("blurred", y), ("reconstructed", ours.z)), strict=True):
    for axis, image in zip(row, images, strict=False):
        axis.imshow(image[0], cmap="gray", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[])
    row[0].set_ylabel(name)
plt.show()
