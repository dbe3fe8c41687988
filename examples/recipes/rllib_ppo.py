"""An STPN in RLlib's PPO: the package has the module, `stpn.scale.rllib.STPNModule`.

    pip install '.[ray]'
    python examples/recipes/rllib_ppo.py --iterations 30

RLlib resets the state with each episode and replays sequences from states that it stored.
`agent_from` takes the network out as `stpn.training.agent.Agent`, to be metered or exported.
"""

from __future__ import annotations

import argparse
from typing import Any

import recall
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from stpn.scale.rllib import PowerMetrics, STPNModule


def config(model: str = "stpnr", hidden_size: int = 32, envs: int = 8) -> PPOConfig:
    settings = {"model": model, "hidden_size": hidden_size, "max_seq_len": 16}
    return (
        PPOConfig()
        .environment(recall.Recall)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=STPNModule, model_config=settings))
        .env_runners(num_env_runners=0, num_envs_per_env_runner=envs)
        .training(lr=2e-3, gamma=0.5, train_batch_size=512, minibatch_size=256, num_epochs=4)
        .callbacks(PowerMetrics)
    )


def train(algorithm: Any, iterations: int) -> dict[str, Any]:
    for iteration in range(1, iterations + 1):
        result = algorithm.train()
        if iteration % 10 == 0:
            played = result["env_runners"]
            right = played["episode_return_mean"] / played["episode_len_mean"]
            print(f"iteration {iteration}: reward {right:.3f}, power {played['power']:.3f}")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="stpnr")
    parser.add_argument("--iterations", type=int, default=100)
    options = parser.parse_args()
    built = config(options.model).build_algo()
    try:
        train(built, options.iterations)
    finally:
        built.stop()
