"""The tree of the mesh: DL4J's own tests of it, and that it is one tree whatever happens, and whoever is asked."""

from __future__ import annotations

import random

import pytest

from dl4jlegacy.scaleout.links.mesh.organizer import MAX_DOWNSTREAMS, MeshBuildMode, MeshOrganizer


def made_of(count: int, mode: MeshBuildMode = "mesh") -> MeshOrganizer:
    organizer = MeshOrganizer(mode)
    for number in range(count):
        organizer.add_node(f"n{number}")
    return organizer


def check_is_one_tree(organizer: MeshOrganizer) -> None:
    """All that are online are one tree under the root, each attached to one that came before it and is online."""
    came = {id: place for place, id in enumerate(organizer)}
    online = [id for id in organizer if organizer.is_online(id)]
    for id in online:
        upstream = organizer.upstream_of(id)
        if upstream is None:
            assert id == organizer.root
        else:
            assert organizer.is_online(upstream) and came[upstream] < came[id]
            assert id in organizer.downstreams_of(upstream)
    for id in set(organizer) - set(online):
        assert organizer.upstream_of(id) is None and organizer.downstreams_of(id) == ()
    assert sum(len(organizer.downstreams_of(id)) for id in online) == max(0, len(online) - 1)


def test_8192_processes_are_a_tree_of_eight_downstreams_each_and_at_most_six_connections_deep() -> None:
    organizer = made_of(8192)
    check_is_one_tree(organizer)
    assert len(organizer) == organizer.version == 8192
    for id in organizer:
        assert len(organizer.downstreams_of(id)) <= MAX_DOWNSTREAMS
        assert organizer.distance_from_root(id) <= 6
    full = [id for id in organizer if organizer.downstreams_of(id)]
    assert full == [f"n{number}" for number in range(1024)]  # filled one after the other


def test_breadth_first_the_roots_eight_come_first_then_the_eight_of_each() -> None:
    organizer = made_of(1 + 8 + 64 + 1)
    assert organizer.downstreams_of("n0") == tuple(f"n{number}" for number in range(1, 9))
    assert organizer.downstreams_of("n1") == tuple(f"n{number}" for number in range(9, 17))
    assert [organizer.distance_from_root(f"n{number}") for number in (0, 8, 72, 73)] == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [1, 2, 500])
def test_in_the_mode_plain_all_are_attached_to_the_root(count: int) -> None:
    organizer = made_of(count, "plain")
    check_is_one_tree(organizer)
    assert len(organizer.downstreams_of("n0")) == count - 1


@pytest.mark.parametrize("count", [10, 100, 1000, 8192])
def test_nobody_stays_attached_to_a_process_that_is_gone(count: int) -> None:
    organizer = made_of(count)
    rng = random.Random(count)
    gone = rng.sample(range(count), min(count // 2, 80))
    for number in gone:
        organizer.mark_node_offline(f"n{number}")
    check_is_one_tree(organizer)
    assert len(organizer) == count
    for id in organizer:
        if organizer.is_online(id) and id != organizer.root:
            assert len(organizer.downstreams_of(id)) <= MAX_DOWNSTREAMS


def test_the_downstreams_of_a_process_that_is_gone_go_where_there_is_room_near_the_root() -> None:
    organizer = made_of(20)  # n1 has n9 to n16, n2 has n17 to n19
    before = organizer.version
    organizer.mark_node_offline("n1")
    moved = {f"n{number}": organizer.upstream_of(f"n{number}") for number in range(9, 17)}
    assert moved == {
        "n9": "n0", "n10": "n3", "n11": "n4", "n12": "n5", "n13": "n6", "n14": "n7", "n15": "n8", "n16": "n9"
    }  # fmt: skip
    assert organizer.version > before
    assert organizer.upstream_of("n17") == "n2"


def test_who_comes_takes_the_room_that_one_has_left() -> None:
    organizer = made_of(20)
    organizer.mark_node_offline("n5")
    organizer.add_node("new")
    assert organizer.upstream_of("new") == "n0"
    organizer.remove_node("n3")
    organizer.add_node("newer")
    assert organizer.upstream_of("newer") == "n0"


def test_where_the_root_is_gone_the_next_one_is_the_root() -> None:
    for mode in ("plain", "mesh"):
        organizer = made_of(30, mode)
        organizer.mark_node_offline("n0")
        assert organizer.root == "n1"
        check_is_one_tree(organizer)
        organizer.mark_node_offline("n1")
        assert organizer.root == "n2"
        check_is_one_tree(organizer)


def test_in_the_mode_plain_all_are_attached_to_the_new_root() -> None:
    organizer = made_of(30, "plain")
    organizer.mark_node_offline("n0")
    assert len(organizer.downstreams_of("n1")) == 28


def test_who_comes_back_is_attached_to_the_root_and_so_is_what_is_attached_to_it() -> None:
    organizer = made_of(200)
    organizer.mark_node_offline("n4")
    organizer.add_node("n4")
    assert organizer.upstream_of("n4") == "n0" and organizer.downstreams_of("n4") == ()
    below = organizer.downstreams_of("n10")
    assert below
    organizer.remap_node_and_downstreams("n10")
    assert [organizer.upstream_of(id) for id in ("n10", *below)] == ["n0"] * (1 + len(below))
    check_is_one_tree(organizer)


def test_a_root_that_comes_back_is_the_root_again() -> None:
    organizer = made_of(9)
    organizer.mark_node_offline("n0")
    organizer.add_node("n0")
    assert (organizer.root, organizer.upstream_of("n1")) == ("n0", "n0")
    check_is_one_tree(organizer)


@pytest.mark.parametrize("mode", ["plain", "mesh"])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.everyday(5)
def test_whatever_comes_and_goes_it_is_one_tree_and_no_deeper_than_it_must_be(mode: MeshBuildMode, seed: int) -> None:
    rng, organizer, born = random.Random(seed), MeshOrganizer(mode), 0
    for _ in range(600):
        known, dice = list(organizer), rng.random()
        if dice < 0.45 or not known:
            organizer.add_node(f"n{born}")
            born += 1
        elif dice < 0.6:
            organizer.mark_node_offline(rng.choice(known))
        elif dice < 0.75:
            organizer.add_node(rng.choice(known))
        elif dice < 0.9:
            organizer.remove_node(rng.choice(known))
        elif organizer.is_online(chosen := rng.choice(known)):
            organizer.remap_node(chosen)
        check_is_one_tree(organizer)
    deepest = max(organizer.distance_from_root(id) for id in organizer)
    assert deepest <= (6 if mode == "mesh" else 1)


@pytest.mark.parametrize("seed", range(20))
def test_processes_that_have_seen_different_things_still_attach_nobody_in_a_circle(seed: int) -> None:
    """Each looks up its own upstream alone, in a tree that it has made of what it has seen."""
    rng, views = random.Random(seed), {}
    ids = [f"n{number}" for number in range(60)]
    for id in ids:
        organizer = MeshOrganizer("mesh")
        for other in ids:
            if other == id or rng.random() < 0.8:
                organizer.add_node(other)
        for other in rng.sample(list(organizer), 15):
            if other != id:
                organizer.mark_node_offline(other)
        views[id] = organizer.upstream_of(id)
    for id, upstream in views.items():
        assert upstream is None or ids.index(upstream) < ids.index(id)


def test_a_copy_made_of_the_same_steps_is_the_same_tree() -> None:
    first, second = made_of(100), made_of(100)
    for organizer in (first, second):
        organizer.mark_node_offline("n3")
        organizer.remove_node("n50")
    assert [(id, first.upstream_of(id)) for id in first] == [(id, second.upstream_of(id)) for id in second]
    assert first.version == second.version
