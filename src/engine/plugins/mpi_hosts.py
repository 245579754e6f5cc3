"""Settings for MPI's launchers and libraries about the nodes: host files, and which network to use."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from .mpi_rsh import RSH
from .rank_layout import interface

if TYPE_CHECKING:
    from ..api.instance import InstanceInfo


def launcher_variables() -> Mapping[str, str]:
    """Return variables that make ``mpirun`` use our program as ssh: for MPICH, Intel MPI, Open MPI 4 and 5 (PRRTE)."""
    rsh = os.environ.get(RSH)
    if rsh is None:  # the plugin belongs to a single function, or the code runs outside a pool
        return {}
    variables = {
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": rsh,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": rsh,
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": rsh,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": rsh,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    }
    if os.geteuid() == 0:  # the user chose root as the user on the nodes
        for prefix in ("OMPI", "PRTE"):
            variables |= {f"{prefix}_ALLOW_RUN_AS_ROOT": "1", f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return variables


def network_variables(info: InstanceInfo) -> Mapping[str, str]:
    """Return variables for the network that connects the pool's nodes; empty where all nodes are on one computer."""
    own = _own_address(info)
    addresses = [IPv4Address(peer.address) for peer in info.peers if _is_v4(peer.address)]
    if not addresses or own is None or own.is_loopback:
        return {}
    variables: dict[str, str] = {}
    if name := interface(str(own)):
        variables |= {"HYDRA_IFACE": name, "I_MPI_HYDRA_IFACE": name, "FI_TCP_IFACE": name}
    subnet = common_network(addresses)
    for name in ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include"):
        variables[name] = subnet
    return variables


@contextmanager
def written_hosts(info: InstanceInfo) -> Iterator[None]:
    """Write host files of the nodes that this task sees, and set the variables by which launchers find the files.

    The files are in the plugin's folder on the node, so they are removed even if this task is killed.
    """
    rsh = os.environ.get(RSH)
    if rsh is None:  # no launcher can reach another node
        yield
        return
    hosts = hosts_of(info)
    with tempfile.TemporaryDirectory(prefix="hosts-", dir=Path(rsh).parent) as directory:
        hydra, open_mpi = Path(directory, "hosts.hydra"), Path(directory, "hosts.openmpi")
        hydra.write_text("".join(f"{host}:{slots}\n" for host, slots in hosts.items()))
        open_mpi.write_text("".join(f"{host} slots={slots}\n" for host, slots in hosts.items()))
        os.environ.update(
            HYDRA_HOST_FILE=str(hydra),
            I_MPI_HYDRA_HOST_FILE=str(hydra),
            OMPI_MCA_orte_default_hostfile=str(open_mpi),
            PRTE_MCA_prte_default_hostfile=str(open_mpi),
        )
        yield


def hosts_of(info: InstanceInfo) -> dict[str, int]:
    """Return address -> slots, as many as this node has processors. Nodes that share a computer count as one host."""
    addresses = list(dict.fromkeys(peer.address for peer in info.peers))
    return dict.fromkeys(addresses, len(os.sched_getaffinity(0)))


def common_network(addresses: Sequence[IPv4Address]) -> str:
    """Return the smallest network that contains all addresses: ``10.0.0.0/29``."""
    first, last = int(min(addresses)), int(max(addresses))
    return str(ip_network((first, 32 - (first ^ last).bit_length()), strict=False))


def _own_address(info: InstanceInfo) -> IPv4Address | None:
    own = next((peer.address for peer in info.peers if peer.node == info.node), info.head_addr)
    return IPv4Address(own) if _is_v4(own) else None


def _is_v4(address: str) -> bool:
    try:
        return ip_address(address).version == 4
    except ValueError:
        return False
