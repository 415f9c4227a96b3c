"""Scheduler and worker together: requests in, outputs out, everything checked by value."""

from kda_lab.serving.blocks.request import Request
from kda_lab.serving.blocks.scheduler import Scheduler
from kda_lab.serving.run import tinymodel as tiny
from kda_lab.serving.run.reference import Library
from kda_lab.serving.run.worker import Worker


class Engine:
    """A server of the tiny model.

    settings: see ``hybrid``   drafter: function(request, library) -> drafted tokens, None for none.

    >>> from kda_lab.serving.blocks.scheduler import hybrid
    >>> engine = Engine(hybrid(block=16, budget=64))
    >>> engine.add("A", range(40), max_tokens=3); engine.add("B", range(48), max_tokens=3); engine.run()
    >>> len(engine.outputs["A"]), engine.violations
    (3, [])
    """

    def __init__(self, settings, drafter=None, scheduler=Scheduler, worker=Worker):
        self.settings, self.drafter = settings, drafter
        self.scheduler = scheduler(settings)
        self.library = Library([group.kind for group in settings.groups], settings.splitting.unit)
        self.worker = worker(self.scheduler, self.library)
        self.requests, self.outputs, self.hits = {}, {}, {}
        self.steps = 0
        self.last, self.notes = None, {}

    def add(self, name, prompt, max_tokens=None, salt=b""):
        """A request arrives; ValueError if the name is taken or the request can never fit."""
        if name in self.requests:
            raise ValueError(f"a request {name!r} was already added; give each its own name")
        request = Request(name, prompt, self.settings.splitting.unit, max_tokens, salt)
        self.requests[name], self.outputs[name] = request, []
        self.scheduler.add(request)
        self.library.see(request)

    def schedule(self):
        """The first half of a step: what runs, with which blocks. A snapshot is taken here."""
        self.steps += 1
        step = self.scheduler.schedule()
        for name in step.preempted:
            self.worker.forget(name)
        for chunk in step.chunks:
            if chunk.new:
                self.hits.setdefault(chunk.request.name, []).append(chunk.start)
        self.last = step
        return step

    def execute(self, step, sample=None):
        """The second half: copies, forward, sampling, and what follows from it; returns {name: sampled tokens}.

        sample: function(chunk, outputs) -> tokens, to impose them; None: greedy, drafts verified.
        """
        notes = self.worker.run(step)
        sampled = {}
        for chunk in step.chunks:
            request, note = chunk.request, notes[chunk.request.name]
            tokens = sample(chunk, note.outputs) if sample else self.greedy(chunk, note.outputs)
            tokens = self.limited(request, tokens)
            sampled[request.name] = tokens
            self.worker.finish(chunk, tokens, note)
            self.outputs[request.name] += note.outputs[: len(tokens)]
            self.scheduler.update(chunk, tokens)
            self.library.see(request)
            self.worker.checks.outputs(request.name, chunk.end - 1 - chunk.drafts, note.outputs[: max(len(tokens), 1)])
            if request.finished:
                self.worker.forget(request.name)
            elif self.drafter and tokens:
                request.drafts = list(self.drafter(request, self.library))[: self.settings.num_spec]
        self.worker.checks.keys(self.scheduler.pool, self.scheduler.coordinator.managers)
        self.notes = notes
        return sampled

    def greedy(self, chunk, outputs):
        """The model's own tokens, as far as the drafts agree with them."""
        tokens = []
        drafts = chunk.request.drafts[: chunk.drafts]
        for i, output in enumerate(outputs):
            tokens.append(tiny.next_token(output))
            if i < len(drafts) and drafts[i] != tokens[-1]:
                break
        return tokens

    def limited(self, request, tokens):
        """No more tokens than the request still wants."""
        if request.max_tokens is None:
            return tokens
        return tokens[: request.max_tokens - len(request.output)]

    def step(self):
        """One whole step."""
        return self.execute(self.schedule())

    def lose(self, step):
        """The forward of a scheduled step never runs (a worker was lost): nothing that it would have written is
        used.
        """
        self.scheduler.withdraw(step)
        for chunk in step.chunks:
            self.worker.forget(chunk.request.name)

    def finish(self, name):
        """A request is ended from outside."""
        self.scheduler.finish(self.requests[name])
        self.worker.forget(name)

    @property
    def violations(self):
        """What was wrong by value so far."""
        return self.worker.checks.violations

    @property
    def busy(self):
        return bool(self.scheduler.running or self.scheduler.waiting)

    def run(self, steps=100_000):
        """Steps until nobody is left; RuntimeError when a step can schedule nothing, or after ``steps``."""
        for _ in range(steps):
            if not self.busy:
                return
            self.step()
            if not self.last.chunks and not self.last.preempted:
                names = [request.name for request in self.scheduler.waiting]
                raise RuntimeError(
                    f"nothing can be scheduled while {names} wait; give the pool more blocks or the step more tokens"
                )
        raise RuntimeError(
            f"requests are still running after {steps} steps; give them max_tokens or ask for more steps"
        )
