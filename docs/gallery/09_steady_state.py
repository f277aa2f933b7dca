# %% [markdown]
# # Find the source behind a steady state
#
# **What you learn:** `fixed_point` solves any iteration, such as that of a nonlinear heat equation, and its exact
# gradient solves the inverse problem.

# %%
import matplotlib.pyplot as plt
import torch

from steadeq import GMRES, Anderson, Implicit, Picard, fixed_point

torch.set_num_threads(1)
SIZE = 24

# %% [markdown]
# The steady state of a plate that is heated by a source and cools: 0 = Δu - u³ + source, with u = 0 at the rim. One
# step of Jacobi's method, with the cubic term linearized, is a map whose fixed point it is.


# %%
def jacobi(u, source):
    padded = torch.nn.functional.pad(u, (1, 1, 1, 1))
    around = padded[:, :-2, 1:-1] + padded[:, 2:, 1:-1] + padded[:, 1:-1, :-2] + padded[:, 1:-1, 2:]
    h2 = (10 / SIZE) ** 2
    return (around + h2 * (source + 2 * u**3)) / (4 + 3 * h2 * u.square())


grid = torch.linspace(-1, 1, SIZE)
truth = 2 * torch.exp(-20 * ((grid[:, None] - 0.3).square() + (grid + 0.4).square()))
truth = (truth + torch.exp(-20 * ((grid[:, None] + 0.5).square() + (grid - 0.3).square())))[None]
start = torch.zeros(1, SIZE, SIZE)

# %%
for solver in (Picard(max_evals=2000, tol=1e-5), Anderson(max_evals=2000, tol=1e-5, memory=10)):
    print(f"{type(solver).__name__}: {fixed_point(jacobi, start, truth, solver=solver).stats}")

# %% [markdown]
# Now only the temperature is known, at 60 places and with noise. What was the source?

# %%
torch.manual_seed(0)
solver = Anderson(max_evals=300, tol=1e-4, memory=10)
temperature = fixed_point(jacobi, start, truth, solver=solver).z.detach()
is_known = torch.zeros(SIZE * SIZE, dtype=torch.bool)
is_known[torch.randperm(SIZE * SIZE)[:60]] = True
is_known = is_known.reshape(1, SIZE, SIZE)
measured = temperature + 0.005 * torch.randn_like(temperature)

source = torch.zeros(1, SIZE, SIZE, requires_grad=True)
optimizer = torch.optim.Adam([source], lr=0.1)
u, losses = start, []
for _ in range(120):
    eq = fixed_point(jacobi, u, source, solver=solver, adjoint=Implicit(GMRES(max_evals=200, tol=1e-3)))
    roughness = (source.diff(dim=1).square().mean() + source.diff(dim=2).square().mean()) * 0.02
    loss = (eq.z - measured)[is_known].square().mean() + roughness
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    u = eq.z.detach()  # the next solve starts where this one ended
    losses.append(float(loss.detach()))
print(f"loss {losses[0]:.4f} -> {losses[-1]:.5f}, the last solve took {int(eq.stats.num_evals)} evaluations")

# %%
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4))
for axis, image, title in zip(
    axes,
    (truth[0], torch.where(is_known, measured, torch.nan)[0], source.detach()[0]),
    ("true source", "what is measured", "source that was found"),
    strict=True,
):
    figure.colorbar(axis.imshow(image), ax=axis)
    axis.set(title=title, xticks=[], yticks=[])
plt.show()
