"""Associative retrieval: read letter-digit pairs, then answer with one letter's digit.

`c9k8j3??k` asks for k's digit: 8. Letters are drawn without replacement, digits with. Symbols are
kept as small integers, a-z 0-25, 0-9 26-35, ? 36; `one_hot` makes a core's input of them.

>>> data = dataset(train=1000, validation=100, test=100, seed=0)
>>> data.train.symbols.shape, data.train.answers.shape
(torch.Size([1000, 9]), torch.Size([1000]))
>>> decode(encode("c9k8j3??k")), solve("c9k8j3??k")
('c9k8j3??k', '8')
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

LETTERS, DIGITS, QUERY = string.ascii_lowercase, string.digits, "?"
ALPHABET = LETTERS + DIGITS + QUERY
NUM_SYMBOLS = len(ALPHABET)  # 37
PAIRS = 3
MAX_PAIRS = 7  # beyond, the number of a sequence does not fit 64 bits


class Split(NamedTuple):
    """N sequences of T = 2 * pairs + 3 symbols and what they ask for."""

    symbols: Tensor  # (N, T) uint8
    answers: Tensor  # (N,) int64, the symbol of a digit: 26 to 35


class Dataset(NamedTuple):
    """Three splits without a sequence in common."""

    train: Split
    validation: Split
    test: Split


def dataset(
    train: int = 100_000,
    validation: int = 10_000,
    test: int = 20_000,
    *,
    seed: int | torch.Generator = 0,
    pairs: int = PAIRS,
) -> Dataset:
    """Draw all splits at once, every sequence equally likely and none twice.

    What is measured on the test set is therefore never a sequence that was trained on.
    """
    sizes = [train, validation, test]
    splits = split(sequences(sum(sizes), seed=seed, pairs=pairs), sizes)
    return Dataset(*splits)


def sequences(count: int, *, seed: int | torch.Generator = 0, pairs: int = PAIRS) -> Split:
    """`count` different sequences in random order."""
    if not 1 <= pairs <= MAX_PAIRS:
        raise ValueError(f"pairs must be between 1 and {MAX_PAIRS}, not {pairs}")
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    # each possible sequence has a number: its letters, its digits, which pair is asked
    possible = math.perm(len(LETTERS), pairs) * len(DIGITS) ** pairs * pairs
    if not 0 <= count <= possible:
        raise ValueError(f"{pairs} pairs make {possible} sequences; cannot draw {count} of them")
    return _spell(_distinct(count, possible, generator), pairs)


def split(data: Split, sizes: list[int]) -> list[Split]:
    """Cut into consecutive parts of these sizes."""
    columns = (column.split(sizes) for column in data)
    return [Split(*parts) for parts in zip(*columns, strict=True)]


def encode(text: str) -> Tensor:
    """Symbols (T,) uint8 of a sequence such as "c9k8j3??k"."""
    unknown = sorted(set(text) - set(ALPHABET))
    if unknown:
        raise ValueError(f"not a symbol of the task: {', '.join(map(repr, unknown))}")
    return torch.tensor([ALPHABET.index(symbol) for symbol in text], dtype=torch.uint8)


def decode(symbols: Tensor) -> str:
    """The text of symbols (T,), or of a single symbol ()."""
    return "".join(ALPHABET[symbol] for symbol in symbols.reshape(-1).tolist())


def solve(text: str) -> str:
    """The digit that a sequence asks for; ValueError for text that is not a whole sequence."""
    body, queries, key = text[:-3], text[-3:-1], text[-1:]
    pairs = dict(zip(body[::2], body[1::2], strict=False))
    well_formed = (
        len(body) >= 2
        and len(body) % 2 == 0
        and queries == QUERY * 2
        and len(pairs) == len(body) // 2
        and all(letter in LETTERS and digit in DIGITS for letter, digit in pairs.items())
    )
    if not well_formed:
        raise ValueError(
            f"{text!r} is not a sequence: letter-digit pairs with different letters, then '??' "
            "and one of the letters, as in 'c9k8j3??k'"
        )
    if key not in pairs:
        raise ValueError(f"{text!r} asks for {key!r}, which is not one of its letters")
    return pairs[key]


def answer(network: Callable[[Tensor], Tensor], text: str) -> str:
    """What a network that reads one-hot sequences (B, T, 37) to logits (B, 37) says to a text."""
    symbols = encode(text)
    if isinstance(network, torch.nn.Module):  # wherever it is
        symbols = symbols.to(next(network.parameters()).device)
    with torch.no_grad():
        logits = network(one_hot(symbols).unsqueeze(0))
    return decode(logits.argmax(dim=-1).cpu())


def one_hot(symbols: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(..., T) integers to (..., T, 37)."""
    table = torch.eye(NUM_SYMBOLS, dtype=dtype, device=symbols.device)
    return table[symbols.long()]


def _distinct(count: int, possible: int, generator: torch.Generator) -> Tensor:
    """`count` different numbers below `possible`, in random order (count,)."""
    if possible <= 4 * count:
        return torch.randperm(possible, generator=generator)[:count]
    numbers = torch.empty(0, dtype=torch.int64)
    while len(numbers) < count:
        missing = count - len(numbers)
        more = torch.randint(possible, (missing + missing // 8 + 8,), generator=generator)
        numbers = _first_occurrences(torch.cat([numbers, more]))
    return numbers[:count]


def _first_occurrences(numbers: Tensor) -> Tensor:
    """Without repetitions, in the order of first appearance: the order stays random."""
    ordered, position = numbers.sort(stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return numbers[position[first].sort().values]


def _spell(numbers: Tensor, pairs: int) -> Split:
    """Sequences by number: peel off the digits of a mixed-radix number (N,)."""
    rows = torch.arange(len(numbers))
    numbers, asked = numbers // pairs, numbers % pairs  # (N,)
    digits: list[Tensor] = []
    letters: list[Tensor] = []
    for _ in range(pairs):
        numbers, digit = numbers // len(DIGITS), numbers % len(DIGITS)
        digits.append(digit + len(LETTERS))
    for taken in range(pairs):
        remaining = len(LETTERS) - taken
        numbers, letter = numbers // remaining, numbers % remaining
        # the letter-th of those not taken yet: step over each smaller or equal taken one
        if letters:
            for other in torch.stack(letters).sort(dim=0).values:
                letter = letter + (letter >= other)
        letters.append(letter)
    keys, values = torch.stack(letters, dim=1), torch.stack(digits, dim=1)  # (N, pairs)
    symbols = torch.full((len(rows), 2 * pairs + 3), ALPHABET.index(QUERY), dtype=torch.uint8)
    symbols[:, 0 : 2 * pairs : 2] = keys.to(torch.uint8)
    symbols[:, 1 : 2 * pairs : 2] = values.to(torch.uint8)
    symbols[:, -1] = keys[rows, asked].to(torch.uint8)
    return Split(symbols, values[rows, asked])
