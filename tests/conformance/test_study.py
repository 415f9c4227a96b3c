"""What a page records: the study's document, which cases run alone, and which sources a record depends on."""

import json
import subprocess
import sys

import jsonschema
import pytest

from kda_lab.conformance import CASES, isolate, study
from kda_lab.conformance.report import document
from kda_lab.data import sources

OURS = {"ops", "cuda", "layer", "chunk"}
PEER = """
import os, time
import torch
from kda_lab.conformance.adapters import versions

def peer(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False):
    if scale is not None:
        raise NotSupported("line one\\n" + "why " * 400)
    peer.launched.append("token loop")
    with open("times", "a") as file:
        file.write(f"{os.getpid()} {q.shape[0]} {time.time()}\\n")
    B, T, H, K = q.shape
    S = v.new_zeros(B, H, v.shape[-1], K) if initial_state is None else initial_state.clone()
    rows = []
    for t in range(T):
        S = S * g[:, t].exp()[:, :, None]
        r = (v[:, t] - (S @ k[:, t, :, :, None])[..., 0]) * beta[:, t, :, None]
        S = S + r[..., None] * k[:, t, :, None]
        rows.append((S @ q[:, t, :, :, None])[..., 0] * K**-0.5)
    return torch.stack(rows, 1).to(v.dtype), S if output_final_state else None

class NotSupported(Exception):
    "As a library names its own."

def engines():
    ran, peer.launched = peer.launched, []
    return ran

peer.launched, peer.engines, peer.libraries = [], engines, lambda: versions("torch", "a-package-that-is-not-there")
"""


@pytest.fixture
def peer(tmp_path, monkeypatch):
    (tmp_path / "peer.py").write_text(PEER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def noted(monkeypatch):
    """The sources that a record would depend on beside what this process has loaded, as names of modules in the
    package.
    """
    paths = []
    monkeypatch.setattr(sources, "note", paths.extend)
    return lambda: {path.relative_to(sources.PACKAGE).with_suffix("").as_posix() for path in paths}


def test_the_document_says_what_ran_and_large_cases_run_behind_the_others_and_alone(peer, noted):
    assert {name for name, case in CASES.items() if case.alone} == {
        "more-than-65535-sequences-times-heads",
        "more-than-65535-packed-sequences-times-heads",
        "offsets-beyond-31-bits",
    }
    names = ["plain-inputs", "more-than-65535-sequences-times-heads", "a-given-scale", "strong-gates"]
    found = study.run("./peer.py:peer", device="cpu", dtype="float32", workers=2, only=names)
    jsonschema.validate(
        found, json.loads(document.SCHEMA.with_name("study.json").read_text()), jsonschema.Draft202012Validator
    )
    cases = found["cases"]
    assert {name: c["outcome"] for name, c in cases.items()} == dict.fromkeys(names, "pass") | {
        "a-given-scale": "refused"
    }
    assert "line one why" in cases["a-given-scale"]["reason"] and len(cases["a-given-scale"]["reason"]) > 1000
    assert cases["plain-inputs"]["engine"] == "token loop" and cases["a-given-scale"]["engine"] == ""
    libraries = found["environment"]["libraries"]
    assert libraries["a-package-that-is-not-there"] == "not installed" and "torch" in libraries
    calls = [line.split() for line in (peer / "times").read_text().splitlines()]
    heavy, light = ([(who, float(when)) for who, B, when in calls if (B == "2049") is large] for large in (True, False))
    assert heavy and min(when for _, when in heavy) > max(when for _, when in light)
    assert not {who for who, _ in heavy} & {who for who, _ in light}
    # somebody else's kernel: what the processes used is the rules, and none of our kernels
    assert "rules" in noted() and not {name.split("/")[0] for name in noted()} & OURS


def test_a_record_of_ours_depends_on_our_sources_though_they_were_used_in_other_processes(noted):
    study.run("kda_lab.conformance.adapters.ours:torch_kda", device="cpu", dtype="float32", only=["plain-inputs"])
    assert {"ops/kda", "rules", "conformance/adapters/ours"} <= noted()


def test_neither_the_suite_nor_the_adapters_of_other_libraries_load_our_kernels():
    code = """import sys
from kda_lab.conformance import study
from kda_lab.conformance.adapters import cudnn, fla
print(*(m for m in sys.modules if m.startswith("kda_lab.")))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert "kda_lab.rules" in done.stdout
    assert not [m for m in done.stdout.split() if m.split(".")[1] in OURS]


def test_a_first_worker_that_fails_leaves_nobody_waiting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(isolate.Failed, match="there is no file nowhere.py"):
        study.run("./nowhere.py:f", device="cpu", dtype="float32", workers=2, only=["plain-inputs", "weak-gates"])
