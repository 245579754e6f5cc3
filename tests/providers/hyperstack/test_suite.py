"""Hyperstack's machines keep what every provider's and every such cloud's keep: here on paper, in the test cloud."""

from __future__ import annotations

from ..cloud.suite import test_check, test_contract, test_once_1_falls_without_its_guard

__all__ = ["test_check", "test_contract", "test_once_1_falls_without_its_guard"]
