"""What can go wrong for a user, each with a message that can be printed as it is."""

from __future__ import annotations


class StpnError(Exception):
    """Base of all errors that a user can cause or meet; printed without a trace."""


class ConfigError(StpnError, ValueError):
    """A setting that is unknown, of the wrong type, or impossible."""


class RunError(StpnError):
    """A run directory that is missing, damaged, occupied, or cannot be written."""


class RunInUse(RunError):
    """Another process works in the run directory."""


class CheckpointError(RunError):
    """A checkpoint that is damaged, foreign, from another version, or does not fit the model."""


class NonFinite(StpnError, ArithmeticError):
    """Training met NaN or infinity and stopped; the last good checkpoint is still there."""
