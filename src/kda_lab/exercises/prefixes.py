"""Exercises of the chapter on shared prefixes."""

import kda_lab as kl
from kda_lab.serving import Engine, fresh, hybrid, serve

family, found = kl.figures.prefixes.family, kl.figures.prefixes.found


def by_hand():
    """(chunk ends of the second prompt, hit of the third).

    Blocks of 16, no finer unit; three prompts of 100 tokens share
    the first 40.
    """
    # <solution>
    # rows: 16 and 32 are full; the second stops at 32, at its last block boundary 96, and at its end
    return [32, 96, 100], 32
    # </solution>


def check_by_hand(by_hand):
    _, second, third = found(hybrid(block=16), *family(3, 40, 100))
    ends, hit = by_hand()
    assert hit == third.hit, f"the third does not hit {hit}: no rows are keyed between 32 and 48"
    assert list(ends) == second.ends, (
        f"the second's chunks do not end at {list(ends)}: the junction, the last block boundary below 100, the end"
    )


def find_units(send, tokens):
    """(tokens of a block, tokens of a hash) of a server.

    send(prompt) -> tokens that came from the cache, all that the
    server tells.   tokens: a common multiple of both, at most 2,000.
    No eagle.
    """
    # <solution>
    repeat = fresh(tokens, 1)
    send(repeat)
    unit = tokens - send(repeat)
    # the third of a family hits whole blocks only; the prompts are long enough that no prompt's end is shared
    for i in range(3):
        hit = send([*fresh(tokens - 1, 2), *fresh(tokens, 3 + i)])
    return tokens - hit, unit
    # </solution>


def check_find_units(find_units):
    for block, unit in ((640, 64), (640, 640), (384, 48), (320, 32), (128, 16)):
        settings, sent, hits = hybrid(block=block, unit=unit, blocks=512), [], []

        def send(prompt, settings=settings, sent=sent, hits=hits):
            sent.append(list(prompt))
            hits.append(found(settings, *sent)[-1].hit)
            return hits[-1]

        got = find_units(send, 1920)
        assert tuple(got) == (block, unit), (
            f"the server has blocks of {block} and hashes {unit}; you found {got} from the hits {hits}"
        )
        assert len(hits) <= 12, f"{len(hits)} requests are more than needed; twelve are enough"


def stale_after_drop():
    """Prompts, to be served one after another with blocks of 16.

    The last one reads another prompt's draft row although eagle
    drops.
    """
    # <solution>
    first, second = [*range(32), *fresh(20)], [*range(32), *fresh(40, 2)]
    # the second computes tokens 0 to 31 again: two blocks have one key, and a lookup takes the first prompt's
    return first, second, [*second[:52], *fresh(9, 3)]
    # </solution>


def check_stale_after_drop(stale_after_drop):
    prompts = stale_after_drop()
    engine = Engine(hybrid(block=16, eagle=True))
    serve(engine, *({str(i): list(prompt)} for i, prompt in enumerate(prompts)), outputs=1)
    assert not engine.violations, f"that would be a fault of the simulator: {engine.violations[0].line()}"
    stale = engine.worker.checks.stale_drafts
    last = str(len(prompts) - 1)
    assert any(v.request == last for v in stale), (
        f"no draft row is wrong; the hits are {engine.hits}: let a hit end after a block that two prompts computed"
    )
