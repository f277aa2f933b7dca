"""What the explicit networks have in common, which the tables compare equilibrium models with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import nn


class AbstractExplicitModel(nn.Module, ABC):
    """A network of layers, called like an equilibrium model."""

    @abstractmethod
    def output(self, x: Any) -> Any:
        """Return the output for a batch of inputs."""

    def forward(self, x: Any) -> tuple[Any, None]:
        """Return the output, and None where equilibrium models have their `Solution`."""
        return self.output(x), None


def initialize_convolutions(module: nn.Module) -> None:
    """Draw the weights of all convolutions from Kaiming's normal distribution, which keeps gradients at their scale."""
    for child in module.modules():
        if isinstance(child, nn.Conv2d):
            nn.init.kaiming_normal_(child.weight, mode="fan_out", nonlinearity="relu")
