# %% [markdown]
# # Generate text with warm starts
#
# **What you learn:** an equilibrium Transformer generates token by token, and where each solve starts decides how many
# evaluations it needs.

# %%
import warnings

import matplotlib.pyplot as plt
import torch
from torch import nn

from steadeq import Anderson, ConvergenceWarning, JacobianRegularizer
from steadeq.models import EquilibriumTransformer
from steadeq.models.transformer import generate

warnings.simplefilter("ignore", ConvergenceWarning)
torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# A small text: counting in words, from one to ninety-nine.

# %%
ONES = "one two three four five six seven eight nine".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
numbers = ONES + TEENS + [word for ten in TENS for word in (ten, *(f"{ten} {one}" for one in ONES))]
words = " , ".join(numbers).split()
vocabulary = sorted(set(words))
tokens = torch.tensor([vocabulary.index(word) for word in words])
print(len(tokens), "tokens,", len(vocabulary), "different ones")

# %%
model = EquilibriumTransformer(kind="language", vocab_size=len(vocabulary), features=48, hidden_features=96)
model.layer.solver = Anderson(max_evals=12, tol=1e-3)
regularizer = JacobianRegularizer(weight=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
LENGTH, losses = 24, []
for step in range(150):
    starts = torch.randint(0, len(tokens) - LENGTH - 1, (12,))
    batch = torch.stack([tokens[start : start + LENGTH + 1] for start in starts])
    predictions, eq = model.solve(batch[:, :-1])
    task = nn.functional.nll_loss(predictions.log_probabilities().flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    (task + regularizer(eq, step=step)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(float(task.detach()))
print(f"loss {losses[0]:.2f} -> {sum(losses[-20:]) / 20:.2f}")

# %%
model.eval()
prompt = tokens[torch.arange(60, 72)]
figure, axes = plt.subplots(figsize=(7, 3.5))
for warm_start in (False, True):
    options = {"temperature": 0, "context": LENGTH, "warm_start": warm_start}
    steps = list(generate(model, prompt, num_tokens=30, solver=Anderson(max_evals=60, tol=1e-4), **options))
    evals = [step.num_evals for step in steps]
    axes.plot(evals, label="warm start" if warm_start else "from zero")
    print("warm:" if warm_start else "cold:", " ".join(vocabulary[step.token] for step in steps))
    print(f"      {sum(evals) / len(evals):.1f} evaluations a token")
axes.set(xlabel="token", ylabel="evaluations")
axes.legend()
plt.show()
