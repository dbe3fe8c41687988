"""Where tensors live: a device by its name, and a sentence where it is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from stpn.errors import ConfigError

AUTO = "auto"
CPU = torch.device("cpu")


def find(name: str | torch.device) -> torch.device:
    """ "auto", a GPU of CUDA or ROCm where there is one, else the CPU; or any name that torch has:
    "cpu", "cuda:1", "mps", "xpu". ConfigError if it is not there."""
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"device must be auto, cpu, cuda or another that torch knows, not {name!r}"
        ) from error
    if device.type == "cpu":
        return CPU
    if device.type == "meta":
        raise ConfigError("device 'meta' has shapes and no values: take another")
    try:
        torch.empty(1, device=device).fill_(0.0)
    except Exception as error:  # each backend has errors of its own for this
        why = (str(error).strip() or repr(error)).splitlines()[0].partition(". ")[0]
        raise ConfigError(
            f"there is no device {str(device)!r} here ({why}); --device cpu works everywhere, "
            "`stpn doctor` says what this machine has"
        ) from error
    return device


def there(name: str) -> bool:
    """Whether a device of that name can be used."""
    try:
        find(name)
    except ConfigError:
        return False
    return True


@contextmanager
def own_random_stream(device: torch.device) -> Iterator[None]:
    """The caller's random streams, of the CPU and of `device`, are left as they were."""
    kind = "cuda" if device.type == "cpu" else device.type
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=devices, device_type=kind):
        yield


def random_state(device: torch.device) -> Tensor | None:
    """Of the device's own stream, which dropout draws from; None for the CPU."""
    if device.type == "cpu":
        return None
    return torch.get_device_module(device).get_rng_state(device)


def set_random_state(device: torch.device, state: Tensor | None) -> None:
    """What `random_state` returned, on a device of the same kind; of another kind it means
    nothing."""
    if device.type == "cpu" or state is None:
        return
    module = torch.get_device_module(device)
    if state.numel() == module.get_rng_state(device).numel():
        module.set_rng_state(state, device)
