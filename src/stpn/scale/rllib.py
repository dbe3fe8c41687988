"""Any core of the registry as an RLlib module, on RLlib's present API stack.

    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from stpn.scale.rllib import PowerMetrics, STPNModule

    settings = {"model": "stpnr", "hidden_size": 32, "max_seq_len": 20}
    config = (
        PPOConfig()
        .environment("CartPole-v1", normalize_actions=False, clip_actions=True)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=STPNModule, model_config=settings))
        .callbacks(PowerMetrics)
    )

The network inside is `stpn.training.agent.Agent`, the same that `stpn train` trains: `agent_from`
takes it out of an algorithm or a checkpoint of RLlib, `agent_into` puts one in.

RLlib keeps the state of the core at every step of every environment, short-term weights included:
4 * H * (D + 1) bytes for an STPN in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stpn._extras import need
from stpn.energy.watched import WatchedLayer
from stpn.errors import CheckpointError, ConfigError
from stpn.nn import registry
from stpn.nn.core import RecurrentCore
from stpn.training.agent import Agent, State, encoder_for
from stpn.training.checkpoint import load_module
from stpn.training.policies import SMALLEST_SCALE, Gaussian, policy_for

need("ray.rllib", extra="ray")

from ray.rllib.callbacks.callbacks import RLlibCallback  # noqa: E402
from ray.rllib.core import DEFAULT_MODULE_ID  # noqa: E402
from ray.rllib.core.columns import Columns  # noqa: E402
from ray.rllib.core.learner.utils import make_target_network  # noqa: E402
from ray.rllib.core.rl_module.apis import (  # noqa: E402
    TARGET_NETWORK_ACTION_DIST_INPUTS,
    TargetNetworkAPI,
    ValueFunctionAPI,
)
from ray.rllib.core.rl_module.torch import TorchRLModule  # noqa: E402

POWER = "power"
"""Column of the core's power at each step, and its name among an iteration's results."""
MODULE_ID = DEFAULT_MODULE_ID
"""What RLlib calls the module of a single agent."""
IN_CHECKPOINT = Path("learner_group", "learner", "rl_module", MODULE_ID)


class STPNModule(TorchRLModule, ValueFunctionAPI, TargetNetworkAPI):
    """Encoder, core and heads of an agent, for PPO, APPO and IMPALA.

    `model_config`, all but the last optional:

    - model: name of the core (`stpn.models()`), "stpnr".
    - hidden_size: 64.
    - core: options of the core's class, such as {"clamp": 1.0, "num_layers": 2}.
    - measure_power: whether acting reads the core's power, True.
    - max_seq_len: longest sequence that is learnt from; RLlib itself asks for it.

    Vectors and numbers go into the core as they are, images (uint8, channels first, at least 36
    pixels wide) through two convolutions.
    """

    agent: Agent
    _old_agent: Agent

    def setup(self) -> None:
        given: Any = self.model_config
        settings = {"model": "stpnr", "hidden_size": 64, "measure_power": True, **given}
        encoder = encoder_for(self.observation_space)
        core = registry.build(
            settings["model"],
            encoder.output_size,
            settings["hidden_size"],
            batch_first=True,
            **settings.get("core", {}),
        )
        self.agent = Agent(encoder, core, policy_for(self.action_space))
        self._measures = bool(settings["measure_power"])
        if core.initial_state(1) and "max_seq_len" not in settings:
            raise ConfigError("model_config lacks max_seq_len, without which RLlib cannot replay")

    def get_initial_state(self) -> dict[str, Tensor]:
        """Zeros, without a batch dimension, as RLlib wants them; empty for a core without state."""
        layers = self.agent.core.initial_state(1)
        return {key: value[0] for key, value in _flat(layers).items()}

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Act: one step of every environment."""
        with _power_of(self.agent.core, enabled=self._measures) as readings:
            y, state = self._embed(self.agent, batch)
        outputs = self._outputs(y, state)
        if readings:
            power = torch.stack(readings).sum(0)  # (B, T), all layers together
            outputs[POWER] = power if self.is_stateful() else power.squeeze(1)
        return outputs

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Learn: sequences from the states that were kept while acting."""
        y, state = self._embed(self.agent, batch)
        return {**self._outputs(y, state), Columns.EMBEDDINGS: y}

    def compute_values(self, batch: dict[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """(B, T), or (B,) of a core without state."""
        if embeddings is None:
            with torch.no_grad():
                embeddings, _ = self._embed(self.agent, batch)
        values = self.agent.heads(embeddings)[..., -1]
        return values if self.is_stateful() else values.squeeze(1)

    def make_target_networks(self) -> None:
        copied: Any = make_target_network(self.agent)
        self._old_agent = copied

    def get_target_network_pairs(self) -> list[tuple[Any, Any]]:
        return [(self.agent, self._old_agent)]

    def forward_target(self, batch: dict[str, Any]) -> dict[str, Any]:
        y, _ = self._embed(self._old_agent, batch)
        parameters = self._dist_inputs(self._old_agent, y)
        return {TARGET_NETWORK_ACTION_DIST_INPUTS: parameters}

    def _embed(self, agent: Agent, batch: Mapping[str, Any]) -> tuple[Tensor, State]:
        """What the core makes of the observations, (B, T, H), and its state afterwards."""
        observation = batch[Columns.OBS]
        state = None
        if self.is_stateful():
            state = _nested(agent.core, batch[Columns.STATE_IN])
        else:
            observation = observation.unsqueeze(1)  # (B, ...) to (B, 1, ...)
        size, steps = observation.shape[:2]
        encoded = agent.encoder(observation.flatten(0, 1)).view(size, steps, -1)
        # Not `step`, which would overwrite the states that RLlib still keeps.
        return agent.core(encoded, state)

    def _outputs(self, y: Tensor, state: State) -> dict[str, Any]:
        outputs: dict[str, Any] = {Columns.ACTION_DIST_INPUTS: self._dist_inputs(self.agent, y)}
        if self.is_stateful():
            outputs[Columns.STATE_OUT] = _flat(state)
        return outputs

    def _dist_inputs(self, agent: Agent, y: Tensor) -> Tensor:
        """The policy's, as RLlib's distributions take them: logarithms of Gaussian scales."""
        parameters = agent.heads(y)[..., :-1]
        if isinstance(agent.policy, Gaussian):
            mean, raw = parameters.chunk(2, dim=-1)
            scale = functional.softplus(raw) + SMALLEST_SCALE
            parameters = torch.cat([mean, scale.log()], dim=-1)
        return parameters if self.is_stateful() else parameters.squeeze(1)


class PowerMetrics(RLlibCallback):
    """Puts the power of the core, mean over all steps acted, among the results: they have it as
    `result["env_runners"]["power"]`.
    """

    def on_sample_end(self, *, samples: Any, metrics_logger: Any = None, **kwargs: Any) -> None:
        for episode in samples:
            if POWER in episode.extra_model_outputs:
                for value in episode.get_extra_model_outputs(POWER):
                    metrics_logger.log_value(POWER, float(value), window=POWER_WINDOW)


POWER_WINDOW = 10_000
"""Steps over which the power is averaged."""


def agent_from(source: Any, *, trusted: bool = False) -> Agent:
    """The network of an RLlib algorithm, or of a checkpoint that one saved.

    RLlib's checkpoints are pickles, and reading a pickle executes what is in it: a path is refused
    unless `trusted` says that the checkpoint comes from where you know.
    """
    if not isinstance(source, (str, Path)):
        agent = copy.deepcopy(_module_of(source).agent)
        # the learner's weights: those of the players may be some updates behind
        learner = source.learner_group.get_state(components="learner")["learner"]
        weights = learner["rl_module"][MODULE_ID]
        own = {name: torch.as_tensor(weights[f"agent.{name}"]) for name in agent.state_dict()}
        load_module(agent, own, what="agent")
        return agent
    path = Path(source).resolve() / IN_CHECKPOINT
    if not path.is_dir():
        raise CheckpointError(f"{source} is not a checkpoint of an RLlib algorithm: no {path}")
    if not trusted:
        raise CheckpointError(
            f"{source} is a checkpoint of RLlib: reading it executes what whoever wrote it put in; "
            "say agent_from(..., trusted=True) if that was you"
        )
    module = STPNModule.from_checkpoint(path)
    if not isinstance(module, STPNModule):
        raise CheckpointError(f"{source} holds a {type(module).__name__}, not an STPNModule")
    return module.agent


def agent_into(algorithm: Any, agent: Agent) -> None:
    """Give an RLlib algorithm, learners and players alike, the weights of an agent."""
    module = _module_of(algorithm)
    load_module(module.agent, agent.state_dict(), what="RLlib module")
    weights = {f"agent.{name}": value.cpu().numpy() for name, value in agent.state_dict().items()}
    if hasattr(module, "_old_agent"):
        weights |= {f"_old_{name}": value for name, value in weights.items()}
    # as the algorithm's own `set_weights` would, were its second half not deprecated
    algorithm.set_state({"learner_group": {"learner": {"rl_module": {MODULE_ID: weights}}}})


def _module_of(algorithm: Any) -> STPNModule:
    module = algorithm.get_module()
    if not isinstance(module, STPNModule):
        raise CheckpointError(f"the algorithm's module is a {type(module).__name__}")
    return module


def _flat(state: State) -> dict[str, Tensor]:
    """`l0_h`, `l0_f`, ...: RLlib keeps states as dictionaries."""
    return {
        f"l{index}_{name}": value
        for index, layer in enumerate(state)
        for name, value in layer._asdict().items()
    }


def _nested(core: RecurrentCore, flat: Mapping[str, Tensor]) -> State:
    names = [layer._fields for layer in core.initial_state(1)]
    return tuple(
        core.state_type(*(flat[f"l{index}_{name}"] for name in fields))
        for index, fields in enumerate(names)
    )


@contextmanager
def _power_of(core: RecurrentCore, *, enabled: bool) -> Iterator[list[Tensor]]:
    """Readings (B, T), one for each layer that is called inside."""
    readings: list[Tensor] = []
    if not enabled:
        yield readings
        return
    end = WatchedLayer("core", core).watch(
        lambda name, reading: readings.append(reading.power),
        ignored=(),
        keeps_graph=lambda: False,
        batch_first=True,
    )
    try:
        yield readings
    finally:
        end()
