"""Which devices satisfy a request for accelerators, by the names that drivers give them."""

from __future__ import annotations

import pytest

from outrider.providers.base import AcceleratorRequest


@pytest.mark.parametrize(
    ("wanted", "device"),
    [
        ("A100", "NVIDIA A100-SXM4-40GB"),
        ("A10G", "NVIDIA A10G"),
        ("H100", "NVIDIA H100 80GB HBM3"),
        ("RTX4090", "NVIDIA GeForce RTX 4090"),
        ("RTX2080Ti", "NVIDIA GeForce RTX 2080 Ti"),
        ("RTXA6000", "NVIDIA RTX A6000"),
        ("RTX6000Ada", "NVIDIA RTX 6000 Ada Generation"),
        ("RTXPRO6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ("T4", "Tesla T4"),
        ("MI300X", "AMD Instinct MI300X"),
        ("A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
    ],
)
def test_a_driver_names_a_device_in_words(wanted: str, device: str) -> None:
    assert AcceleratorRequest(wanted, memory_gb=16.0).fits(device, 15.0)
    assert not AcceleratorRequest(wanted, memory_gb=16.0).fits(device, 14.0)


@pytest.mark.parametrize(
    ("wanted", "device"),
    [
        ("A10", "NVIDIA A100-SXM4-40GB"),
        ("A10", "NVIDIA A10G"),
        ("A40", "NVIDIA RTX A4000"),
        ("H200", "NVIDIA GH200 480GB"),
        ("L4", "NVIDIA L40S"),
        ("P4", "Tesla P40"),
        ("T4", "NVIDIA T4G"),
        ("Trainium", "Trainium2"),
    ],
)
def test_another_device_is_not_taken_for_it(wanted: str, device: str) -> None:
    assert not AcceleratorRequest(wanted).fits(device, 500.0)
