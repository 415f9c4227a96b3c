"""Planted faults of speculation: each is one wrong line, with a run that shows it by value.

``run(name)`` decodes with the fault, ``run(name, fault=False)`` the same without it.
"""

from types import SimpleNamespace
from typing import NamedTuple

from kda_lab.algebra import replay
from kda_lab.proof.registry import variant
from kda_lab.serving.drafts.recoverssm import RecoverSSM
from kda_lab.serving.drafts.replayssm import ReplaySSM
from kda_lab.serving.drafts.slots import Slots
from kda_lab.serving.run import decoding

# drafts that are right, wrong, partly right, and a step without any
MIXED = (2, 0, 3, None, 1, 3, 3, 2, None, 0)


class Fault(NamedTuple):
    """sentence: what is done wrong   part: the class or function   method: its name in the class   patch: (right,
    wrong) lines
    prompt, count: tokens   options: of the memory   leftover: the prompt ends in a step of one token   right: the
    drafter's pattern   seen: a public report of the kind.

    >>> FAULTS["slot-off-by-one"].part.__name__
    'Slots'
    """

    sentence: str
    part: type
    method: str
    patch: tuple
    options: dict
    right: tuple = MIXED
    prompt: int = 21
    leftover: bool = False
    count: int = 80
    seen: str = ""


class Outcome(NamedTuple):
    """first: the first wrong token, or None   blocks: boundaries whose block does not hold the state that its key
    promises.

    >>> print(run("slot-off-by-one")), print(run("slot-off-by-one", fault=False))
    wrong from token 4
    nothing wrong
    (None, None)
    """

    first: int
    blocks: list

    def __str__(self):
        token = "" if self.first is None else f"wrong from token {self.first}"
        blocks = f"wrong blocks {', '.join(map(str, self.blocks))}" if self.blocks else ""
        return "; ".join(filter(None, (token, blocks))) or "nothing wrong"


_RING = {"L": 9}
_BLOCKS = {"L": 9, "block": 16}
_TABLE = {"table": [1, 2], "block": 16}
_ROW = {"table": [41, 9, 72, 18]}
_ACCEPT = "self.position += n"
FAULTS = {
    "slot-off-by-one": Fault(
        "the slot is counted by accepted drafts",
        Slots,
        "source",
        ("slot(self.row, self.accepted)", "slot(self.row, max(self.accepted - 1, 1))"),
        _ROW,
    ),
    "column-zero": Fault(
        "without drafts, the first slot is read",
        Slots,
        "verify",
        ("self.pool[self.source], []", "self.pool[self.source if T > 1 else self.row[0]], []"),
        _ROW,
        seen="vllm PR #55504",
    ),
    "no-boundary-copy": Fault(
        "no copy to a finished block's column",
        Slots,
        "accept",
        ("self.copy(*after.copy)", "pass"),
        _TABLE,
        seen="sglang #37817",
    ),
    "no-pre-copy": Fault(
        "a step writes into a finished block",
        Slots,
        "pre_copy",
        (
            "self.copy(self.column + self.accepted - 1, running)",
            "self.table[running] = self.table[self.column + self.accepted - 1]",
        ),
        _TABLE,
    ),
    "shape-decides": Fault(
        "a prompt of T tokens passes for drafts",
        decoding.decode,
        "",
        (
            "memory = make(S, len(body))",
            "memory = make(model.prefill(body[:1])[0] if len(body) == 4 else S, len(body))",
        ),
        _ROW,
        prompt=4,
        seen="vllm #53051",
    ),
    "window-not-moved": Fault(
        "the window is read at its first row",
        decoding.decode,
        "",
        ("offset = window_offset(len(new))", "offset = 0"),
        _ROW,
    ),
    "ring-not-cut": Fault(
        "records of rejected drafts count", ReplaySSM, "accept", (_ACCEPT, "self.position += self.verified"), _RING
    ),
    "exponents-apart": Fault(
        "e^(G_n - G_j) as e^G_n e^-G_j, in fp32",
        ReplaySSM,
        "append",
        ("replay.step(", "apart.step("),
        {"L": 128},
        right=(None,),
        count=124,
    ),
    "no-room-for-drafts": Fault(
        "drafts that do not fit: no flush",
        ReplaySSM,
        "verify",
        ("self.flush(self.position, loaded=True)", "pass"),
        _RING,
    ),
    "no-flush-at-block-end": Fault(
        "a single token ends a block, no flush",
        ReplaySSM,
        "step",
        ("if full or ends or prompt:", "if full or prompt:"),
        _BLOCKS,
        right=(None,),
    ),
    "no-flush-after-drafts": Fault(
        "accepted drafts end a block, no flush",
        ReplaySSM,
        "accept",
        ("block_ends(self.anchor, self.position, self.block)", "()"),
        _BLOCKS,
    ),
    "no-flush-after-prompt": Fault(
        "a prompt's last record is lost",
        ReplaySSM,
        "step",
        ("if full or ends or prompt:", "if prompt:\n        self.anchor = self.position\n    elif full or ends:"),
        _RING,
        leftover=True,
    ),
    "commit-everything": Fault(
        "the state is made from the records of all drafts",
        RecoverSSM,
        "accept",
        ("[end - start]", "[T]"),
        {"num_spec": 3},
    ),
    "verify-in-place": Fault(
        "verification overwrites the state that the commit starts from",
        RecoverSSM,
        "verify",
        ("self.verified = T", "self.verified = T\n    self.pool[self.home] = torch.stack([term.S for term in terms])"),
        {"num_spec": 3},
    ),
}


# in fp32, as a kernel would
apart_read = variant(
    replay.read, ("chunk.decay_to_end(alpha)", "(D.float() * (1 / chunk.decay_from_start(alpha.float()))).to(D.dtype)")
)


def broken(fault):
    """The part with the wrong line: a subclass, or a function."""
    if not fault.method:
        return variant(fault.part, fault.patch)
    plain = vars(fault.part)[fault.method]
    wrong = variant(
        getattr(plain, "fget", plain), fault.patch, apart=SimpleNamespace(step=variant(replay.step, read=apart_read))
    )
    return type(fault.part.__name__, (fault.part,), {fault.method: wrong})


def run(name, fault=True, right=None):
    """Decode greedily with or without a fault, and compare with the token loop; KeyError with the known names for
    another.

    right: another pattern of right drafts.

    >>> run("ring-not-cut").first is None, run("no-boundary-copy").blocks
    (False, [32, 48, 64, 80, 96])
    """
    if name not in FAULTS:
        raise KeyError(f"no fault is called {name!r}; there are {', '.join(FAULTS)}")
    case = FAULTS[name]
    part = broken(case) if fault else case.part
    decode = part if case.part is decoding.decode else decoding.decode
    memory = Slots if case.part is decoding.decode else part
    model, prompt = decoding.Model(), list(range(1, case.prompt + 1))
    truth, make = (
        decoding.plain(model, prompt, case.count),
        lambda S, position: memory(S, position=position, **case.options),
    )
    got = decode(model, make, prompt, case.count, decoding.drafter(truth, right or case.right, 3), case.leftover)
    first = next((i for i, (a, b) in enumerate(zip(got.tokens, truth)) if a != b), None)
    return Outcome(first, wrong_blocks(model, prompt + got.tokens, len(prompt), got.memory))


def wrong_blocks(model, tokens, first, memory):
    """Boundaries after the prompt whose block does not hold the state after just as many of the tokens."""
    if not memory.block:
        return []
    ends = range((first // memory.block + 1) * memory.block, memory.position + 1, memory.block)
    return [end for end in ends if not promised(model, tokens[:end], memory.cached(end))]


def promised(model, tokens, S):
    """Whether S is the state after these tokens, up to a few thousand roundings of numbers of order one."""
    return S is not None and bool((S - model.prefill(tokens)[0]).abs().max() < 1e-12)
