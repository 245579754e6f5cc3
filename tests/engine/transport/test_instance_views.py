"""What a pool tells its nodes of each other, and what a task makes of it."""

from __future__ import annotations

import json

import msgpack
import pytest

from outrider.actors.interfaces import NodeFacts, NodeId, World
from outrider.engine.node.environ import Info
from outrider.engine.transport import instance_views
from outrider.engine.transport.instance_views import InstanceViews

PORT = 29500
MEMBERS = tuple((NodeId(node), NodeFacts(f"host{node}", f"10.0.0.{node}", ())) for node in (7, 3, 5))


def view(views, node, members):
    return b"".join(views.view(node, members))


@pytest.fixture
def views():
    return InstanceViews("pool", 1)


@pytest.fixture
def info(views):
    """Of the node of rank 1."""
    info = Info(0, "10.0.0.3", "host3")
    info.view(view(views, NodeId(3), MEMBERS))
    return info


def world(*nodes, each=1, port=PORT, ports=()):
    return World(1, tuple(NodeId(node) for node in nodes), each, "10.0.0.7", port, ports)


WORLDS = [
    (world(7, 3, 5), [("host7", PORT), ("host3", 0), ("host5", 0)]),
    (world(7, 3), [("host7", PORT), ("host3", 0)]),
    (world(7, 3, each=2), [("host7", PORT), ("host7", 0), ("host3", 0), ("host3", 0)]),
    (world(7, 3, 5, ports=(PORT, 2, 3)), [("host7", PORT), ("host3", 2), ("host5", 3)]),
    (world(7, 3, 9), [("host7", PORT), ("host3", 0), ("", 0)]),  # 9 has left; rank 1 alone runs again
]


@pytest.mark.parametrize(("generation", "peers"), WORLDS)
def test_a_rank_knows_every_peer(views, info, generation, peers):
    for attempt in (1, 2):  # the second is made from what the first left
        fields, text = info.of(8, attempt, views.world(generation, 1))
        assert [(peer["hostname"], peer["port"]) for peer in fields["peers"]] == peers
        assert [peer["rank"] for peer in fields["peers"]] == list(range(generation.size))
        assert (fields["rank"], fields["head_port"], fields["attempt"]) == (1, PORT, attempt)
        assert json.loads(text) == fields


def test_worlds_of_the_same_nodes_differ_in_their_ports_alone(views, info):
    for port in (PORT, PORT + 1):
        fields, text = info.of(8, 1, views.world(world(7, 3, 5, port=port), 1))
        assert (fields["head_port"], fields["peers"][0]["port"]) == (port, port)
        assert json.loads(text) == fields
    alone, text = info.of(9, 1, None)
    assert (alone["rank"], alone["world_size"], [peer["port"] for peer in alone["peers"]]) == (0, 1, [0, 0, 0])
    assert json.loads(text) == alone


def test_what_the_view_says_is_not_said_to_every_rank(views, info):
    assert "peers" not in msgpack.unpackb(views.world(world(7, 3, 5), 1))
    view(views, NodeId(3), MEMBERS[:2])
    assert "peers" in msgpack.unpackb(views.world(world(7, 3, 5), 1))


def test_a_world_that_is_packed_again_after_the_view_has_changed_names_its_peers(views):
    """Found by the simulator: a rank whose arguments took their time was told of the peers of a later view."""
    view(views, NodeId(3), MEMBERS)
    of = world(7, 3, 5)
    assert "peers" not in msgpack.unpackb(views.world(of, 1))
    view(views, NodeId(3), MEMBERS[:2])
    assert [peer["hostname"] for peer in msgpack.unpackb(views.world(of, 1))["peers"]] == ["host7", "host3", ""]


def test_in_a_large_pool_a_node_is_told_its_place_and_a_rank_its_peers(views, info):
    """A task alone has then no peers but itself."""
    view(views, NodeId(3), MEMBERS)
    info.view(views.place(4, MEMBERS[1][1], nodes=2000, accelerators=16))
    alone, _ = info.of(9, 1, None)
    assert (alone["node"], alone["total_nodes"], alone["total_accelerators"]) == (4, 2000, 16)
    assert [(peer["rank"], peer["hostname"]) for peer in alone["peers"]] == [(0, "host3")]
    rank, _ = info.of(8, 1, views.world(world(7, 3, 5), 1, named=False))
    assert [peer["hostname"] for peer in rank["peers"]] == ["host7", "host3", "host5"]
    assert "peers" not in msgpack.unpackb(views.world(world(7, 3, 5), 1)), "of a node that was told of them"


def test_the_view_of_a_large_pool_names_nobody(views, info, monkeypatch):
    monkeypatch.setattr(instance_views, "NAMED_MOST", 2)
    info.view(view(views, NodeId(3), [*MEMBERS]))
    assert not views.names_peers
    fields, _ = info.of(8, 1, views.world(world(7, 3, 5), 1, named=False))
    assert [peer["hostname"] for peer in fields["peers"]] == ["host7", "host3", "host5"]


def test_whose_facts_are_known(views):
    view(views, NodeId(3), MEMBERS)
    assert views.facts == [facts for _, facts in MEMBERS]
    views.place(4, MEMBERS[1][1], nodes=2000, accelerators=0)
    assert views.facts is None, "the newest are not among them"
    view(views, NodeId(3), MEMBERS)
    assert views.facts is not None


def test_a_node_that_is_not_ready_has_no_view(views):
    assert views.view(NodeId(9), MEMBERS) is None


@pytest.mark.parametrize("of", [None, world(7, 3, 5)])
def test_each_thread_of_a_worker_is_a_worker(views, info, of):
    fields, text = info.of(8, 1, None if of is None else views.world(of, 1), thread=2)
    assert fields["worker"] == 2
    assert fields["head_port"] > 0
    assert json.loads(text) == fields


def test_what_all_nodes_are_told_is_there_once(views):
    parts = [views.view(node, MEMBERS) for node, _ in MEMBERS]
    assert len({id(shared) for _, shared in parts}) == 1
    assert len({own for own, _ in parts}) == len(MEMBERS)
