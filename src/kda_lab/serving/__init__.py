"""Serving a hybrid model: what its layers keep, which states are worth keeping, and a simulator that agrees with a real
server.

Planning, in bytes:
``specs`` what a layer keeps · ``groups`` layers that share a block id · ``layout`` addresses · ``config``, ``plan``
from a published config to blocks that fit · ``costs`` what policies cost.

Simulating, in blocks, by the rules of vLLM 0.32.0:
``hashes`` keys of prefixes · ``pool`` references and eviction · ``chunking`` where chunks end · ``retention`` which
states are kept · ``tables``, ``attention``, ``state``, ``ring`` the managers of block tables · ``coordinator`` the
joint hit · ``scheduler`` the order inside a step · ``speculation`` slots of drafted tokens.

Checking, in numbers:
``tinymodel``, ``reference`` a model that runs with and without a cache · ``worker``, ``checks`` real states in every
block, compared bit by bit · ``engine`` all of it together · ``timeline`` a run as plain data · ``traces``, ``replay``
against a real scheduler · ``properties``, ``fuzz`` on random traffic · ``scenarios``, ``faults`` what breaks without a
rule · ``workload`` chats that share prompts, in tokens alone.
"""

from kda_lab.data.lazy import names

_HOMES = {
    "plan.plan": ("GIB", "log_lines", "request_blocks"),
    "plan.specs": ("",),
    "plan.fields": ("", "load"),
    "plan.groups": ("", "cache_groups", "deal"),
    "plan.layout": ("",),
    "plan.costs": ("",),
    "plan.config": ("",),
    "blocks.chunking": ("", "Splitting", "chunk_end", "prefill_chunks"),
    "blocks.retention": ("", "retention_mask"),
    "blocks.request": ("", "Request"),
    "blocks.scheduler": ("", "Scheduler", "hybrid"),
    "blocks.coordinator": ("", "joint_hit"),
    "run.engine": ("", "Engine"),
    "run.timeline": ("",),
    "run.decoding": ("",),
    "run.recordworker": ("",),
    "run.tinymodel": ("",),
    "run.worker": ("", "Worker"),
    "drafts.speculation": ("",),
    "drafts.recoverssm": ("", "RecoverSSM"),
    "drafts.replayssm": ("", "Inputs", "ReplaySSM"),
    "drafts.slots": ("", "Slots"),
    "trials.faults": ("", "NoJunction", "break_it"),
    "trials.scenarios": ("", "fresh", "serve"),
    "trials.workload": ("", "Chat"),
    "trials.speculation_faults": ("",),
    "trials.traces": ("", "read_trace"),
}
__getattr__, __dir__ = names(__name__, _HOMES)
__all__ = __dir__()
