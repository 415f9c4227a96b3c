"""The block pool: references, the order of reuse, and keys."""

import pytest

from kda_lab.serving.blocks.pool import BlockPool


def ids(blocks):
    return [block.id for block in blocks]


def keyed(pool, count):
    """So many referenced blocks with a key each."""
    blocks = pool.allocate(count)
    for block in blocks:
        pool.register(block, (b"%d" % block.id, 0), 16)
    return blocks


def test_a_pool_needs_a_block_beside_the_null_block():
    with pytest.raises(ValueError, match="ask for 2 or more"):
        BlockPool(1)


def test_the_null_block_is_never_given_out_freed_or_counted():
    pool = BlockPool(4)
    assert ids(pool.allocate(3)) == [1, 2, 3]
    pool.free([pool.null])
    pool.touch(pool.null)
    assert pool.num_free == 0 and pool.null.refs == 0


def test_more_than_there_is_is_refused_and_nothing_is_taken():
    pool = BlockPool(4)
    with pytest.raises(RuntimeError, match="check num_free"):
        pool.allocate(4)
    assert pool.num_free == 3


def test_blocks_without_a_key_are_reused_first_and_keyed_ones_in_the_order_of_their_release():
    pool = BlockPool(7)
    a, b, c = keyed(pool, 3)
    d, e = pool.allocate(2)
    pool.free([c, d, a, e, b])
    # those of one call keep their order among themselves
    assert ids(pool.free_queue) == [4, 5, 6, 3, 1, 2]


def test_later_calls_go_in_front_of_earlier_ones():
    pool = BlockPool(5)
    a, b, c = pool.allocate(3)
    pool.free([a])
    pool.free([b, c])
    assert ids(pool.free_queue) == [2, 3, 1, 4]


def test_a_hit_takes_a_block_out_of_the_queue_and_its_release_puts_it_at_the_end():
    pool = BlockPool(5)
    a, b = keyed(pool, 2)
    pool.free([a, b])
    pool.touch(a)
    assert a.refs == 1 and ids(pool.free_queue) == [3, 4, 2]
    pool.free([a])
    assert ids(pool.free_queue) == [3, 4, 2, 1]


def test_eviction_takes_every_key_of_a_block():
    pool = BlockPool(3)
    (a,) = pool.allocate(1)
    pool.register(a, (b"part", 0), 1984, full=False)
    pool.register(a, (b"more", 0), 1985, full=False)
    pool.free([a])
    pool.allocate(2)
    assert (
        a.free_of_keys and pool.lookup(b"part", [0]) is None and pool.lookup(b"more", [0]) is None and not pool.holders
    )


def test_a_full_key_replaces_the_partial_ones_that_led_to_it_and_a_partial_one_comes_after():
    pool = BlockPool(3)
    (a,) = pool.allocate(1)
    pool.register(a, (b"part", 0), 1984, full=False)
    assert a.primary == (b"part", 0)
    pool.register(a, (b"full", 0), 2560)
    assert a.keys == [(b"full", 0)]
    pool.register(a, (b"part", 0), 1984, full=False)
    # attention rows are only appended: both are true, and the first one counts
    assert a.primary == (b"full", 0) and a.extra == [(b"part", 0)]


def test_two_blocks_may_hold_the_same_and_a_lookup_takes_the_first():
    pool = BlockPool(4)
    a, b = pool.allocate(2)
    for block in (a, b):
        pool.register(block, (b"same", 1), 16)
    assert pool.lookup(b"same", [1]) == [a]
    pool.free([a])
    pool.allocate(2)
    assert pool.lookup(b"same", [1]) == [b]


def test_a_lookup_needs_every_group():
    pool = BlockPool(4)
    a, b = pool.allocate(2)
    pool.register(a, (b"x", 1), 16)
    assert pool.lookup(b"x", [1, 2]) is None
    pool.register(b, (b"x", 2), 16)
    assert pool.lookup(b"x", [1, 2]) == [a, b]


def test_moved_keys_are_found_at_their_new_place_only():
    pool = BlockPool(4)
    a, b = pool.allocate(2)
    pool.register(a, (b"x", 0), 1984, full=False)
    pool.move_keys(a, b)
    assert a.free_of_keys and b.primary == (b"x", 0) and pool.lookup(b"x", [0]) == [b]


def test_keys_of_a_lost_step_are_taken_back_and_their_blocks_reused_first():
    pool = BlockPool(5)
    a, _b = keyed(pool, 2)
    pool.recent = []
    (c,) = keyed(pool, 1)
    pool.free([a, c])
    pool.withdraw_recent()
    assert c.free_of_keys and not a.free_of_keys and ids(pool.free_queue) == [3, 4, 1]
