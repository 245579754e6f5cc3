"""Amounts of money for people."""

from __future__ import annotations


def cents(usd: float) -> str:
    """An amount with two decimals; below a cent, its first two significant digits."""
    return f"{usd:.2f}" if usd == 0 or abs(usd) >= 0.01 else f"{usd:.2g}" if abs(usd) >= 1e-4 else "less than 0.0001"
