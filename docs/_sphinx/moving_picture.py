"""The moving picture of the start page: the synapses of a trained network while it reads.

    python docs/_sphinx/moving_picture.py        # writes docs/pictures/synapses.svg

What is drawn is computed by `art-stpnr`, a network of the package, in double precision by the
specification. Who asked for less motion sees the last moment.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import stpn
from stpn.tasks import art

NETWORK = "art-stpnr"
TEXT = "c9k8j3??k"
OUT = Path(__file__).parents[1] / "pictures" / "synapses.svg"

WIDTH, HEIGHT = 720, 462
STEP, BLEND, REST = 1.3, 0.45, 4.0  # seconds: a symbol, the change that it makes, the answer
SECONDS = STEP * (len(TEXT) + 1) + REST
CELL, GAP = 20, 3
LEFT, TOP = 96, 128  # of the map
FULL = 0.8  # |F| that is drawn in full colour
POSITIVE, NEGATIVE = "214,84,10", "40,110,210"

STYLE = """
.card{fill:#fff;stroke:#d5dae2}.ink{fill:#22272e}.soft{fill:#5d6673}.cell{fill:#eef0f4}
.tile{fill:#eef0f4}.now{fill:#f2b632}.bar{fill:#5b8def}
text{font-family:system-ui,sans-serif;font-size:14px}.small{font-size:12.5px}
.symbol{font:600 20px ui-monospace,monospace;text-anchor:middle}.mid{text-anchor:middle}
.end{text-anchor:end}.answer{font:700 52px ui-monospace,monospace;text-anchor:middle}
@media(prefers-color-scheme:dark){.card{fill:#171a20;stroke:#343a44}.ink{fill:#e8ebf0}
.soft{fill:#a3acb9}.cell,.tile{fill:#262b34}.now{fill:#b07d10}}
@media(prefers-reduced-motion:reduce){*{animation:none!important}}
"""


@dataclass(frozen=True)
class Reading:
    """A network while it reads: after t symbols, t from 0 to T."""

    f: Tensor  # (T + 1, H, D)
    h: Tensor  # (T, H)
    power: Tensor  # (T,)
    answer: str


def read(text: str = TEXT) -> Reading:
    network = stpn.pretrained(NETWORK).double()
    with stpn.use_backend("reference"), torch.no_grad():
        trace = stpn.trace(network.core, art.one_hot(art.encode(text), torch.float64))
        logits = network.readout(trace.h[-1:])
    f = torch.cat([trace.f, trace.state[-1].f.unsqueeze(0)])
    return Reading(f, trace.h, trace.power, art.decode(logits.argmax(-1)))


def percent(seconds: float) -> str:
    return f"{100 * seconds / SECONDS:.2f}".rstrip("0").rstrip(".") + "%"


def keyframes(name: str, key: str, values: list[str]) -> str:
    """A property that has values[0] at first and values[t] from the t-th symbol on."""
    stops = [f"0%{{{key}:{values[0]}}}"]
    for t, (before, after) in enumerate(itertools.pairwise(values), 1):
        if before != after:
            stops.append(f"{percent(t * STEP)}{{{key}:{before}}}")
            stops.append(f"{percent(t * STEP + BLEND)}{{{key}:{after}}}")
    stops.append(f"100%{{{key}:{values[-1]}}}")
    return f"@keyframes {name}{{{''.join(stops)}}}#{name}{{animation:{name} {SECONDS}s infinite}}"


def colour(value: float) -> str:
    share = round(20 * min(abs(value) / FULL, 1.0)) / 20
    return f"rgba({POSITIVE if value > 0 else NEGATIVE},{share:g})" if share else "rgba(0,0,0,0)"


def drawn() -> str:
    reading = read()
    steps, hidden = reading.h.shape
    seen = list(dict.fromkeys(TEXT))  # a column each, in the order of their first appearance
    inputs = art.encode("".join(seen)).tolist()
    columns = inputs + [art.NUM_SYMBOLS + k for k in range(hidden)]
    style, body = [STYLE], []

    def place(column: int) -> float:
        return LEFT + column * (CELL + GAP) + (18 if column >= len(inputs) else 0)

    # the sequence
    for t, symbol in enumerate(TEXT):
        x = LEFT + t * 40
        on = [str(int(now == t + 1)) for now in range(steps + 1)]
        style.append(keyframes(f"t{t}", "opacity", on))
        body += [
            f'<rect class="tile" x="{x}" y="46" width="34" height="36" rx="6"/>',
            f'<rect class="now" id="t{t}" x="{x}" y="46" width="34" height="36" rx="6" '
            f'opacity="{on[-1]}"/>',
            f'<text class="symbol ink" x="{x + 17}" y="71">{symbol}</text>',
        ]
    # short-term weights
    for column, d in enumerate(columns):
        x = place(column)
        label = seen[column] if column < len(inputs) else str(column - len(inputs) + 1)
        body.append(
            f'<text class="small mid {"ink" if column < len(inputs) else "soft"}" '
            f'x="{x + CELL / 2}" y="{TOP - 6}">{label}</text>'
        )
        for row in range(hidden):
            y = TOP + row * (CELL - 4)
            box = f'x="{x}" y="{y}" width="{CELL}" height="{CELL - 6}" rx="2"'
            colours = [colour(value) for value in reading.f[:, row, d].tolist()]
            body.append(f'<rect class="cell" {box}/>')
            if any(c != colours[0] for c in colours):
                name = f"c{column}-{row}"
                style.append(keyframes(name, "fill", colours))
                body.append(f'<rect id="{name}" {box} fill="{colours[-1]}"/>')
    foot = TOP + hidden * (CELL - 4)
    last = place(len(columns) - 1) + CELL
    # power
    base, tallest = foot + 90, 44
    for t, power in enumerate(reading.power.tolist()):
        x, height = LEFT + t * 40, tallest * power / reading.power.max().item()
        style.append(keyframes(f"p{t}", "opacity", [str(int(now > t)) for now in range(steps + 1)]))
        body.append(
            f'<g id="p{t}"><rect class="bar" x="{x}" y="{base - height:.1f}" width="34" '
            f'height="{height:.1f}" rx="3"/><text class="small soft mid" x="{x + 17}" '
            f'y="{base + 17}">{power:.1f}</text></g>'
        )
    # the answer
    style.append(
        keyframes("answer", "opacity", [str(int(now == steps)) for now in range(steps + 1)])
    )
    right = last + 90
    body += [
        f'<text class="ink" x="{LEFT}" y="32">It reads a sequence that asks: which digit '
        f"followed {TEXT[-1]}?</text>",
        f'<text class="soft end" x="{LEFT - 14}" y="{TOP + 10}">neuron 1</text>',
        f'<text class="soft end" x="{LEFT - 14}" y="{foot - 6}">{hidden}</text>',
        f'<text class="small soft" x="{LEFT}" y="{foot + 16}">synapses from symbols</text>',
        f'<text class="small soft" x="{place(len(inputs))}" y="{foot + 16}">'
        "synapses from the neurons</text>",
        f'<text class="soft end" x="{LEFT - 14}" y="{base - 6}">power</text>',
        f'<text class="soft mid" x="{right}" y="{TOP + 28}">its answer</text>',
        f'<text class="ink answer" id="answer" x="{right}" y="{TOP + 84}">{reading.answer}</text>',
        f'<text class="small ink" x="{LEFT}" y="{HEIGHT - 16}">Colour: short-term weight F, '
        f'<tspan fill="rgb({POSITIVE})">above</tspan> or <tspan fill="rgb({NEGATIVE})">below'
        "</tspan> zero. It grows where a synapse is used, and fades.</text>",
    ]
    title = f"The synapses of a short-term plasticity network while it reads {TEXT}"
    about = (
        f"Short-term weights of {NETWORK}, {hidden} neurons. The synapses of each letter grow when "
        f"it is read and stay; those of the digits fade. It answers {reading.answer}."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{title}</title><desc>{about}</desc><style>{''.join(style)}</style>"
        f'<rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="12"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    OUT.write_text(drawn(), encoding="utf-8")
    print(OUT, f"{OUT.stat().st_size:,} bytes")
