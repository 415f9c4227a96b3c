"""Which states are worth a key: retention of block boundaries.

Attention keys every full block. A state's block is keyed densely (``None``), once every r tokens, or (``0``, the
default of vLLM 0.32.0) only where a replay of the prompt or a known shared prefix would resume.
"""

from kda_lab.serving.blocks.chunking import floor_to


def replay_boundaries(prompt, block, eagle):
    """The positions up to which a repeat of a prompt of ``prompt`` tokens can be served from the cache.

    >>> replay_boundaries(2000, 640, eagle=False), replay_boundaries(1281, 640, eagle=True)
    ((1999,), (640,))
    """
    if not eagle:
        return (prompt - 1,)
    return tuple(sorted({max(floor_to(n, block) - block, 0) for n in (prompt - 1, prompt)}))


def retention_mask(first, last, block, interval, boundaries, grain):
    """For the blocks first..last-1: which get a key when their state is complete; None means all of them.

    block: tokens a block   interval: None (dense), 0 (boundaries alone) or r (and one state every r tokens)
    boundaries: positions to keep, floored to ``grain``, the tokens between two possible hits.

    >>> retention_mask(0, 3, 640, 0, [1999, 1280], 640)
    [False, True, True]
    >>> retention_mask(0, 8, 640, 1280, [4999], 640)
    [False, True, False, True, False, True, True, True]
    """
    if interval is None or 0 < interval <= block:
        return None
    kept = {floor_to(x, grain) // block - 1 for x in boundaries}
    spaced = interval // block if interval else 0
    return [i in kept or bool(spaced and (i + 1) % spaced == 0) for i in range(first, last)]
