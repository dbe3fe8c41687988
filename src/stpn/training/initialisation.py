"""Other starts of an agent than its layers' own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from stpn import cores
from stpn.training.agent import Agent
from stpn.training.rl_config import AgentConfig

GATES = {"lstm": 4, "gru": 3}


def initialise(agent: Agent, config: AgentConfig) -> None:
    """Start as `config` says; without a word there, nothing is changed and nothing drawn."""
    if config.orthogonal:
        orthogonal(agent)
    if config.longest_memory is not None:
        time_constants(agent.core, cores.base(config.model), config.longest_memory)


@torch.no_grad()
def orthogonal(agent: Agent) -> None:
    """Orthogonal matrices: gain sqrt(2) before a ReLU, 1 for the value, and 0.01 for the policy,
    which so begins by choosing evenly. Biases are 0."""
    for layer in agent.encoder.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.orthogonal_(layer.weight, math.sqrt(2))
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    nn.init.orthogonal_(agent.heads.weight[:-1], 0.01)
    nn.init.orthogonal_(agent.heads.weight[-1:], 1.0)
    nn.init.zeros_(agent.heads.bias)


@torch.no_grad()
def time_constants(core: nn.Module, model: str, longest: float) -> None:
    """Memories that last for tau steps, log tau ~ U(0, log(longest)).

    STPN: lambda = exp(-1 / tau). LSTM and GRU: a gate that keeps 1 - 1 / tau from step to step has
    a bias of log(tau - 1); the input gate of the LSTM gets its negative (Tallec & Ollivier 2018).
    """
    if model not in GATES:
        for parameter in _lambdas(core):
            parameter.copy_(torch.exp(-1 / _spread(parameter.shape, longest)))
        return
    for name, bias in core.named_parameters():
        if name.startswith("bias"):
            rows = bias.view(GATES[model], -1)  # LSTM: input, forget, ...; GRU: reset, update, ...
            keep = torch.log(_spread(rows[1].shape, longest) - 1 + 1e-3)
            rows[1] = keep if name.startswith("bias_ih") else 0.0  # the two biases are added
            if model == "lstm":
                rows[0] = -rows[1]


def _lambdas(core: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in core.named_parameters() if name.startswith("lambda")]


def _spread(shape: torch.Size, longest: float) -> Tensor:
    return torch.exp(torch.rand(shape) * math.log(longest))
