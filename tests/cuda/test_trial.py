"""The frame of the trials on a GPU sees what it is there for, and leaves torch and the disk as they should be."""

import itertools
import json
import sys

import pytest
import torch

from kda_lab.cuda import chunk
from kda_lab.cuda.accept import chunk as acceptance
from kda_lab.cuda.accept import decode as decode_acceptance
from kda_lab.cuda.accept import trial

CHUNK = acceptance.make("8 tokens", "strong", 8, H=1, K=5, V=3)
DECODE = decode_acceptance.make("one token", K=5, V=3)


def forward(spoil):
    """A kernel in the place of `kda_chunk_forward` that is right but for what `spoil(o, S, arguments, call)` does."""
    calls = itertools.count()

    def call(**arguments):
        o, S = acceptance.oracle(**arguments)
        o, S = o.to(arguments["v"].dtype), S.float()
        spoil(o, S, arguments, next(calls))
        return o, S

    return call


def unwritten(o, S, a, n):
    o[0, 3] = torch.empty_like(o[0, 3])


def unstable(o, S, a, n):
    S[0, 0, 0, 0] += 1e-6 * n


def in_place(o, S, a, n):
    # after the results of both calls
    a["beta"][0, 0] += n


def too_far(o, S, a, n):
    S *= 1 + 7e-3


def nothing(o, S, a, n):
    pass


@pytest.mark.parametrize(
    "spoil, entry",
    [(nothing, None), (unwritten, "o"), (too_far, "state"), (unstable, "repeats bitwise"), (in_place, "inputs kept")],
)
def test_each_way_to_be_wrong_has_its_entry(spoil, entry, monkeypatch):
    monkeypatch.setattr(chunk, "kda_chunk_forward", forward(spoil))
    case = CHUNK._replace(
        arguments={k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in CHUNK.arguments.items()}
    )
    row = acceptance.run(case)
    wrong = {name for name in ("o", "state") if not row[name] < row["bound"]}
    wrong |= {name for name in ("repeats bitwise", "inputs kept") if not row[name]}
    assert wrong == ({entry} if entry else set()) and row["ok"] == (entry is None), row


def test_torch_is_left_as_it_was():
    def settings():
        return torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory

    before = settings()
    with pytest.raises(KeyError), trial.poisoned_memory():
        assert settings() == (True, True)
        raise KeyError
    assert settings() == before


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("module, case", [(acceptance, CHUNK), (decode_acceptance, DECODE)], ids=["chunk", "decode"])
def test_the_exit_status_and_the_file_say_whether_all_holds(module, case, good, monkeypatch, tmp_path, capsys):
    errors, kept = dict.fromkeys(("o", "y", "state"), 1e-3), {"inputs kept": True, "kept": True}
    row = trial.judge(case.name, errors, dict.fromkeys(errors, 6e-3), good, **kept)
    monkeypatch.setattr(module, "cases", lambda device, small: [case])
    monkeypatch.setattr(module, "run", lambda *_: row)
    monkeypatch.setattr(sys, "argv", ["trial", "--on-cpu"])
    monkeypatch.setenv("OUT", str(tmp_path))
    assert module.main() == (0 if good else 1)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == ("every case holds" if good else "SOME CASES FAIL") and printed[-2].endswith("FAIL") != good
    (written,) = tmp_path.iterdir()
    assert written.stem == f"accept_{module.__name__.split('.')[-1]}" and json.loads(
        written.read_text(encoding="utf-8")
    )["cases"] == [row]
