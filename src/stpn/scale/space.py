"""What a search varies, written as flags.

lr=1e-4:1e-2:log        a number between two, evenly on a logarithmic scale
clamp=0.1:1.0           evenly
hidden_size=8:32        whole numbers, as the setting wants them, both ends included
norm=pre,post           one of these
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stpn.config import IDENTITY, MACHINE, RunConfig, from_dict
from stpn.errors import ConfigError


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def domain(self, tune: Any) -> Any:
        return tune.choice(list(self.values))


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`."""

    low: float
    high: float
    log: bool
    whole: bool

    def domain(self, tune: Any) -> Any:
        if self.whole:
            draw = tune.lograndint if self.log else tune.randint
            return draw(int(self.low), int(self.high) + 1)
        return (tune.loguniform if self.log else tune.uniform)(self.low, self.high)


Space = dict[str, Choice | Range]


def parse(words: Iterable[str], config: RunConfig) -> Space:
    """The space that `words` describe around `config`; every end and choice is a valid setting."""
    space: Space = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not text:
            raise ConfigError(f"a search is NAME=LOW:HIGH[:log] or NAME=A,B,C, not {word!r}")
        # they say what is trained where, or would make trials incomparable
        if name in config.incidental(IDENTITY, MACHINE) or name == config.total_field:
            raise ConfigError(f"{name} cannot be searched; set it with --{name.replace('_', '-')}")
        if name in space:
            raise ConfigError(f"{name} is searched twice")
        space[name] = _range(name, text, config) if ":" in text else _choice(name, text, config)
    if not space:
        raise ConfigError("nothing to search: name settings, as in --search lr=1e-4:1e-2:log")
    return space


def _choice(name: str, text: str, config: RunConfig) -> Choice:
    values = tuple(_value(word) for word in text.split(","))
    for value in values:
        from_dict({**config.to_dict(), name: value})
    return Choice(values)


def _range(name: str, text: str, config: RunConfig) -> Range:
    low_text, _, rest = text.partition(":")
    high_text, _, scale = rest.partition(":")
    low, high = _value(low_text), _value(high_text)
    numbers = all(isinstance(end, (int, float)) and math.isfinite(end) for end in (low, high))
    if not numbers or isinstance(low, bool) or scale not in ("", "log"):
        raise ConfigError(f"a range is LOW:HIGH or LOW:HIGH:log, not {text!r}")
    if not low < high or (scale == "log" and low <= 0):
        above = " and above 0" if scale == "log" else ""
        raise ConfigError(f"{name}: the ends of a range must be in order{above}, not {text!r}")
    for end in (low, high):
        from_dict({**config.to_dict(), name: end})
    return Range(low, high, log=scale == "log", whole=_takes_whole_numbers(name, config, low, high))


def _takes_whole_numbers(name: str, config: RunConfig, low: float, high: float) -> bool:
    """Whether the setting refuses what lies between two numbers."""
    try:
        from_dict({**config.to_dict(), name: (low + high) / 2 + 0.25})
    except ConfigError:
        return True
    return False


def _value(text: str) -> Any:
    """JSON where it is, else the word itself."""
    try:
        return json.loads(text)
    except ValueError:
        return None if text == "None" else text
