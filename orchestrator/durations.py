"""Durations and sizes as people write them: `10s`, `5m`, `64MiB`. One rule: a unit is always written."""

from __future__ import annotations

from orchestrator.errors import WrongUse

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNITS_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_duration_ms(text: str) -> int:
    """`10s`, `1.5s`, `5m`, `200ms`, `0s` -> milliseconds. Raises WrongUse."""
    number, unit = _split(text)
    if unit not in UNITS_MS:
        raise WrongUse(f"'{text}' is not a duration; write a number and a unit, such as 500ms, 10s, 5m, 2h, 7d")
    return round(_sane(number * UNITS_MS[unit], UNITS_MS["d"] * 36_500, text))


def parse_size_bytes(text: str) -> int:
    """`64MiB`, `1GiB`, `512B` -> bytes. Raises WrongUse."""
    number, unit = _split(text)
    if unit not in UNITS_BYTES:
        raise WrongUse(f"'{text}' is not a size; write a number and a unit, such as 512KiB, 64MiB, 1GiB")
    found = round(_sane(number * UNITS_BYTES[unit], 1 << 60, text))
    if number and not found:
        raise WrongUse(f"'{text}' is less than a byte; write 1B or more")
    return found


def _sane(value: float, most: int, text: str) -> float:
    """Nothing that overflows later, in a timer or a file."""
    if value > most:
        raise WrongUse(f"'{text[:40]}' is too much; durations go up to 100 years, sizes to an exbibyte")
    return value


def _split(text: str) -> tuple[float, str]:
    value = text.strip()
    digits = len(value) - len(value.lstrip("0123456789."))
    number = value[:digits]
    if not number or number.count(".") > 1 or number == "." or not number.isascii():
        return 0.0, ""
    return float(number), value[digits:].strip()


def show_duration(ms: float) -> str:
    """950 -> `950 ms`, 1500 -> `1.5 s`, 90000 -> `1.5 min`."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1_000:.1f} s"
    return f"{ms / 60_000:.1f} min"
