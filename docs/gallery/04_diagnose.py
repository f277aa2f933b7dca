# %% [markdown]
# # Is it safe to iterate?
#
# **What you learn:** `diagnose` says of any block whether iterating it converges, cycles or drifts, and draws why.

# %%
import matplotlib.pyplot as plt
import torch

from steadeq import diagnose

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(64, 16)
W = torch.randn(16, 16) / 4

# %% [markdown]
# A random network whose weights are scaled: below a scale of about 1 it contracts, and above it may not.

# %%
for scale in (0.7, 1.6):
    diagnosis = diagnose(
        lambda z, x, scale=scale: torch.tanh(scale * z @ W.T + x), torch.zeros_like(x), x, max_evals=128
    )
    print(f"scale {scale}:\n{diagnosis}\n")

# %% [markdown]
# How the samples fare, with a weaker input, over a range of scales:

# %%
scales = torch.linspace(0.4, 4.0, 10)
shares = []
for scale in scales:
    found = diagnose(
        lambda z, x, scale=scale: torch.tanh(scale * z @ W.T + 0.1 * x), torch.zeros_like(x), x, max_evals=128
    )
    shares.append([sum(v.name == name for v in found.verdicts) / 64 for name in ("CONVERGES", "CYCLES", "DRIFTS")])
plt.stackplot(scales, torch.tensor(shares).T, labels=["converges", "cycles", "drifts"], alpha=0.8)
plt.xlabel("scale of the weights")
plt.ylabel("share of samples")
plt.legend(loc="lower left")
plt.show()

# %%
diagnosis.plot()  # of the last block above: residuals and verdicts
