"""From a configuration to a recurrent core."""

from __future__ import annotations

from typing import Any, TypeVar

from stpn.config import STPN_MODELS, STPN_SETTINGS, RunConfig
from stpn.nn import registry
from stpn.nn.core import RecurrentCore

Config = TypeVar("Config", bound=RunConfig)


def build_core(config: RunConfig, input_size: int, **options: Any) -> RecurrentCore:
    """The core that `config` describes, batch first; `options` are the model's own."""
    if config.model in STPN_MODELS:
        settings = {name: getattr(config, name) for name in STPN_SETTINGS}
        settings["norm"] = None if config.norm == "none" else config.norm
        options = {**settings, **options}
    return registry.build(
        config.model,
        input_size,
        config.hidden_size,
        num_layers=config.num_layers,
        batch_first=True,
        **options,
    )
