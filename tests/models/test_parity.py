"""What the authors' code computes with the same weights.

The numbers were made by running `locuslab/deq` (commit 1fb7059) in float32 on a CPU with random weights, in evaluation
mode and without dropout.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from steadeq.models import from_official

PARITY = Path(__file__).parent / "parity"


def load(name):
    """Return the weights by their official names, and what is computed with them."""
    tensors = load_file(PARITY / f"{name}.safetensors")
    state = {key.removeprefix("state/"): tensor for key, tensor in tensors.items() if key.startswith("state/")}
    return state, {key: tensor for key, tensor in tensors.items() if not key.startswith("state/")}


def assert_near(ours, official):
    assert ours.shape == official.shape
    assert float((ours - official).norm() / official.norm()) < 1e-5


@torch.no_grad()
def test_a_multiscale_deq_computes_what_the_official_one_does():
    state, official = load("mdeq_tiny")
    model = from_official(state)
    _, (injected,) = model.encode(official["x"])
    assert_near(injected, official["injected"])
    z = (official["z/0"], official["z/1"])
    for ours, theirs in zip(model.layer.cell(z, injected), (official["f/0"], official["f/1"]), strict=True):
        assert_near(ours, theirs)
    assert_near(model.decode(z), official["logits"])


@torch.no_grad()
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_deq_transformer_computes_what_the_official_one_does(norm):
    state, official = load(f"deq_transformer_{norm}")
    model = from_official(state, norm=norm, memory_length=20)
    assert_near(model.softmax.embedding(official["tokens"]), official["embedded"])
    for carry, case in ((None, "memory0"), (("z_memory", "injected_memory"), "memory7")):
        memory = None if carry is None else tuple(official[f"{case}/{name}"] for name in carry)
        _, inputs = model.encode(official["tokens"], memory)
        assert_near(inputs[0], official["injected"])
        assert_near(model.cell(official[f"{case}/z"], *inputs), official[f"{case}/f"])
    assert_near(model.softmax(official["hidden"], official["targets"]), official["losses"])


@torch.no_grad()
def test_the_order_of_clusters_matters():
    # Otherwise the test above would not see whether it is right.
    state, official = load("deq_transformer_post")
    state["crit.cluster_weight"] = state["crit.cluster_weight"].flip(0)
    losses = from_official(state).softmax(official["hidden"], official["targets"])
    assert float((losses - official["losses"]).norm() / official["losses"].norm()) > 1e-3
