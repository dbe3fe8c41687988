"""PPO that measures the value's error in standard deviations of the returns.

Where policy and value share a layer, returns in the hundreds make the value's error the only thing
that is learnt; RLlib's answer, to clip the error, stops learning where it is large.
"""

from __future__ import annotations

from typing import Any

from stpn._extras import need

need("ray.rllib", extra="ray")

from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner  # noqa: E402
from ray.rllib.core.columns import Columns  # noqa: E402


class RelativeValuePPO(PPOTorchLearner):
    """The unit is the standard deviation in the last minibatch that had one."""

    _unit = 1.0

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        targets = batch[Columns.VALUE_TARGETS]
        if Columns.LOSS_MASK in batch:
            targets = targets[batch[Columns.LOSS_MASK]]
        if targets.numel() > 1:
            self._unit = float(targets.std()) + 1e-8
        config = _Changed(config, vf_loss_coeff=config.vf_loss_coeff / self._unit**2)
        return super().compute_loss_for_module(
            module_id=module_id, config=config, batch=batch, fwd_out=fwd_out
        )


class _Changed:
    """A configuration with other values for some settings; to copy one takes milliseconds."""

    def __init__(self, config: Any, **changes: Any) -> None:
        self._config = config
        self.__dict__.update(changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)
