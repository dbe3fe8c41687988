"""Numbers for people."""

from __future__ import annotations


def counted(number: int, unit: str) -> str:
    """1 epoch, 2 epochs, 1,000 epochs."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """3725 seconds as 1:02:05, 65 as 1:05."""
    if seconds is None:
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def share(part: float) -> str:
    """A part of the whole in percent; what is small is not nothing, nor what lacks little all."""
    percent = 100 * part
    if 0 < percent < 1:
        return "<1%"
    return f"{int(percent)}%"


def number(value: float | None, name: str) -> str:
    """Accuracies with their percent sign, everything else with the digits that matter."""
    if value is None:
        return "-"
    if "accuracy" in name:
        return f"{value:.2f} %"
    return f"{value:.1g}" if 0 < abs(value) < 0.05 else f"{value:.1f}"
