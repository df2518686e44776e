"""The cluster does not answer: what is on a node is still taken away, and told later, in the right order."""

from __future__ import annotations

import pytest

from executor.errors import InUseError, UnavailableError
from executor.keys import Keys, subject_key
from executor.node_marks import head_of
from omap import names
from omap.faults import ApplyLate, Call, CallKind, Decision, Fault
from omap.store import FencedError, StoreError, StoreUnavailableError
from tests.node_operations.nodes import HOST, KEYS, LOCAL, Node, NodeWorld
from tests.node_operations.plays import NOTES, Disturbed, clear_away, nothing_on_nodes


class Away:
    """A cluster that is away while `is_away`; `writes` is what becomes of writes then, if not an error."""

    def __init__(self, writes: Decision | None = None) -> None:
        self.is_away = True
        self._writes = writes

    def decide(self, call: Call) -> Decision:
        if not self.is_away or call.name == NOTES or call.name.startswith((LOCAL, HOST, KEYS)):
            return Fault.NONE
        if self._writes is not None and call.kind is CallKind.WRITE:
            return self._writes
        return StoreUnavailableError("cluster c does not answer")


def test_a_volume_is_taken_off_a_node_while_the_cluster_is_away(world: NodeWorld) -> None:
    world.node().stage()
    world.node().publish()
    away = Away()
    node = world.node(faults=away)
    node.unpublish()
    node.unstage()
    host = world.host()
    assert [*host.mounts, *host.mappings, *host.folders] == []
    with pytest.raises(StoreError, match="does not answer"):
        node.tell()
    with pytest.raises(InUseError):
        world.delete_volume()
    away.is_away = False
    node.tell()
    assert nothing_on_nodes(world) == []
    told = [names.parse_node_tx_key(key) for key in sorted(world.record())]
    assert [parsed for parsed in told if parsed is not None] == [("n1", number) for number in (1, 2, 3, 4)]
    assert head_of(world.record(), "n1")["state"] == "unstaged"
    clear_away(world, node)


def test_nothing_is_staged_while_the_cluster_is_away(world: NodeWorld) -> None:
    away = Away()
    node = world.node(faults=away)
    with pytest.raises((StoreError, UnavailableError), match="does not answer"):
        node.stage()
    away.is_away = False
    node.stage()
    clear_away(world, node)


def test_a_cluster_that_goes_away_in_the_middle_of_a_stage_is_waited_for(world: NodeWorld) -> None:
    away = Away()
    away.is_away = False
    node = world.node(faults=away)

    def go(point: str) -> None:
        away.is_away = away.is_away or point == "stage_volume.format.apply"

    world.between = go
    with pytest.raises(UnavailableError, match="does not answer"):
        node.stage()
    world.between = lambda _point: None
    assert not world.host().mounts
    away.is_away = False
    node.stage()
    clear_away(world, node)


def test_an_unstage_of_a_stage_that_never_formatted_needs_no_cluster(world: NodeWorld) -> None:
    world.kill_at("stage_volume.map.apply", Node.stage)
    away = Away()
    node = world.node(faults=away)
    node.unstage()
    assert not world.host().mappings
    away.is_away = False
    node.tell()
    assert nothing_on_nodes(world) == []
    clear_away(world, node)


def test_what_is_staged_again_before_the_unstage_was_told_stays_staged(world: NodeWorld) -> None:
    """The telling read the local record before; its write must not put the older head over the newer."""
    node = world.node()
    node.stage()
    node.unstage()
    late = Disturbed({})
    teller = world.node(faults=late)
    stop_at: list[str] = []

    def stage_in_between(point: str) -> None:
        if point == "spool.tell" and not stop_at:
            stop_at.append(point)
            node.stage()

    world.between = stage_in_between
    teller.tell()
    world.between = lambda _point: None
    assert stop_at
    assert head_of(world.record(), "n1")["state"] == "staged"
    assert world.record()[names.WRITER] == b"node/n1"
    node.tell()
    assert head_of(world.record(), "n1")["state"] == "staged"
    clear_away(world, node)


@pytest.mark.parametrize("later", [1, 2, 4, 8])
def test_a_telling_that_comes_late_changes_nothing_that_was_told_since(world: NodeWorld, later: int) -> None:
    node = world.node()
    node.stage()
    node.unstage()
    late = Away(ApplyLate(later))
    late.is_away = False
    teller = world.node(faults=late)

    def lose(point: str) -> None:
        late.is_away = point == "spool.tell"

    world.between = lose
    teller.tell()
    world.between = lambda _point: None
    node.stage()
    node.publish()
    node.tell()
    world.cluster.deliver_late()
    assert head_of(world.record(), "n1")["state"] == "staged"
    assert world.record()[names.WRITER] == b"node/n1"
    clear_away(world, node)


def test_a_head_told_by_a_stage_that_was_then_taken_back_is_told_to_be_wrong(world: NodeWorld) -> None:
    """The plugin died between telling the cluster that it has staged and noting it itself."""
    world.kill_at("stage_volume.local.commit", Node.stage)
    assert head_of(world.record(), "n1")["state"] == "staged"
    node = world.node()
    node.unstage()
    node.tell()
    assert head_of(world.record(), "n1") == {}
    assert world.record()[names.WRITER] == b"none"
    assert nothing_on_nodes(world) == []
    clear_away(world, node)


def test_an_older_spool_entry_does_not_hide_a_stage_that_is_being_committed(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    node.unstage()
    world.kill_at("stage_volume.local.commit", Node.stage)
    node = world.node()
    node.tell()
    assert head_of(world.record(), "n1")["state"] == "staged"
    with pytest.raises(InUseError):
        world.delete_volume()
    node.stage()
    clear_away(world, node)


def test_a_volume_that_is_gone_wants_to_know_nothing(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    node.unstage()
    world.cluster.remove_pool("rbd")
    node.tell()
    assert nothing_on_nodes(world) == []


def test_who_is_fenced_tells_nothing_and_leaves_the_rest_to_the_next(world: NodeWorld) -> None:
    node = world.node()
    for address in node.session.addresses:
        world.cluster.blocklist(address)
    with pytest.raises(FencedError):
        node.stage()
    node = world.node()
    node.stage()
    clear_away(world, node)


class Watched:
    """Disturbs nothing, and notes during which calls the volume's key was held."""

    def __init__(self, world: NodeWorld) -> None:
        self.held: list[str] = []
        self._key = subject_key(world.handle.uuid)
        self.keys: Keys | None = None

    def decide(self, call: Call) -> Decision:
        if self.keys is not None and self.keys.holder_of(self._key) is not None:
            self.held.append(call.name)
        return Fault.NONE


def test_telling_holds_nobody_up_who_uses_the_volume(world: NodeWorld) -> None:
    """While a pod still has the volume, whoever takes it away need not come twice."""
    watched = Watched(world)
    node = world.node(faults=watched)
    node.stage()
    node.publish()
    watched.keys = node.context.keys
    node.tell()
    assert watched.held == []
    watched.keys = None
    node.unpublish()
    node.unstage()
    watched.keys = node.context.keys
    node.tell()
    assert f"{KEYS}forget" in watched.held
    watched.keys = None
    clear_away(world, node)
