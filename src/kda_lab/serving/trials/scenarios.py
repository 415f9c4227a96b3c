"""Small traffic that leads a server into one situation each; a maker of engines comes in, the engine goes out.

Blocks of 16 tokens instead of 640 keep a run at milliseconds; nothing else is smaller than in a real server.
"""

import itertools

from kda_lab.serving.blocks.scheduler import hybrid
from kda_lab.serving.run import tinymodel as tiny


def serve(engine, *waves, outputs=4):
    """Add the requests of each wave, {name: prompt}, and run until all are done; returns the engine.

    >>> from kda_lab.serving.run.engine import Engine
    >>> serve(Engine(hybrid(block=16)), {"A": range(40)}, {"B": range(40)}).hits
    {'A': [0], 'B': [32]}
    """
    for wave in waves:
        for name, prompt in wave.items():
            engine.add(name, prompt, outputs)
        engine.run()
    return engine


def fresh(n, family=1):
    """Tokens that no other family has.

    >>> list(fresh(2, 3))
    [300000, 300001]
    """
    return range(100_000 * family, 100_000 * family + n)


def right_drafts(wrong_every=0):
    """A drafter that proposes the model's own next tokens; every so many-th one is wrong (0: none).

    >>> from kda_lab.serving.run.engine import Engine
    >>> # 1 + 4 + 4 tokens
    >>> serve(Engine(hybrid(block=16, num_spec=3), right_drafts()), {"A": range(5)}, outputs=9).steps
    3
    """
    numbers = itertools.count(1)

    def draft(request, library):
        ahead = library.of(request.name).prefix(len(request.tokens))
        tokens = []
        for number in itertools.islice(numbers, 3):
            token = tiny.next_token(ahead.output(len(ahead.tokens) - 1))
            tokens.append(token + 1 if wrong_every and number % wrong_every == 0 else token)
            ahead.extend(tokens[-1:])
        return tokens

    return draft


def resend(make):
    """A prompt, and the same again."""
    return serve(make(hybrid(block=16)), {"A": range(40)}, {"B": range(40)})


def verify_across_a_boundary(make):
    """A answers with drafts that are all right, so that verifications end at block boundaries; B repeats prompt and
    answer.
    """
    engine = serve(make(hybrid(block=16, num_spec=3, retention=None), right_drafts()), {"A": range(12)}, outputs=40)
    return serve(engine, {"B": engine.library.of("A").tokens[:33]})


def two_verify(make):
    """Two requests whose drafts fail at different places."""
    return serve(
        make(hybrid(block=16, num_spec=3), right_drafts(wrong_every=5)), {"A": range(20), "B": fresh(25)}, outputs=20
    )


def prompt_of_a_verification(make):
    """A prompt of 1 + num_spec tokens."""
    return serve(make(hybrid(block=16, num_spec=3)), {"A": range(4)})


def two_export(make):
    """Two prompts in one batch whose chunks export a state on the way, then both again."""
    prompts = {"A": range(40), "B": fresh(56)}
    again = {"C": range(40), "D": fresh(56)}
    return serve(make(hybrid(block=16, alignment=1)), prompts, again)


def preempted_prompt(make):
    """Two long answers in a pool for one and a half: the second request is preempted and begins again at token 0."""
    engine = make(hybrid(block=16, blocks=19, states=4, retention=0))
    return serve(engine, {"A": range(15), "B": fresh(15)}, outputs=40)


def resume_inside_a_block(make):
    """B resumes inside a block and runs past its end, exporting a later state; C shares B's prompt up to that end.

    The situation of the probable defect of vLLM 0.32.0.
    """
    B = [*range(46), *fresh(54)]
    engine = make(hybrid(block=16, unit=4, alignment=4, retention=None))
    return serve(engine, {"A": range(46)}, {"B": B}, {"C": [*B[:50], *fresh(22, 2)]})


def chunks_across_a_block(make):
    """A prompt in chunks that do not end at block boundaries, and the same again."""
    settings = hybrid(block=16, budget=19, retention=None, safe=False)
    return serve(make(settings), {"A": range(60)}, {"B": [*range(34), *fresh(9)]})


def resend_inside_a_block(make):
    """The prompt's last state lies inside a block; its own request writes on, another one resumes there."""
    return serve(make(hybrid(block=16, unit=4)), {"A": range(44)}, {"B": [*range(44), *fresh(9)]})


def reader_joins(make):
    """A is still answering when B resumes inside the block that A writes."""
    engine = make(hybrid(block=16, unit=4))
    engine.add("A", range(46), 20)
    for _ in range(4):
        engine.step()
    return serve(engine, {"B": [*range(46), *fresh(30)]})


def twins(make):
    """The same prompt twice in one step."""
    return serve(make(hybrid(block=16)), {"A": range(40), "B": range(40)})


def resend_with_eagle(make):
    """The same prompt three times, with a drafter's attention."""
    engine = make(hybrid(block=16, eagle=True, retention=None, budget=16))
    return serve(engine, {"A": range(60)}, {"B": range(60)}, {"C": range(60)})


def more_prompts_than_blocks(make):
    """Six prompts in a pool for three, then all of them again."""
    engine = make(hybrid(block=16, blocks=16))
    prompts = {name: fresh(50, i) for i, name in enumerate("ABCDEF", 1)}
    return serve(engine, *({n: p} for n, p in prompts.items()), *({n + "2": p} for n, p in prompts.items()))


def lost_step(make):
    """A step is scheduled and its forward never runs; another request has the same prompt."""
    engine = make(hybrid(block=16))
    engine.add("A", range(40), 4)
    engine.lose(engine.schedule())
    engine.finish("A")
    return serve(engine, {"B": range(40)})


def three_share(make):
    """Three prompts of 2,200 tokens that share 1,600, with blocks of 528."""
    engine = make(hybrid(block=528))
    return serve(engine, *({name: [*range(1600), *fresh(600, i)]} for i, name in enumerate("ABC", 1)), outputs=1)


def repeat_119(make):
    """A prompt of 119 tokens twice, with eagle and blocks of 16."""
    return serve(make(hybrid(block=16, eagle=True)), {"A": range(119)}, {"B": range(119)}, outputs=1)


def long_and_short(make):
    """A long prompt with a state at every block, which turn after turn extends, and a short one that comes back."""
    engine = make(hybrid(block=16, blocks=20, retention=None, budget=16))
    turns = [{f"turn {i}": [*range(97), *fresh(20, i + 2)]} for i in range(2)]
    return serve(engine, {"long": range(97)}, {"short": fresh(33)}, *turns, {"short again": fresh(33)}, outputs=1)


def diverge_at_a_block(make):
    """Two prompts that part exactly at a block's end, with a drafter that has seen one token more."""
    engine = make(hybrid(block=16, eagle=True, retention=None, budget=16))
    return serve(engine, {"A": [*range(32), *fresh(20)]}, {"B": [*range(32), *fresh(20, 2)]}, outputs=1)
