"""An STPN in Lightning: truncated backpropagation along a stream that batches cut into pieces.

    pip install '.[recipes]'
    python examples/recipes/lightning_stream.py --epochs 3

Batches follow each other in time: each goes on from the state that the last one left, its gradients
do not (`stpn.Stream`). Episodes begin where the batch says so. State and place in the stream are
part of the checkpoint, so that a training which is resumed between two batches ends with the
weights of one that was not stopped. Validation has a stream of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import recall
import torch
from torch import Tensor, nn
from torch.nn import functional

import stpn


class Pieces:
    """Loads a stream (B, T) in pieces of so many steps, in the order of time."""

    def __init__(self, batch: int, steps: int, length: int, seed: int = 0) -> None:
        data = recall.stream(batch, steps, torch.Generator().manual_seed(seed))
        self.pieces = list(zip(*(part.split(length, dim=1) for part in data), strict=True))
        self.next = 0

    def __len__(self) -> int:
        return len(self.pieces)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        self.next %= len(self.pieces)
        while self.next < len(self.pieces):
            self.next += 1
            yield self.pieces[self.next - 1]

    def state_dict(self) -> dict[str, int]:  # Lightning keeps it in the checkpoint
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Streaming(pl.LightningModule):
    """A core and a readout that answers at every step of a stream."""

    def __init__(self, model: str = "stpnr", hidden_size: int = 32, lr: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.core = stpn.build(model, recall.CUES, hidden_size, batch_first=True)
        self.readout = nn.Linear(hidden_size, recall.CUES)
        self.stream = stpn.Stream(self.core)
        self.validation_stream = stpn.Stream(self.core)

    def forward(self, x: Tensor, reset: Tensor | None = None) -> Tensor:
        """The next piece of the training stream: x (B, T, I) to logits (B, T, C)."""
        return self.readout(self.stream(x, reset))

    def training_step(self, batch: tuple[Tensor, ...], index: int) -> Tensor:
        x, cues, begins = batch
        return functional.cross_entropy(self(x, begins).flatten(0, 1), cues.flatten())

    def validation_step(self, batch: tuple[Tensor, ...], index: int) -> None:
        x, cues, begins = batch
        answers = self.readout(self.validation_stream(x, begins)).argmax(2)
        self.log("accuracy", (answers == cues).float().mean(), batch_size=len(x), prog_bar=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = self.stream.state or ()
        checkpoint["stream"] = [value.detach() for layer in state for value in layer]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        values = iter(checkpoint["stream"])
        layers = len(self.core.layers) if checkpoint["stream"] else 0
        fields = len(self.core.state_type._fields)
        state = tuple(
            self.core.state_type(*(next(values) for _ in range(fields))) for _ in range(layers)
        )
        self.stream.state = state or None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="stpnr")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    trainer = pl.Trainer(
        max_epochs=options.epochs, accelerator="cpu", logger=False, enable_checkpointing=False
    )
    trainer.fit(
        Streaming(options.model),
        Pieces(32, 2000, 20),
        Pieces(32, 200, 20, seed=1),
    )
    print(f"accuracy {trainer.callback_metrics['accuracy']:.3f}")
