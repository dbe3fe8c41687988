"""The paper's claims against runs that speak for, against or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from synthetic import write_result

from stpn.report.claims import PaperClaim, claims
from stpn.report.grid import Grid, collect
from stpn.report.synapses import Rates


def grid_of(root: Path, values: dict[str, list[float]], quantity: str = "proficiency") -> Grid:
    for model, numbers in values.items():
        for seed, number in enumerate(numbers):
            write_result(root, "art", model, seed, **{quantity: number})
    return collect(root)


def named(grid: Grid, title: str) -> PaperClaim:
    return next(claim for claim in claims(grid) if claim.title == title)


def test_every_comparison_is_counted_once(tmp_path: Path) -> None:
    values = {
        "stpnr": [90.0, 90.2, 90.1],
        "lstm": [50.0, 50.3, 50.1],
        "rnn": [95.0, 95.2, 95.1],
        "modplast": [90.0, 90.3, 90.1],
        "fastweights": [60.0, 99.0, 80.0],
    }
    claim = named(grid_of(tmp_path, values), "Proficiency")
    assert claim.evidence[:4] == (
        "For: ART (STPNr vs. LSTM).",
        "Against: ART (STPNr vs. RNN).",
        "Tied: ART (STPNr vs. ModPlast).",
        "Open: ART (STPNr vs. Fast Weights).",
    )
    assert claim.evidence[4].startswith("No comparison: Maze (STPNr vs. LSTM, RNN, ModPlast)")


def test_less_power_speaks_for_efficiency(tmp_path: Path) -> None:
    values = {"stpnr": [4.0, 4.1, 4.2], "lstm": [60.0, 61.0, 62.0], "rnn": [1.0, 1.1, 1.0]}
    claim = named(grid_of(tmp_path, values, "power"), "Efficiency")
    assert claim.evidence[0] == "For: ART (STPNr vs. LSTM)."
    assert claim.evidence[1] == "Against: ART (STPNr vs. RNN)."


def test_one_seed_each_is_no_comparison(tmp_path: Path) -> None:
    claim = named(grid_of(tmp_path, {"stpnr": [99.0], "lstm": [10.0]}), "Proficiency")
    assert len(claim.evidence) == 1
    assert claim.evidence[0].startswith("No comparison: ART (STPNr vs. LSTM")


def test_deviations_are_shown_where_there_are_any(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, {"stpnr": [90.0, 92.0], "lstm": [50.0, 60.0], "rnn": [45.0]})
    (line,) = named(grid, "Stability").evidence
    assert line == "ART, deviation over seeds: STPNr 1.41, LSTM 7.07."
    assert (
        "No task has several seeds" in named(collect(tmp_path / "art/rnn"), "Stability").evidence[0]
    )


def test_forgetting_is_read_from_the_network(tmp_path: Path) -> None:
    rates = Rates(np.array([[-1.0, 0.5, 0.5, 3.0]]), np.zeros((1, 4)), ("neuron 1",))
    claim = claims(collect(tmp_path), rates)[-1]
    assert "from -1.00 to 3.00 with a median of 0.50" in claim.evidence[0]
    assert "25% have gone above 1, 25% below 0" in claim.evidence[0]
    assert "no trained STPNr" in claims(collect(tmp_path))[-1].evidence[0]
