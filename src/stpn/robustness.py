"""The study of faults: trained networks on devices, one fault at a time and all together.

    stpn analog study --out results/analog

Each cell (network, fault, its size, before or after hardware-aware fine-tuning) is measured
on some draws of devices and kept at once, in one file per network: a study that was stopped goes
on where it was. All of it follows from the seed.

All draws see the same sequences of a supervised task. Agents play other episodes in each draw, the
same ones for all faults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stpn import analog
from stpn._files import explain_os_errors
from stpn._json import read_object, write_json
from stpn.energy import DeviceProfile, EnergyMeter, profile
from stpn.errors import ConfigError, RunError
from stpn.training.reinforcement import ReinforcementTrainer
from stpn.training.trainer import Trainer
from stpn.zoo import opened, pretrained

VERSION = 1
PERFECT = DeviceProfile(volts=0.2, siemens=25e-6, name="perfect")
DAY = 86_400.0
TASKS = ("art", "maze", "maze-ablation")
TRAINING = 50_000
"""Sequences that fine-tuning draws from."""
RATE = 1e-3
"""Learning rate at the beginning of fine-tuning; it falls to 0."""
AGENT_RATE = 1e-4
"""The same of an agent, which a larger one makes forget."""


@dataclass(frozen=True)
class Fault:
    """One imperfection in some sizes."""

    name: str
    text: str
    sizes: tuple[float, ...]
    device: Callable[[float], tuple[DeviceProfile, float]]
    """Of a size: the devices, and seconds since W was programmed."""
    drawn: bool = True
    """Whether one set of devices differs from another, or one read from the next."""
    time: bool = False
    """Whether the size is in seconds since W was programmed."""

    def label(self, size: float) -> str:
        """The size in a word or two; empty if there is but one."""
        if self.sizes == (0.0,):
            return ""
        if not self.time:
            return f"{size:g}"
        days = f"{size / DAY:g} day{'s' * (size != DAY)}"
        return "fresh" if not size else f"{size / 3600:g} h" if size < DAY else days


def _value(name: str) -> Callable[[float], tuple[DeviceProfile, float]]:
    return lambda size: (PERFECT.replace(**{name: size}), 0.0)


def _programming(size: float) -> tuple[DeviceProfile, float]:
    pcm = profile("pcm")
    return PERFECT.replace(programming=tuple(size * c for c in pcm.programming)), 0.0


def _drift(size: float) -> tuple[DeviceProfile, float]:
    pcm = profile("pcm")
    names = ("drift", "drift_spread", "flicker")
    return PERFECT.replace(**{name: getattr(pcm, name) for name in names}), size


def _bits(*names: str) -> Callable[[float], tuple[DeviceProfile, float]]:
    extra: dict[str, Any] = {"f_range": 4.0} if "f_bits" in names else {}
    return lambda size: (PERFECT.replace(**{**extra, **dict.fromkeys(names, int(size))}), 0.0)


def _stuck(size: float) -> tuple[DeviceProfile, float]:
    return PERFECT.replace(stuck_off=size / 2, stuck_on=size / 2), 0.0


def _rates(size: float) -> tuple[DeviceProfile, float]:
    return PERFECT.replace(lambda_spread=size, gamma_spread=size), 0.0


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("none", "perfect devices", (0.0,), lambda size: (PERFECT, 0.0), drawn=False),
        Fault("programming", "programming noise, in that of PCM", (1.0, 2.0), _programming),
        Fault("drift", "drift and 1/f noise of PCM,", (3600.0, 30 * DAY), _drift, time=True),
        Fault("stuck", "stuck cells, share", (0.01, 0.05), _stuck),
        Fault("w_bits", "bits of W", (6, 4), _bits("w_bits"), drawn=False),
        Fault(
            "converters",
            "bits of DAC and ADC",
            (8, 6),
            _bits("dac_bits", "adc_bits"),
            drawn=False,
        ),
        Fault("read_noise", "noise of reading a cell", (0.0175, 0.05), _value("read_noise")),
        Fault("f_bits", "bits of F", (6, 4), _bits("f_bits"), drawn=False),
        Fault("rates", "spread of lambda and gamma", (0.1, 0.3), _rates),
        Fault("update_noise", "noise of updates of F", (0.3, 1.0), _value("update_noise")),
        Fault(
            "asymmetry",
            "asymmetry of updates of F",
            (0.1, 0.3),
            _value("update_asymmetry"),
            drawn=False,
        ),
        Fault(
            "pcm", "all of the profile pcm,", (0.0, DAY), lambda s: (profile("pcm"), s), time=True
        ),
        Fault("reram", "all of the profile reram", (0.0,), lambda s: (profile("reram"), s)),
    )
}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    draws: int = 10
    """Sets of devices for each cell."""
    sequences: int = 2_000
    """Test sequences of a supervised task."""
    episodes: int = 64
    """Episodes of an agent in each draw."""
    tuning: int = 500
    """Updates of hardware-aware fine-tuning of a supervised task; 0: none."""
    iterations: int = 0
    """Iterations of hardware-aware fine-tuning of an agent; 0: none. One of an STPN takes as long
    as 2,000 steps of 64 agents: its recurrence runs in plain steps."""
    seed: int = 0

    def check(self) -> None:
        for name in ("draws", "sequences", "episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be >= 1, not {getattr(self, name)}")
        for name in ("tuning", "iterations"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be >= 0, not {getattr(self, name)}")


def networks() -> list[str]:
    """The networks of the package that the study is about."""
    return [card.name for card in pretrained.cards() if card.task in TASKS]


def study(
    names: list[str],
    faults: list[str],
    plan: Plan,
    out: Path,
    progress: Callable[[str], None] = lambda text: None,
) -> None:
    """Measure what is not in `out` yet."""
    plan.check()
    with explain_os_errors(f"create {out}"):
        out.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = out / f"{name}.json"
        content = _read(path, name, plan)
        missing = [cell for cell in _cells(name, faults, plan) if cell[0] not in content["cells"]]
        if not missing:
            continue
        tuned = False
        with _opened(name, plan) as trainer, torch.random.fork_rng(devices=[]):
            for key, fault, size, wants_tuning in missing:
                progress(f"{name}: {key}")
                if wants_tuning and not tuned:
                    _tune(trainer, profile("pcm"), plan)
                    tuned = True
                content["cells"][key] = _measure(trainer, fault, size, plan)
                write_json(path, content, sealed=True)


def _opened(name: str, plan: Plan) -> AbstractContextManager[Trainer]:
    """The network with as little data as the plan needs."""
    if _supervised(name):
        sizes: dict[str, Any] = {
            "test_size": plan.sequences,
            "train_size": TRAINING,
            "validation_size": 1,
        }
        return opened(name, **sizes)
    schedule: dict[str, Any] = {"lr": AGENT_RATE, "lr_final": 0.0, "lr_decay": None}
    return opened(name, iterations=max(plan.iterations, 1), **schedule)


def _supervised(name: str) -> bool:
    return pretrained.card(name).metric == "test_accuracy"


def read_study(out: Path) -> dict[str, dict[str, Any]]:
    """By network: card and cells of a study, in the order of the networks."""
    found = {path.stem: path for path in out.glob("*.json")}
    order = [name for name in pretrained.names() if name in found]
    return {name: _checked(read_object(found[name]), found[name]) for name in order}


def _checked(content: dict[str, Any], path: Path) -> dict[str, Any]:
    if content.get("version") != VERSION or not isinstance(content.get("cells"), dict):
        raise RunError(f"{path} is no part of a study of this version; remove it")
    return content


def _read(path: Path, name: str, plan: Plan) -> dict[str, Any]:
    settings = dataclasses.asdict(plan)
    if not path.exists():
        card = pretrained.card(name)
        about = {"task": card.task, "model": card.model, "metric": card.metric}
        return {"version": VERSION, "network": name, **about, "plan": settings, "cells": {}}
    content = _checked(read_object(path), path)
    content["plan"] = {"iterations": 0, **content["plan"]}  # earlier ones had none
    if content["plan"] != settings:
        raise ConfigError(
            f"{path} was measured by another plan, {content['plan']}: choose the same, or another "
            "directory"
        )
    return content


def _cells(
    name: str, faults: list[str], plan: Plan
) -> Iterator[tuple[str, Fault, float, bool]]:  # fmt: skip
    chosen, supervised = [FAULTS[fault] for fault in faults], _supervised(name)
    for tuned in (False, True) if (plan.tuning if supervised else plan.iterations) else (False,):
        for fault in chosen:
            # Agents are played step by step, which takes long: the last size alone.
            for size in fault.sizes if supervised else fault.sizes[-1:]:
                yield f"{fault.name}/{size:g}" + "/tuned" * tuned, fault, size, tuned


def _measure(trainer: Trainer, fault: Fault, size: float, plan: Plan) -> dict[str, Any]:
    device, time = fault.device(size)
    proficiencies, powers, joules = [], [], []
    model: Any = trainer.model
    agent = isinstance(trainer, ReinforcementTrainer)
    for draw in range(plan.draws if agent or fault.drawn else 1):
        seed = 1000 * plan.seed + draw
        torch.manual_seed(seed)
        analog.convert(model, device, seed, time=time, inplace=True).eval()
        with EnergyMeter(model.core) as meter:
            proficiency, power = _evaluated(trainer, plan.episodes, seed)
        proficiencies.append(round(proficiency, 3))
        powers.append(round(power, 4))
        energy = meter.energy(profile("pcm"))
        joules.append(float(f"{energy.total:.5g}"))
    cell: dict[str, Any] = {"proficiency": proficiencies, "power": powers, "joules": joules}
    if fault.name == "none":
        terms = {name: float(f"{value:.5g}") for name, value in energy.terms.to_dict().items()}
        cell["energy"] = {**terms, "writes": energy.writes, "normalised": energy.normalised}
    return cell


def _evaluated(trainer: Trainer, episodes: int, seed: int) -> tuple[float, float]:
    if isinstance(trainer, ReinforcementTrainer):
        played = trainer.play(episodes, "devices", seed)
        return float(played.rewards.mean()), played.power
    evaluation = trainer.evaluate()
    return evaluation.proficiency, evaluation.power


def _tune(trainer: Trainer, device: DeviceProfile, plan: Plan) -> None:
    """Hardware-aware: devices and noise are drawn anew at each update.

    An agent acts and learns on the same set of devices, and the next iteration has another: what
    it learns from is what it did, but for the noise of reading and of updates.
    """
    torch.manual_seed(plan.seed)
    if isinstance(trainer, ReinforcementTrainer):
        for iteration in range(plan.iterations):
            seed = 1_000_000 * (plan.seed + 1) + iteration  # none that is measured
            analog.convert(trainer.model, device, seed, inplace=True).eval()
            trainer.update()
        return
    analog.convert(trainer.model, device, plan.seed, inplace=True).train()
    optimizer: Any = trainer.optimizer  # type: ignore[attr-defined]
    for update in range(plan.tuning):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - update / plan.tuning)
        trainer.update()
