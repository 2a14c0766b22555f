"""Long served loads: an interrupted run resumes from its checkpoint and answers the same; progress is reported."""

from __future__ import annotations

import base64
import gzip
import json
import pickle

import pytest
from deployments import plan_with, serve_with

from weft.core.store import records
from weft.serving import checkpoint, serve

LOADS = {
    "router in turn, readers": {
        "prefill_replicas": 1,
        "router": "round-robin",
        "rate": 30,
        "input_len": (100, 3000),
    },
    "clients": {"concurrency": 24, "input_len": (100, 3000)},
    "a scheduler with a state": {"framework": "sglang", "rate": 60, "input_len": 600},
    "prompts that begin alike": {"rate": 30, "input_len": 2000, "shared_prefix": 1024},
    "drafts": {
        "rate": 30,
        "input_len": 500,
        "num_speculative_tokens": 2,
        "acceptance_rate": 0.7,
        "speculative_method": "none",
    },
    "stages": {"pp": 2, "rate": 20, "input_len": (100, 900)},
}


class Interrupted(Exception):
    """Stands for Ctrl-C."""


def interrupt(done, total, what):
    if done > total // 2:
        raise Interrupted


@pytest.fixture(autouse=True)
def every_run_is_long(monkeypatch, tmp_path):
    monkeypatch.setattr(serve, "LEAST", 1)
    monkeypatch.setattr(checkpoint, "EVERY_S", 0.0)
    monkeypatch.setattr(checkpoint, "QUIET_S", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", 0)
    monkeypatch.setattr(checkpoint, "_LOOK", 8)
    monkeypatch.setattr(records, "checked_cache", lambda: tmp_path)


def served(**more):
    return serve_with("llama-3-8b", "2xh100", requests=120, output_len=40, **more)


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_an_interrupted_run_resumes_and_answers_the_same(load, tmp_path, capsys):
    whole = served(**load)
    assert not list(tmp_path.rglob("*.json.gz"))
    with pytest.raises(Interrupted):
        served(**load, progress=interrupt)
    assert len(list(tmp_path.rglob("*.json.gz"))) == 1
    capsys.readouterr()
    again = served(**load)
    assert "resumes after" in capsys.readouterr().err
    assert json.dumps(again.to_dict()) == json.dumps(whole.to_dict())
    assert again.requests == whole.requests
    assert not list(tmp_path.rglob("*.json.gz"))


def test_another_load_does_not_resume_there(capsys):
    with pytest.raises(Interrupted):
        served(rate=30, progress=interrupt)
    for other in ({"rate": 31}, {"rate": 30, "cpu_overhead": "3 ms"}, {"rate": 30, "scheduler": "sglang"}):
        served(**other)
    assert "resumes" not in capsys.readouterr().err


def test_a_damaged_checkpoint_is_named_and_the_run_begins_anew(tmp_path, capsys):
    with pytest.raises(Interrupted):
        served(rate=30, progress=interrupt)
    (file,) = tmp_path.rglob("*.json.gz")
    file.write_bytes(file.read_bytes()[:-9])
    assert served(rate=30).completed == 120
    assert "is damaged" in capsys.readouterr().err


def interrupted(tmp_path):
    """The checkpoint of a run that was interrupted."""
    with pytest.raises(Interrupted):
        served(rate=30, progress=interrupt)
    (file,) = tmp_path.rglob("*.json.gz")
    return file


def rewrite(file, record):
    """Write another record under the key of a checkpoint, with a right checksum."""
    entry = json.loads(gzip.decompress(file.read_bytes()))
    entry |= {"record": record, "checksum": records._checksum(entry["inputs"], record)}
    file.write_bytes(gzip.compress(json.dumps(entry).encode()))


class Ran(Exception):
    """Says that a checkpoint's content was run."""


class Trap:
    def __reduce__(self):
        return exec, ("raise __import__('test_serving_checkpoints').Ran",)


TRAP = pickle.dumps(Trap())


@pytest.mark.parametrize(
    "content", [b"", TRAP, gzip.compress(TRAP, mtime=0), gzip.compress(b"[]", mtime=0), gzip.compress(b"{}", mtime=0)]
)
def test_no_content_of_a_checkpoint_is_run_and_other_content_begins_the_run_anew(content, tmp_path, capsys):
    interrupted(tmp_path).write_bytes(content)
    assert served(rate=30).completed == 120
    assert "the run begins anew" in capsys.readouterr().err


def text_of(content, dtype="|O", shape=(1,)):
    return {"base64": base64.b64encode(content).decode(), "dtype": dtype, "shape": list(shape)}


RECORDS = {
    "a list": [],
    "nothing": {},
    "an array of objects": {"arrival": text_of(TRAP)},
    "no base64": {"arrival": {"base64": "!", "dtype": "<f8", "shape": [1]}},
    "another shape": {"arrival": text_of(bytes(16), "<f8", (3,))},
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_sound_record_of_another_form_begins_the_run_anew(record, tmp_path, capsys):
    rewrite(interrupted(tmp_path), record)
    capsys.readouterr()
    assert served(rate=30).completed == 120
    assert "it has another form" in capsys.readouterr().err


def test_arrays_of_another_length_or_type_begin_the_run_anew(tmp_path, capsys):
    kept = json.loads(gzip.decompress(interrupted(tmp_path).read_bytes()))["record"]
    shorter = text_of(base64.b64decode(kept["arrival"]["base64"])[:-24], "<f8", (117,))
    for change in ({"arrival": shorter}, {"held": {**kept["held"], "dtype": "<f8"}}, {"replicas": []}):
        rewrite(interrupted(tmp_path), {**kept, **change})
        capsys.readouterr()
        assert served(rate=30).completed == 120
        assert "begins anew" in capsys.readouterr().err


@pytest.mark.parametrize("others", ["may write", "may have linked"])
def test_a_checkpoint_that_others_may_have_written_is_not_read(others, tmp_path, capsys):
    file = interrupted(tmp_path)
    if others == "may write":
        file.chmod(0o666)
    else:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    assert served(rate=30).completed == 120
    said = capsys.readouterr().err
    assert "begins anew" in said
    assert "resumes" not in said


def test_progress_counts_answers_of_all_requests():
    seen = []
    served(rate=30, progress=lambda *step: seen.append(step))
    assert [done for done, total, _ in seen if total == 120] == sorted(done for done, total, _ in seen if total == 120)
    assert seen[-1][0] > 60
    assert {what for *_, what in seen} == {"requests answered"}


def test_a_search_names_the_layout_that_it_tries():
    seen = []
    plan_with(
        "llama-3-8b", "2xh100", rate=4, requests=50, input_len=512, output_len=32, ttft="1 s", tpot="50 ms",
        progress=lambda *step: seen.append(step),
    )  # fmt: skip
    assert seen
    assert all(done < total for done, total, _ in seen)
    assert "TP" in seen[0][2]


@pytest.mark.parametrize(
    "load", [{"input_len": 500}, {"input_len": (100, 900), "acceptance_rate": 0.7, "speculative_method": "none"}]
)
def test_an_interrupted_plan_simulates_no_layout_again(load, tmp_path, capsys):
    asked = {"rate": 20, "requests": 40, "output_len": 24, "ttft": "300 ms", "tpot": "12 ms", "tp": 1, **load}
    begun = []

    def note(done, total, what):
        begun.append((done, what))

    def stop(done, total, what):
        if done == 4:
            raise Interrupted

    whole = plan_with("llama-3-8b", "2xh100", progress=note, **asked)
    every = begun.copy()
    assert not list(tmp_path.rglob("*.json.gz"))
    with pytest.raises(Interrupted):
        plan_with("llama-3-8b", "2xh100", progress=stop, **asked)
    begun.clear()
    capsys.readouterr()
    again = plan_with("llama-3-8b", "2xh100", progress=note, **asked)
    assert "resumes after 4 simulated layouts" in capsys.readouterr().err
    assert begun == every[4:]
    same = [{**one.to_dict(), "wall_s": 0} for one in (whole, again)]
    assert json.dumps(same[0]) == json.dumps(same[1])
    assert not list(tmp_path.rglob("*.json.gz"))
