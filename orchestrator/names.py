"""The natural order of names, S2 before S10, and counts of things. One rule: the same names sort the same everywhere."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1 << 16)  # the same few names are sorted again and again
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key in which S2 comes before S10."""
    parts: list[tuple[int, int, str]] = []
    digits = ""
    text = ""
    for char in name:
        if char.isascii() and char.isdigit():
            if text:
                parts.append((1, 0, text))
                text = ""
            digits += char
        else:
            if digits:
                parts.append(_number(digits))
                digits = ""
            text += char
    if digits:
        parts.append(_number(digits))
    if text:
        parts.append((1, 0, text))
    return tuple(parts)


def _number(digits: str) -> tuple[int, int, str]:
    """By value, however many digits there are (Python reads no number of 5,000); then 01 before 1."""
    value = digits.lstrip("0")
    return 0, len(value), f"{value} {digits}"


def counted(count: int, noun: str) -> str:
    """`1 task`, `2 tasks`, `1 entry`, `2 entries`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("try") else f"{count} {noun}s"
