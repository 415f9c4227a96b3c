"""What a token costs: operations, bytes that come from memory, their ratio, and the time that a GPU needs at least.

Facts are data (``data/models.json``, ``data/gpus.json``); here they are only multiplied. What is counted, and what is
not: a multiplication and an addition are two operations, in 8 bits as in 16; weights and caches are read from memory
once for each use that cannot share a read; what passes between the kernels of one pass counts only where an argument
says so; softmax, norms and the traffic between GPUs count nothing. Every time is therefore a bound from below.
"""

import json
from functools import cache
from typing import NamedTuple

from kda_lab.data import FOLDER

DATA = FOLDER
BF16, FP32 = 2, 4  # bytes
STATE_OPERATIONS = 7  # an entry of KDA's state: decay 1, read 2, write 2, read out 2


class Work(NamedTuple):
    """Operations, and bytes read or written."""

    flop: float
    bytes: float

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flop / self.bytes


class GPU(NamedTuple):
    """A card: bytes, bytes per second, bf16 operations per second."""

    name: str
    memory: float
    bandwidth: float
    flops: float

    @property
    def ridge(self) -> float:
        """Operations that the card can do while one byte arrives."""
        return self.flops / self.bandwidth

    def seconds(self, work: Work) -> float:
        """The least time for this work: the longer of computing and reading, if the two overlap fully.

        >>> GPU("round", 10**6, 10, 100).seconds(Work(1000, 50))
        10.0
        """
        return max(work.flop / self.flops, work.bytes / self.bandwidth)

    def busy(self, work: Work) -> float:
        """The share of the peak that this work can reach, at most 1.

        >>> GPU("round", 10**6, 10, 100).busy(Work(20, 10))
        0.2
        """
        return min(1.0, work.intensity / self.ridge)


def linear_layer(tokens, inputs, outputs, number=BF16):
    """One weight matrix applied to some tokens: weights read once, inputs read and outputs written.

    >>> linear_layer(1, 100, 100)
    Work(flop=20000, bytes=20400)
    """
    flop = 2 * tokens * inputs * outputs
    moved = inputs * outputs + tokens * (inputs + outputs)
    return Work(flop, number * moved)


def attention(queries, context, query_heads, row, flop, number=BF16, vectors=None):
    """Attention of some queries of one request over a cache that all of them share, which is read once.

    row: numbers that one token keeps in a layer; flop: operations of one query head on one row; vectors: numbers of a
    query and an output, of one head.

    >>> attention(1, 1000, query_heads=1, row=100, flop=200, vectors=100)
    Work(flop=200000, bytes=200200)
    """
    moved = context * row + queries * query_heads * (flop // 2 if vectors is None else vectors)
    return Work(queries * query_heads * context * flop, number * moved)


def prefill_attention(tokens, tile, query_heads, kv_heads, D, number=BF16):
    """Causal attention of a whole prompt in one layer: each tile of queries reads the keys and values up to its end
    once.

    A tile holds the queries of all heads that share one key-value head.

    >>> prefill_attention(2, 1, 1, 1, 50).flop
    600
    """
    rows = sum(min(end, tokens) for end in range(tile, tokens + tile, tile))
    moved = rows * kv_heads * 2 * D + 2 * tokens * query_heads * D
    return Work(tokens * (tokens + 1) // 2 * query_heads * 4 * D, number * moved)


class Cache(NamedTuple):
    """What grows: `layers` that keep a row of `row` bytes for `per` tokens, `window` tokens at most, and read `top`
    rows at most.

    flop: operations of all query heads on one row.
    """

    layers: int
    row: float
    flop: int
    per: int = 1
    window: int | None = None
    top: int | None = None

    def rows(self, context) -> float:
        """Rows that one layer keeps."""
        return min(context, self.window or context) / self.per

    def read(self, context) -> float:
        """Rows that one layer reads for one new token."""
        return min(self.rows(context), self.top or context)


class State(NamedTuple):
    """What does not grow: the matrices and the inputs of the short convolution of `layers` layers, in bytes each."""

    layers: int
    matrices: int
    convolution: int
    flop: int


class Experts(NamedTuple):
    """A mixture: of `count` experts in each of `layers` layers, a token uses `chosen`."""

    layers: int
    count: int
    chosen: int
    inputs: int
    width: int

    @property
    def parameters(self) -> int:
        """Weights of all experts of the model, three matrices each."""
        return self.layers * self.count * 3 * self.inputs * self.width


class Step(NamedTuple):
    """Bytes that one decode step moves for a whole batch."""

    weights: float
    cache: float
    state: float

    @property
    def bytes(self) -> float:
        return sum(self)


class Model(NamedTuple):
    """A model as memory sees it."""

    name: str
    parameters: float
    active: float
    experts: Experts | None
    caches: tuple[Cache, ...]
    states: tuple[State, ...]

    def growth(self, context=2**20) -> float:
        """Bytes that one more token adds to a request of this length."""
        return sum(c.layers * c.row / c.per for c in self.caches if c.window is None or context < c.window)

    def cached(self, context) -> float:
        """Bytes of the cache of one request, without states."""
        return sum(c.layers * c.row * c.rows(context) for c in self.caches)

    def read(self, context) -> float:
        """Bytes of the cache that one new token reads."""
        return sum(c.layers * c.row * c.read(context) for c in self.caches)

    @property
    def state(self) -> int:
        """Bytes of the states of one request; a new token reads them and writes them."""
        return sum(s.layers * (s.matrices + s.convolution) for s in self.states)

    def stored(self, context) -> float:
        """Bytes that one request keeps."""
        return self.cached(context) + self.state

    def flop(self, context) -> float:
        """Operations of one new token in attention and states; the weights take another 2 for each active one."""
        return sum(c.layers * c.flop * c.read(context) for c in self.caches) + sum(
            s.layers * s.flop for s in self.states
        )

    def touched(self, tokens, number=BF16) -> float:
        """Bytes of weights that a pass over `tokens` tokens reads, if each token draws its experts evenly and
        independently.
        """
        if self.experts is None:
            return number * self.active
        one = self.experts.chosen / self.experts.count
        shared = self.active - one * self.experts.parameters
        return number * min(shared + (1 - (1 - one) ** tokens) * self.experts.parameters, self.parameters)

    def step(self, context, batch=1, number=BF16) -> Step:
        """Bytes of one decode step of `batch` requests that share nothing but the weights."""
        return Step(self.touched(batch, number), batch * self.read(context), batch * 2 * self.state)

    def work(self, context, batch=1) -> Work:
        """Operations and bytes of one decode step."""
        return Work(batch * (2 * self.active + self.flop(context)), self.step(context, batch).bytes)


def _group(kind, layers, number, **fact):
    """One group of layers of ``data/models.json`` as a `Cache` or a `State`."""
    heads = fact.get("query_heads")
    if kind == "gqa":
        D, row = fact["head_dim"], 2 * fact["kv_heads"] * fact["head_dim"] * number
        return Cache(layers, row, 4 * D * heads, window=fact.get("window"))
    if kind == "mla":
        latent, row = fact["latent"], fact["latent"] + fact["rope"]
        return Cache(layers, row * number, 2 * (row + latent) * heads, top=fact.get("top"))
    if kind == "index":
        # scores only; the row is stored in 8 bits already
        return Cache(layers, fact["row_bytes"], 2 * fact["head_dim"] * heads, fact["tokens_per_row"])
    if kind == "compressed":
        return Cache(
            layers,
            fact["row_bytes"],
            4 * fact["width"] * heads,
            fact["tokens_per_row"],
            fact.get("window"),
            fact.get("top"),
        )
    if kind == "linear":
        entries = fact["heads"] * fact["K"] * fact["V"]
        return State(
            layers, entries * FP32, fact["conv_channels"] * (fact["taps"] - 1) * BF16, STATE_OPERATIONS * entries
        )
    raise ValueError(
        f"a group of layers is gqa, mla, index, compressed or linear, got {kind!r}; see the top of data/models.json"
    )


def _facts(name):
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))[name]


@cache
def models(number=BF16):
    """The models of ``data/models.json`` by name; `number` is the bytes of a cached number, where the file leaves that
    open.

    >>> models()["Llama-3.1-70B"].growth()
    327680.0
    """
    out = {}
    for fact in _facts("models"):
        groups = [_group(number=number, **g) for g in fact["groups"]]
        experts = Experts(**fact["experts"]) if "experts" in fact else None
        caches = tuple(g for g in groups if isinstance(g, Cache))
        states = tuple(g for g in groups if isinstance(g, State))
        out[fact["name"]] = Model(fact["name"], fact["parameters"], fact["active"], experts, caches, states)
    return out


def limits():
    """Tokens of context that each model is made for, by name."""
    return {f["name"]: f["context"] for f in _facts("models")}


@cache
def gpus():
    """The cards of ``data/gpus.json`` by name.

    >>> round(gpus()["H200"].ridge)
    206
    """
    return {
        f["name"]: GPU(f["name"], f["memory_bytes"], f["bandwidth_bytes_s"], f["bf16_dense_flops"])
        for f in _facts("gpus")
    }


def together(gpu, count):
    """`count` cards as one, if the work divides evenly and what they send each other costs nothing."""
    return GPU(f"{count} x {gpu.name}", count * gpu.memory, count * gpu.bandwidth, count * gpu.flops)


def fits(model, context, gpu):
    """How many requests of this length fit beside the weights in bf16."""
    return max(0, int((gpu.memory - BF16 * model.parameters) // model.stored(context)))


def crossover(model, batch=1):
    """The least context at which a decode step reads more cache than weights; None if there is none below 2^40 tokens.

    >>> crossover(models()["Llama-3.1-70B"], 64)
    6629
    """
    low, high = 0, 2**40

    def heavy(context):
        step = model.step(context, batch)
        return step.cache > step.weights

    if not heavy(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if heavy(middle) else (middle, high)
    return high


def accepted(drafts, rate):
    """Tokens that one pass over `drafts` drafted tokens yields on average, if each is right with probability `rate`.

    The pass itself adds one token after the last right draft (Leviathan et al. 2023).

    >>> accepted(2, 0.5)
    1.75
    """
    return sum(rate**i for i in range(drafts + 1))
