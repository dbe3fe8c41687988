"""From a run's settings to an RLlib algorithm that learns by them.

RLlib has no A2C any more. IMPALA is the nearest: one gradient step per batch of rollouts, corrected
for players that are some updates behind. A task that learns by PPO here learns by PPO there.

`relative_value` is a setting of PPO only there, and there is neither `concentration` nor `eps`.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from stpn._extras import need
from stpn.errors import ConfigError
from stpn.tasks import registry
from stpn.tasks.agents import AgentTask
from stpn.training.algorithms import PPOSettings
from stpn.training.cores import options_of
from stpn.training.rl_config import AgentConfig

ALGORITHMS = {"ppo": "PPO", "appo": "APPO", "impala": "IMPALA"}


def chosen(config: AgentConfig) -> str:
    """The algorithm: ppo, appo or impala."""
    if config.rllib_algorithm != "auto":
        return config.rllib_algorithm
    return "ppo" if config.algo == "ppo" else "impala"


def algorithm_config(config: AgentConfig, *, hidden_size: int, steps_before: int = 0) -> Any:
    """An `AlgorithmConfig` with the settings of a run: `.build_algo()` makes the algorithm.

    `steps_before`: of all environments, by algorithms that learnt before it. RLlib's own count,
    by which the learning rate falls, begins at 0 with each.
    """
    name = chosen(config)
    logging.getLogger("ray.rllib").setLevel(logging.ERROR)  # it praises its new API at length
    rllib = need(f"ray.rllib.algorithms.{name}", extra="ray")
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    from stpn.scale.rllib import PowerMetrics, STPNModule

    if config.optimizer != "Adam":
        raise ConfigError(f"RLlib learns by Adam, not by {config.optimizer}")
    players = max(1, config.env_runners)
    if config.num_envs % players:
        raise ConfigError(
            f"{config.num_envs} agents cannot be shared evenly by {players} env_runners"
        )
    settings = getattr(rllib, f"{ALGORITHMS[name]}Config")()
    settings = (
        settings.environment(_environment(config), normalize_actions=False, clip_actions=True)
        .env_runners(
            num_env_runners=config.env_runners,
            num_envs_per_env_runner=config.num_envs // players,
            rollout_fragment_length=config.num_steps,
            gym_env_vectorize_mode=_vectorize_mode(config),
        )
        .learners(num_learners=0)  # in this process
        .debugging(seed=config.seed, log_level="ERROR")
        .reporting(min_time_s_per_iteration=0, metrics_num_episodes_for_smoothing=20)
        .callbacks(PowerMetrics)
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=STPNModule,
                model_config={
                    "model": config.model,
                    "hidden_size": hidden_size,
                    "core": options_of(config),
                    "max_seq_len": _sequence(config, name),
                },
            )
        )
        .training(
            lr=_rates(config, steps_before),
            gamma=config.gamma,
            entropy_coeff=config.ent_coef,
            grad_clip=config.max_grad_norm,
            grad_clip_by="global_norm",
            train_batch_size_per_learner=config.num_envs * config.num_steps,
        )
    )
    ppo = _ppo(config)
    if name == "ppo":
        if config.relative_value:
            from stpn.scale.rllib_relative import RelativeValuePPO

            settings = settings.training(learner_class=RelativeValuePPO)
        return settings.training(
            lambda_=ppo.gae_lambda,
            clip_param=ppo.clip_coef,
            vf_loss_coeff=config.vf_coef,
            vf_clip_param=math.inf,
            num_epochs=ppo.update_epochs,
            minibatch_size=min(ppo.minibatch_size, config.num_envs * config.num_steps),
            use_kl_loss=False,
        )
    # these halve the squared error of the value, PPO and `stpn train` do not
    settings = settings.training(vf_loss_coeff=2 * config.vf_coef)
    return settings.training(clip_param=ppo.clip_coef) if name == "appo" else settings


def _ppo(config: AgentConfig) -> PPOSettings:
    """Of a run that would learn by another algorithm here: the defaults."""
    own = config.algorithm
    return own if isinstance(own, PPOSettings) else PPOSettings()


def _sequence(config: AgentConfig, name: str) -> int:
    # V-trace works on whole rollouts, to which RLlib adds a step for the last value
    return _ppo(config).sequence_length if name == "ppo" else config.num_steps + 1


def _rates(config: AgentConfig, steps_before: int) -> Any:
    """The learning rate, or the straight line along which it falls, by steps of environments."""
    if config.lr_decay is None:
        return config.lr
    end = config.lr_decay * config.steps_per_unit
    rest = max(end - steps_before, 1)
    return [[0, config.lr * min(rest / end, 1.0)], [rest, 0.0]]


def _environment(config: AgentConfig) -> str:
    """The name under which Gymnasium or RLlib knows the environment."""
    env = _task(config).rllib_env(config)
    if isinstance(env, str):
        return env
    name = f"stpn-{config.task}"
    need("ray.tune.registry", extra="ray").register_env(name, env)
    return name


def _vectorize_mode(config: AgentConfig) -> str:
    return "vector_entry_point" if _task(config).rllib_vectorized else "sync"


def _task(config: AgentConfig) -> AgentTask:
    task = registry.get(config.task)
    assert isinstance(task, AgentTask)  # its settings are those of an agent
    return task
