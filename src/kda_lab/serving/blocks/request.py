"""A request as the scheduler sees it."""

from dataclasses import dataclass, field

from kda_lab.serving.blocks.hashes import extend_chain


@dataclass(eq=False)
class Request:
    """Tokens, progress and the chain of digests of one request.

    prompt: tokens of the prompt   output: tokens sampled so far   computed: tokens whose states and keys are written
    or scheduled   junction: end of the longest prefix shared with an earlier request (0: none)   drafts: proposed
    tokens that the next step verifies   unit: tokens a digest   max_tokens: outputs after which it ends (None: only
    when told).

    >>> r = Request("A", [1, 2, 3], unit=2); r.append([4]); r.tokens, len(r.chain)
    ([1, 2, 3, 4], 2)
    """

    name: str
    prompt: list
    unit: int = 1
    max_tokens: int = None
    salt: bytes = b""
    output: list = field(default_factory=list)
    drafts: list = field(default_factory=list)
    computed: int = 0
    junction: int = 0
    preemptions: int = 0
    chain: list = field(default_factory=list)

    def __post_init__(self):
        if not self.prompt:
            raise ValueError(f"request {self.name!r} has an empty prompt; give it at least one token")
        self.prompt = list(self.prompt)
        self.tokens = self.prompt + list(self.output)
        extend_chain(self.chain, self.tokens, self.unit, self.salt)

    def append(self, tokens):
        """Add sampled tokens and the digests that they complete."""
        self.output.extend(tokens)
        self.tokens.extend(tokens)
        extend_chain(self.chain, self.tokens, self.unit, self.salt)

    @property
    def finished(self):
        return self.max_tokens is not None and len(self.output) >= self.max_tokens
