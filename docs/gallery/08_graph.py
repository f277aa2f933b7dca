# %% [markdown]
# # An implicit graph network
#
# **What you learn:** a fixed point of message passing sees the whole graph, however far information has to travel; a
# network of two layers sees two steps.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

from steadeq import DEQ, GMRES, Anderson, Implicit

torch.set_num_threads(1)

# %% [markdown]
# The task: chains of 20 nodes, and every node is to say the class of its chain, which only the first node knows.

# %%
LENGTH, CHAINS = 20, 30


def chains(seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (CHAINS,), generator=generator)
    features = torch.zeros(CHAINS, LENGTH, 2)
    features[:, 0] = nn.functional.one_hot(labels, 2).float()
    return features.reshape(-1, 2), labels.repeat_interleave(LENGTH)


path = torch.diag(torch.ones(LENGTH - 1), 1)
adjacency = torch.block_diag(*[path + path.T + torch.eye(LENGTH)] * CHAINS)
adjacency = (adjacency / adjacency.sum(1, keepdim=True)).to_sparse()


# %% [markdown]
# The nodes of a graph depend on each other, so the whole graph is one sample: `batch_dims=0`. The state has the
# shape (nodes, features), as graph libraries have it.


# %%
class Messages(nn.Module):
    def __init__(self, width=16) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width, bias=False)

    def forward(self, z, x):
        weight = self.mix.weight
        # The norm of the weight keeps the map a contraction, and the equilibrium unique.
        weight = 0.98 * weight / torch.linalg.matrix_norm(weight, 2).clamp(min=0.98)
        return torch.tanh(torch.sparse.mm(adjacency, z @ weight.T) + x)


class Layers(nn.Module):
    """The same messages, passed twice."""

    def __init__(self, cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x):
        return self.cell(self.cell(torch.zeros_like(x), x), x)


def train(make):
    torch.manual_seed(0)
    core = make(Messages())
    encoder, head = nn.Linear(2, 16, bias=False), nn.Linear(16, 2)
    parameters = [*encoder.parameters(), *core.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    features, labels = chains(0)
    for _ in range(100):
        loss = nn.functional.cross_entropy(head(core(encoder(features))), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    features, labels = chains(1)
    with torch.no_grad():
        is_right = head(core(encoder(features))).argmax(1) == labels
    return is_right.reshape(CHAINS, LENGTH).float().mean(0)


# %%
implicit = train(
    lambda cell: DEQ(
        cell,
        solver=Anderson(max_evals=100, tol=1e-4),
        adjoint=Implicit(GMRES(max_evals=100, tol=1e-3)),
        batch_dims=0,
    )
)
shallow = train(Layers)
print(f"accuracy: fixed point {implicit.mean():.1%}, two layers {shallow.mean():.1%}")
plt.plot(implicit, label="fixed point")
plt.plot(shallow, label="two layers")
plt.xlabel("distance from the node that knows")
plt.ylabel("accuracy on new chains")
plt.legend()
plt.show()
