"""Amounts of money, as people read them."""

from __future__ import annotations


def cents(usd: float) -> str:
    """An amount for people: two decimals, and what is under a cent by its first two digits that are not 0."""
    return f"{usd:.2f}" if usd == 0 or abs(usd) >= 0.01 else f"{usd:.2g}" if abs(usd) >= 1e-4 else "less than 0.0001"
