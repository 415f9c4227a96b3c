"""Digests of prefixes: equal prefixes have equal ones, and nothing else does."""

from kda_lab.serving.blocks.hashes import digest_at, extend_chain


def chain(tokens, unit=4, salt=b""):
    digests = []
    extend_chain(digests, tokens, unit, salt)
    return digests


def test_only_full_units_are_hashed():
    assert [len(chain(range(n))) for n in (0, 3, 4, 11, 12)] == [0, 0, 1, 2, 3]


def test_a_digest_stands_for_everything_before_it():
    one, other = chain(range(12)), chain([9, *range(1, 12)])
    assert not set(one) & set(other)


def test_equal_units_in_different_places_differ():
    assert len(set(chain([1, 2, 3, 4] * 3))) == 3


def test_a_chain_grows_the_same_in_one_go_and_token_by_token():
    digests = []
    for n in range(1, 14):
        extend_chain(digests, range(n), 4)
    assert digests == chain(range(13))


def test_a_salt_separates_what_depends_on_more_than_tokens():
    assert chain(range(8)) != chain(range(8), salt=b"adapter 7")


def test_a_block_of_many_units_has_the_digest_of_its_last():
    assert digest_at(chain(range(16)), 16, 4) == chain(range(16))[3]


def test_tokens_beyond_32_bits_and_negative_ones_are_told_apart():
    assert len({chain([t] * 4)[0] for t in (1, 1 << 33, -1, (1 << 33) + 1)}) == 4
