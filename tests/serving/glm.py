"""A model for the tests of groups and layouts."""

from dataclasses import replace

from kda_lab.serving.plan import specs as s


def glm(n_mla=11, n_kda=34, with_tail=True, spec=0, ring=4, block=640):
    """{layer: spec} of GLM-5.3-Flash on one of eight ranks. spec: drafted tokens a step   ring, block: tokens."""
    rows = {
        "mla": s.mla_rows(block, 512, whole_rows=True),
        "indexer": s.index_rows(block, per_state=4, stride_tokens=128),
    }
    layers = {f"{kind}.{i}": rows_ for i in range(n_mla) for kind, rows_ in rows.items()}
    if with_tail:
        layers |= {f"tail.{i}": s.RingSpec(ring, 2, 128) for i in range(n_mla)}
    kda = replace(s.kda_state(8, 128, num_spec=spec, block=block), padded=block * 1024)
    return layers | {f"kda.{i}": kda for i in range(n_kda)}
