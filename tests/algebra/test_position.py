"""Which channels a model rotates, from the fields of its config."""

import pytest

from kda_lab import position

LATENT = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64}


@pytest.mark.parametrize(
    ("facts", "in_code", "rotated"),
    [
        (LATENT, True, (64, 192)),
        (LATENT, False, (0, 192)),
        ({**LATENT, "mla_use_nope": True}, True, (0, 192)),
        ({**LATENT, "use_mla_nope": True}, True, (0, 192)),
        ({"head_dim": 256, "partial_rotary_factor": 0.25}, True, (64, 256)),
        ({"head_dim": 128}, True, (128, 128)),
        ({"head_dim": 128, "rotary_dim": 32}, True, (32, 128)),
        ({"rope_theta": 1e4}, False, (0, None)),
    ],
)
def test_the_rotated_channels_are_read_from_the_dims_and_the_code(facts, in_code, rotated):
    assert position.rotated({"facts": facts, "rotary_in_code": in_code}) == rotated


def test_decoys_are_fields_that_are_set_and_do_nothing():
    facts = {"head_dim": 128, "rope_theta": 1e4, "rotary_dim": 0, "mla_use_nope": True}
    assert position.decoys({"facts": facts, "rotary_in_code": True}) == ["rope_theta"]
    assert position.decoys({"facts": {"head_dim": 128, "rope_theta": 1e4}, "rotary_in_code": True}) == []
