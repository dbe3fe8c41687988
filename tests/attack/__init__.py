"""Hostile input, seeded and counted: what must never happen is tried here again and again.

    python -m tests.attack --cases 100000 --seed 0 --only operators,layers
    python -m tests.attack --only operators --seed 0 --first 4711 --cases 1     one case again

An attack is one function that makes a case out of random numbers, tries it, and says in a word how
it ended; what breaks a promise it raises as `Broken`. `attack` enters it into the table:

    @attack("layers")
    def hostile_layer(random: Random) -> str: ...

A module with attacks is imported in `__main__`. An attack that may end the process is `isolated`:
its cases run in a process of their own, and one that ends or hangs it is counted like any other
failure.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

Case = Callable[[Random], str]

HANGS = 120.0  # seconds after which one case counts as hung, unless its attack says else
_BATCH = 5000  # cases of an isolated attack in one process


class Broken(Exception):
    """A promise was not kept; the message says which, and with what."""


@dataclass(frozen=True)
class Attack:
    name: str
    case: Case
    isolated: bool
    hangs: float


@dataclass
class Report:
    """How the cases of an attack ended."""

    name: str
    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, index: int, outcome: str, broken: bool) -> None:
        self.cases += 1
        if broken:
            self.failures.append(f"case {index}: {outcome}")
        else:
            self.outcomes[outcome] += 1

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {what}" for what, n in self.outcomes.most_common())
        lines = [f"{self.name}: {self.cases} cases, {len(self.failures)} failures ({counts})"]
        return "\n  ".join(lines + self.failures)


ATTACKS: dict[str, Attack] = {}


def attack(name: str, *, isolated: bool = False, hangs: float = HANGS) -> Callable[[Case], Case]:
    def enter(case: Case) -> Case:
        ATTACKS[name] = Attack(name, case, isolated, hangs)
        return case

    return enter


def run(name: str, *, cases: int, seed: int, first: int = 0) -> Report:
    """So many cases from the `first` on; the same seed and number give the same case."""
    report = Report(name)
    run_all = _in_processes if ATTACKS[name].isolated else run_here
    for index, (outcome, broken) in enumerate(run_all(name, cases, seed, first), first):
        report.add(index, outcome, broken)
    return report


def run_here(name: str, cases: int, seed: int, first: int) -> Iterator[tuple[str, bool]]:
    """The outcome of each case, and whether it broke a promise."""
    for index in range(first, first + cases):
        try:
            yield ATTACKS[name].case(Random(f"{name} {seed} {index}")), False
        except Broken as broken:
            yield str(broken), True
        except Exception as error:  # of a kind that the attack did not expect
            yield f"{type(error).__name__}: {error}", True


def _in_processes(name: str, cases: int, seed: int, first: int) -> Iterator[tuple[str, bool]]:
    end = first + cases
    while first < end:
        n = min(_BATCH, end - first)
        done = 0
        for outcome in _in_a_process(name, n, seed, first):
            done += 1
            yield outcome
        first += done


def _in_a_process(name: str, cases: int, seed: int, first: int) -> Iterator[tuple[str, bool]]:
    """Outcomes up to the case that ended the process, if one did."""
    command = [sys.executable, "-m", "tests.attack", "--inside", "--only", name]
    command += ["--cases", str(cases), "--seed", str(seed), "--first", str(first)]
    root = Path(__file__).parents[2]
    with tempfile.TemporaryFile("w+") as errors:
        done = 0
        with subprocess.Popen(
            command, cwd=root, env={**os.environ, "PYTHONFAULTHANDLER": "1"}, text=True,
            stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
        ) as child:  # fmt: skip
            assert child.stdout is not None
            for line in child.stdout:
                outcome, broken = json.loads(line)
                done += 1
                yield outcome, broken
        code = child.returncode
        if done == cases and code == 0:
            return
        errors.seek(0)
        said = errors.read().strip()
    if done == 0 and code > 0:
        raise RuntimeError(f"{' '.join(command)} did not start:\n{said}")
    how = "hung" if code == -signal.SIGALRM else f"ended the process ({_named(code)})"
    yield f"{how}: {said.splitlines()[0] if said else ''}", True


def _named(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def inside(name: str, cases: int, seed: int, first: int) -> None:
    """One line of JSON per case; a case that hangs ends the process."""
    results = run_here(name, cases, seed, first)
    for _ in range(cases):
        signal.setitimer(signal.ITIMER_REAL, ATTACKS[name].hangs)
        print(json.dumps(next(results)), flush=True)
    signal.setitimer(signal.ITIMER_REAL, 0)
