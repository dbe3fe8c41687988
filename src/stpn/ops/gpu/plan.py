"""Which kernels run a network: by the size of its synapses, never by the batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Synapses of one program's tile, padded. The backward pass holds dF and three sums of gradients in
# registers, and an SM has 65,536 of them: more would spill.
MOST_ON_CHIP = 8192

# Programs of a backward pass, each with scratch of its own: enough for any GPU of today.
MOST_PROGRAMS = 1024


def power_of_two(size: int, least: int = 1) -> int:
    """The next one."""
    return max(least, 1 << (size - 1).bit_length())


@dataclass(frozen=True)
class Tile:
    """The part of the synapses that one program has: rows, columns, and how many such parts."""

    rows: int
    columns: int
    blocks: int
    warps: int


def on_chip(rows: int, columns: int, *, independent: bool, gated: bool) -> Tile | None:
    """The tile that stays in registers; None if a program would have too much.

    `independent`: rows know nothing of each other, so a program needs not have all of them.
    """
    wide = power_of_two(columns, 16)
    high = power_of_two(rows // 4, 4) * 4 if gated else power_of_two(rows, 4)
    if independent:  # few rows each: a step takes as long as its longest program
        high = max(1, min(high, 1024 // wide))
    if high * wide > MOST_ON_CHIP:
        return None
    warps = min(16, max(1, high * wide // 256))
    return Tile(high, wide, 1 if gated else math.ceil(rows / high), warps)


def square(hidden: int) -> Tile | None:
    """The tile of synapses from each unit to each, all on chip; None if they are too many."""
    wide = power_of_two(hidden, 16)
    if wide > 128:
        return None
    return Tile(wide, wide, 1, min(32, max(1, wide * wide // 256)))


def segment_length(steps: int) -> int:
    """Steps between checkpoints of F: with the root of T, both together take least memory."""
    return max(1, math.isqrt(steps - 1) + 1) if steps > 1 else 1


# Programs of a backward sweep in memory: a few for each SM of a large GPU.
PROGRAMS_IN_MEMORY = 512


def rows_in_memory(gated: bool) -> Tile:
    """Forward: some rows of one sequence, taken a piece of their columns at a time."""
    return Tile(8 if gated else 4, 512, 0, 8)


def tile_in_memory(gated: bool) -> Tile:
    """Backward: a tile of the synapses, for several sequences."""
    return Tile(16, 128, 0, 8)
