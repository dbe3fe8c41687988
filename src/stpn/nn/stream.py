"""`Stream`: a sequence without end, read in pieces: gradients of a piece, a state that is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from stpn._files import half_of_memory, read_file, write_atomic
from stpn.errors import CheckpointError
from stpn.nn import checks
from stpn.nn.core import RecurrentCore


class Stream:
    """Reads a long stream with a core, piece after piece, and carries the state along.

        stream = stpn.Stream(core)
        for y, piece in stream.pieces(x, 50):           # truncated backpropagation through time
            loss = criterion(readout(y), target[:, piece])
            loss.backward()                             # reaches back to the start of the piece
            optimizer.step(); optimizer.zero_grad()
        stream.save("state.safetensors")                # and another day:
        stream = stpn.Stream(core).restore("state.safetensors")

    Values go on from piece to piece, gradients do not: the state is detached before each one.
    `state` is the core's own tuple, None before the first piece.
    """

    def __init__(self, core: RecurrentCore, state: tuple[Any, ...] | None = None) -> None:
        if not isinstance(core, RecurrentCore):
            raise TypeError(f"core: expected a layer of stpn.nn, got {type(core).__name__}")
        if core.bidirectional:
            raise ValueError(
                "core: expected one direction, got bidirectional=True, which needs the end first"
            )
        self.core = core
        self.state = state

    def __call__(self, x: Tensor, reset: Tensor | None = None) -> Tensor:
        """The next piece, as `core(x, state, reset)` takes it; what the core gives for it."""
        state = None if self.state is None else tuple(layer.detach() for layer in self.state)
        y, self.state = self.core(x, state, reset)
        return y

    def pieces(
        self, x: Tensor, steps: int, reset: Tensor | None = None
    ) -> Iterator[tuple[Tensor, slice]]:
        """x in pieces of so many time steps, the last one maybe shorter: y and the steps it is of.

        x (B, T, I) with `batch_first`, else (T, B, I) or (T, I); reset as x without features.
        """
        checks.positive_int("steps", steps)
        time = 1 if self.core.batch_first and x.dim() == 3 else 0
        for start in range(0, x.shape[time], steps):
            piece = slice(start, min(start + steps, x.shape[time]))
            where = (slice(None), piece) if time else (piece,)
            yield self(x[where], None if reset is None else reset[where]), piece

    def save(self, path: str | Path) -> None:
        """Keep the state in a safetensors file, replaced at once: `h_l0`, `f_l0`, ..."""
        from safetensors.torch import save

        if self.state is None:
            raise ValueError("nothing to save: no piece has been read yet")
        tensors = {
            f"{name}{layer.suffix}": value.detach().cpu().contiguous().clone()
            for layer, state in zip(self.core.layers, self.state, strict=True)
            for name, value in zip(self._fields, state, strict=True)
        }
        write_atomic(Path(path), save(tensors, {"state": self.core.state_type.__name__}))

    def restore(self, path: str | Path) -> Stream:
        """Go on from a state that `save` wrote, with any batch; nothing of the file is executed."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            found = load(read_file(Path(path), most=half_of_memory()))
        except SafetensorError as error:
            raise CheckpointError(f"{path} is not a safetensors file: {error}") from error
        names = [[name + layer.suffix for name in self._fields] for layer in self.core.layers]
        known = [name for layer in names for name in layer]
        if set(known) != set(found):
            raise CheckpointError(
                f"{path} is not a state of this {type(self.core).__name__}: expected "
                f"{', '.join(known)}, got {', '.join(sorted(found))}"
            )
        device = self.core.like.device
        state = tuple(
            self.core.state_type(*(found[name].to(device) for name in layer)) for layer in names
        )
        batch: tuple[int, ...] = ()  # of one sequence, or of a batch, with a dimension more
        if known:
            first, alone = found[known[0]], self.core.state_shapes(self.core.input_size)[0]
            batch = tuple(first.shape[:1]) if first.dim() == len(alone) + 1 else ()
        try:
            self.state = self.core.checked_states(state, batch)
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path} does not fit this {type(self.core).__name__}: {error}"
            ) from error
        return self

    @property
    def _fields(self) -> tuple[str, ...]:
        return getattr(self.core.state_type, "_fields", ())
