"""From a configuration to a recurrent core, and to an agent around it."""

from __future__ import annotations

from typing import Any

from stpn import cores, experiments
from stpn._files import half_of_memory
from stpn.config import STPN_MODELS, STPN_SETTINGS, RunConfig
from stpn.errors import ConfigError, unknown
from stpn.nn import registry
from stpn.nn.core import RecurrentCore
from stpn.training.agent import Agent, Encoder
from stpn.training.initialisation import initialise
from stpn.training.policies import Policy
from stpn.training.rl_config import AgentConfig

DEFAULT_SIZE = 64
"""Hidden units on a task that the paper has not."""


def build_core(
    config: RunConfig, input_size: int, *, output_size: int = 0, **options: Any
) -> RecurrentCore:
    """The core that `config` describes, batch first; `options` are the model's own.

    With a hidden size of None, a model outside the paper's grid becomes as large as leaves it, with
    a linear readout to `output_size`, about as many parameters as the paper's model on the task.
    """
    options |= options_of(config)
    try:
        size = config.hidden_size or _fair_size(config, input_size, output_size, options)
        _check_memory(config.model, input_size, size, options)
        return registry.build(config.model, input_size, size, batch_first=True, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{config.model} refuses its settings: {error}") from error


def options_of(config: RunConfig) -> dict[str, Any]:
    """Options of the core's class that `config` has."""
    options: dict[str, Any] = {**config.core_options, "num_layers": config.num_layers}
    if config.model in STPN_MODELS:
        options |= {name: getattr(config, name) for name in STPN_SETTINGS}
        options["norm"] = None if config.norm == "none" else config.norm
    known = cores.core_options(config.model)
    for name in config.core_options:
        if name not in known:
            raise ConfigError(unknown(f"option of {config.model}", name, known))
    return options


def build_agent(config: AgentConfig, encoder: Encoder, policy: Policy) -> Agent:
    """The agent that a configuration describes, for what is seen and done in its environment."""
    core = build_core(config, encoder.output_size, output_size=policy.num_parameters + 1)
    agent = Agent(encoder, core, policy)
    initialise(agent, config)
    return agent


def _check_memory(model: str, input_size: int, size: int, options: dict[str, Any]) -> None:
    """Refuse a core that cannot be trained in this machine's memory before any of it is taken."""
    if max(input_size, size) < 2048:
        return
    planned = registry.build(model, input_size, size, device="meta", **options)
    parameters = sum(parameter.numel() for parameter in planned.parameters())
    # a weight, its gradient and two moments of the optimizer, in 4 bytes each
    if 16 * parameters > half_of_memory():
        raise ConfigError(
            f"a core of {size:,} hidden units has {parameters:,} parameters, too many for the "
            "memory of this machine"
        )


def _fair_size(
    config: RunConfig, input_size: int, output_size: int, options: dict[str, Any]
) -> int:
    task = experiments.get(config.task)
    if not task.models:
        return DEFAULT_SIZE
    model = cores.base(config.model)
    if model in task.hidden_sizes:
        return task.hidden_sizes[model]
    name, size = next(iter(task.hidden_sizes.items()))
    paper = registry.build(name, input_size, size, device="meta")
    parameters = sum(parameter.numel() for parameter in paper.parameters())
    return registry.hidden_size_for(
        config.model,
        parameters=parameters + output_size * (size + 1),
        input_size=input_size,
        output_size=output_size,
        **options,
    )
