"""GPUs are read from nvidia-smi's table and divided among the nodes."""

from __future__ import annotations

import pytest

from outrider.providers.base import AcceleratorRequest
from outrider.providers.errors import NoCapacity
from outrider.providers.local.computer import divide, visible, warn_of_too_few
from outrider.providers.shared.nvidia_smi import Device, parse

H200 = "0, GPU-6c2f9a54-97a9-2f4d-6f36-0d6c1c3f5b1e, NVIDIA H200, 143771\n"
TWO_A100 = """\
0, GPU-11111111-0000-0000-0000-000000000000, NVIDIA A100-SXM4-80GB, 81920
1, GPU-22222222-0000-0000-0000-000000000000, NVIDIA A100-SXM4-80GB, 81920
"""
MIXED = """\
0, GPU-aaaaaaaa-0000-0000-0000-000000000000, NVIDIA A100-SXM4-40GB, 40960
1, GPU-bbbbbbbb-0000-0000-0000-000000000000, NVIDIA GeForce RTX 4090, 24564
2, GPU-cccccccc-0000-0000-0000-000000000000, NVIDIA A100-SXM4-80GB, 81920
"""
SHARED_MEMORY = "0, GPU-dddddddd-0000-0000-0000-000000000000, NVIDIA GB10, [N/A]\n"


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (H200, [("H200", 140.4)]),
        (TWO_A100, [("A100-SXM4-80GB", 80.0)] * 2),
        (SHARED_MEMORY, [("GB10", 0.0)]),
        ("", []),
        ("No devices were found\n", []),
        ("Warning: infoROM is corrupted at gpu 0000:00:1E.0\n" + H200, [("H200", 140.4)]),
    ],
)
def test_nvidias_table_is_read(table, found):
    assert [(device.name, device.memory_gb) for device in parse(table)] == found


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("2, 0", [2, 0]),
        ("1,7,0", [1]),  # up to the first that there is not
        ("0,0", [0]),
        ("GPU-cccc,GPU-aaaaaaaa", [2, 0]),
        ("GPU-", []),  # which one?
    ],
)
def test_what_the_user_hid_from_cuda_stays_hidden(chosen, left):
    assert [device.index for device in visible(parse(MIXED), chosen)] == left


@pytest.mark.parametrize(
    ("devices", "nodes", "wanted", "shares"),
    [
        ("", 4, None, ["all"] * 4),  # nothing to hide
        (H200, 1, None, ["0"]),
        (H200, 4, None, [""] * 4),  # fewer devices than nodes: none sees any
        (TWO_A100, 1, None, ["0,1"]),
        (TWO_A100, 2, None, ["0", "1"]),
        (MIXED, 2, None, ["0", "1"]),  # evenly: one is left over
        (H200, 1, AcceleratorRequest("H200"), ["0"]),
        (TWO_A100, 2, AcceleratorRequest("a100"), ["0", "1"]),
        (TWO_A100, 1, AcceleratorRequest("A100", 2), ["0,1"]),
        (MIXED, 2, AcceleratorRequest("A100"), ["0", "2"]),
        (MIXED, 1, AcceleratorRequest("A100", memory_gb=80), ["2"]),
        (MIXED, 1, AcceleratorRequest("RTX 4090"), ["1"]),
    ],
)
def test_nodes_get_equal_shares(devices, nodes, wanted, shares):
    divided = divide(parse(devices), nodes, wanted)
    assert [share.environment.get("CUDA_VISIBLE_DEVICES", "all") for share in divided] == shares


def test_who_gets_no_gpu_though_there_are_some_is_told():
    with pytest.warns(RuntimeWarning, match="none of 4 local nodes .* sees a GPU, because this computer has only 1:"):
        warn_of_too_few(parse(H200), 4, None)


@pytest.mark.parametrize(
    ("devices", "nodes", "wanted"), [("", 4, None), (H200, 1, None), (H200, 4, AcceleratorRequest("H200"))]
)
@pytest.mark.filterwarnings("error")
def test_who_gets_one_or_has_none_is_not(devices, nodes, wanted):
    warn_of_too_few(parse(devices), nodes, wanted)


@pytest.mark.parametrize(
    ("devices", "nodes", "wanted", "said"),
    [
        ("", 1, AcceleratorRequest("A100"), "this computer has no accelerator"),
        (H200, 2, AcceleratorRequest("H200"), r"2 local nodes with 1 H200 each need 2; this computer has H200"),
        (H200, 1, AcceleratorRequest("A100"), "a local node needs 1 A100"),
        (MIXED, 2, AcceleratorRequest("A100", memory_gb=80), "of 80 GB"),
        (TWO_A100, 2, AcceleratorRequest("A100", 2), "need 4"),
    ],
)
def test_more_than_there_is_is_refused(devices, nodes, wanted, said):
    with pytest.raises(NoCapacity, match=said):
        divide(parse(devices), nodes, wanted)


def test_indexes_are_the_bus_order_on_both_sides():
    (share,) = divide([Device(3, "GPU-x", "H200", 140.4)], 1, None)
    assert share.environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "3"}
    assert share.accelerators == [("H200", 140.4)]
