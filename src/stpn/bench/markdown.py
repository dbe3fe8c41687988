"""The numbers of `stpn bench` as docs/speed.md shows them."""

from __future__ import annotations

from typing import Any

from stpn._files import around

BEGIN, END = "<!-- speed -->", "<!-- /speed -->"

_TITLES = {
    "art": "STPNr, associative retrieval",
    "familiarity": "STPNr, familiarity",
    "maze": "STPNr, maze",
    "pong": "STPNr, Pong",
    "familiarity-hebbff": "HebbFF, familiarity",
    "maze-modplast": "ModPlast, maze",
    "art-fastweights": "Fast Weights, associative retrieval",
}
_BASELINES = {
    "loop": "plain loop",
    "compiled": "compiled step",
    "lstm": "nn.LSTM, equal parameters",
}


def filled(text: str, result: dict[str, Any]) -> str:
    """A document with the numbers between its two marks."""
    before, after = around(text, BEGIN, END, "the document")
    return f"{before}\n{table(result)}\n\n{remarks(result)}\n{after}"


def table(result: dict[str, Any]) -> str:
    """One row a case: milliseconds, and how many times faster than each baseline."""
    head = ["core", "B, T, I, H", "ms", *_BASELINES.values(), "synapse steps/s"]
    lines = [head, ["---"] * len(head)]
    for row in result["cases"]:
        if "refused" in row:
            continue
        ratios = row["ratios"]
        lines.append(
            [
                _TITLES[row["case"]],
                ", ".join(map(str, row["shape"])),
                f"{1e3 * row['seconds']['native']:.3g}",
                *(
                    f"{ratios[baseline]:.3g}×" if baseline in ratios else ""
                    for baseline in _BASELINES
                ),
                f"{row['synapse_steps_per_second'] / 1e9:.2f} G",
            ]
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def remarks(result: dict[str, Any]) -> str:
    """Machine, memory and streaming, in words."""
    about = result["machine"]
    sentences = [
        f"{about['processor']}, {about['threads']} threads, torch {about['torch'].split('+')[0]}."
    ]
    for row in result["cases"]:
        if "memory" in row:
            native, loop = row["memory"]["native"] / 2**20, row["memory"]["loop"] / 2**30
            sentences.append(
                f"Extra memory of {_TITLES[row['case']]}: {native:.0f} MiB where the plain loop "
                f"takes {loop:.1f} GiB."
            )
    batch, inputs, hidden = result["streaming"]["shape"]
    sentences.append(
        f"A streaming step of a cell (B = {batch}, I = {inputs}, H = {hidden}) takes "
        f"{1e3 * result['streaming']['seconds']:.2f} ms."
    )
    return " ".join(sentences)
