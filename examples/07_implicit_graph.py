"""An implicit graph network: the nodes of a graph are solved together, as one sample.

Every node of a ring of 60 is to say which of two labels the nearest marked node has. Three nodes are marked, so that
information has to travel up to 10 steps: a fixed point of message passing sees as far as it must. Nodes lie along dim
0, as graph libraries have them, and see each other, so that the layer is given `batch_dims=0`.

Run: python examples/07_implicit_graph.py
"""

import torch
from torch import Tensor, nn

from steadeq import DEQ, GMRES, Anderson, Implicit, spectral_radius

NUM_NODES, WIDTH = 60, 16
nodes = torch.arange(NUM_NODES)
edge_index = torch.stack([torch.cat([nodes, nodes]), torch.cat([nodes.roll(1), nodes.roll(-1)])])


class Messages(nn.Module):
    """One round of messages along the edges, with the features of the nodes added."""

    def __init__(self) -> None:
        super().__init__()
        mix = nn.Linear(WIDTH, WIDTH, bias=False)
        # Messages begin as they are, so that they reach far; the norm of the weights keeps the map a contraction.
        nn.init.eye_(mix.weight)
        self.mix = nn.utils.parametrizations.spectral_norm(mix)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        source, target = edge_index
        mean = torch.zeros_like(z).index_add(0, target, z[source]) / 2
        return 0.98 * self.mix(mean) + x


class Network(nn.Module):
    """Features in, an equilibrium of messages, labels out."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(3, WIDTH)
        self.labels = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))
        self.layer = DEQ(
            Messages(),
            solver=Anderson(max_evals=150, tol=1e-3),
            adjoint=Implicit(GMRES(max_evals=150, tol=1e-3)),
            batch_dims=0,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.labels(self.layer(self.features(x)))


def graph(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return features and labels of a ring with three marked nodes."""
    marked = int(torch.randint(20, (1,), generator=generator)) + torch.tensor([0, 20, 40])
    kinds = torch.randint(2, (3,), generator=generator)
    x = torch.zeros(NUM_NODES, 3)
    x[:, 2] = 1
    x[marked, kinds] = 5.0
    distance = (nodes[:, None] - marked).abs()
    return x, kinds[torch.minimum(distance, NUM_NODES - distance).argmin(dim=1)]


torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
model = Network()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(100):
    x, y = graph(generator)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

model.eval()
right = [(model(x).argmax(dim=1) == y).float().mean() for x, y in (graph(generator) for _ in range(20))]
eq = model.layer.solve(model.features(graph(generator)[0]))
print(f"nodes that are right on new graphs: {torch.stack(right).mean():.0%}")
print(eq.stats)
print(f"spectral radius of the whole graph: {float(spectral_radius(eq).value):.2f}")
