"""Byte sizes as text, such as "2GiB" or "500MB": command lines parse them, reports format them."""

from __future__ import annotations

import re

from kvasir.errors import ConfigError

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)}
_UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", start=1)}
_SIZE = re.compile(r"(?P<number>\d{1,15}(\.\d{1,9})?)\s*(?P<unit>[A-Za-z]{0,3})", re.ASCII)


def parse_size(text: str) -> int:
    """Parse "2GiB" (powers of 1024), "500MB" (powers of 1000) or "123". Raises ConfigError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    factor = None if match is None else _UNITS.get(match["unit"].upper())
    if match is None or factor is None:
        raise ConfigError(f"{text!r} is not a size; write it as 2GiB, 500MB or 1000000")
    return int(float(match["number"]) * factor) if "." in match["number"] else int(match["number"]) * factor


def format_size(n_bytes: int) -> str:
    """Format a size with three digits or more: "5.06 MiB", "71.9 GiB", "512 B"."""
    if n_bytes < 1024:
        return f"{n_bytes} B"
    value = float(n_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1023.5 or unit == "GiB":
            break
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{decimals}f} {unit}"
