"""What a page is told: the answer of the command that it shows, two states side by side, and dropped files."""

import json

import pytest

from weft.cli.main import main
from weft.core.errors import InputError
from weft.ui import answers
from weft.ui.fill import fill
from weft.ui.state import pack_file, parse_state
from weft.ui.worker import tell

STEP = "model=llama-3-8b&system=8xh100&tp=8&batch=16&framework=megatron-core&fidelity=estimate"
FUSE = "gemm=4096,8192,8192&form=gemm_rs&tp=8&gpu=h100-sxm&fidelity=estimate"


def told(messages):
    return {one["kind"]: one for one in messages}


@pytest.mark.parametrize(("tab", "query"), [("train", STEP), ("overlap", FUSE)])
def test_an_answer_is_what_the_command_prints(tab, query, capsys):
    words = answers.question(tab, parse_state(tab, query))
    report, _ = answers.ask(words)
    with pytest.raises(SystemExit):
        main(words)
    printed = capsys.readouterr().out
    for sentence in report.sentences():
        assert sentence in printed


def test_the_command_is_told_before_its_answer():
    kinds = [one["kind"] for one in answers.answer("train", parse_state("train", STEP))]
    assert kinds == ["command", "lead", "answer", "launch"]


def test_changes_that_gain_most_are_told_as_conclusions_alone():
    found = list(answers.answer("train", parse_state("train", STEP), 0))
    assert [one["kind"] for one in found] == ["command", "lead"]
    assert "--improve" in found[0]["text"]
    assert "What would gain most" in found[1]["html"] or "none that fits is faster" in found[1]["html"]


@pytest.mark.parametrize(
    "query", ["model=llama-3-8b&system=8xh100&tp=7", "model=no-such&system=8xh100", "system=8xh100&tp=x"]
)
def test_a_bad_state_is_told_in_the_sentence_of_the_command(query, capsys):
    found = told(tell({"do": "answer", "tab": "train", "query": query}))
    with pytest.raises(SystemExit):
        main(answers.question("train", parse_state("train", query)))
    assert capsys.readouterr().err.strip() == f"weft: {found['error']['text']}"


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'])
def test_a_hostile_name_is_text(name):
    found = told(tell({"do": "answer", "tab": "train", "query": f"model=llama-3-8b&system=8xh100&framework={name}"}))
    assert "html" not in found["error"]  # the page shows it by textContent


def test_a_hostile_model_is_escaped_in_the_answer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = "<script>window.broken=1</script>"
    text = json.dumps(
        {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "_name_or_path": evil, "hidden_size": 4096,
            "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "vocab_size": 128256, "max_position_embeddings": 8192, "hidden_act": "silu",
        }
    )  # fmt: skip
    filled = told(fill("train", parse_state("train", STEP), "config.json", text))["fill"]
    state = parse_state("train", filled["query"])
    assert state["model"] == ("config.json",)
    page = "".join(one.get("html", "") for one in answers.answer("train", state))
    assert page
    assert "<script>window" not in page


def test_a_pinned_state_is_compared_as_by_against():
    before = parse_state("train", STEP)
    found = told(answers.contrast("train", before, {**before, "tp": ("4",)}))
    assert found["command"]["text"].endswith("--against tp=4")
    assert "instead of" in found["lead"]["html"]
    assert "after / before" in found["answer"]["html"]


def test_a_removed_value_is_compared_as_two_commands():
    before = parse_state("train", f"{STEP}&recompute=full")
    found = told(answers.contrast("train", before, parse_state("train", STEP)))
    assert found["command"]["text"].count("weft step") == 2
    assert "recompute not given" in found["lead"]["html"]


def test_answers_without_one_time_are_compared_table_by_table():
    before = parse_state("overlap", FUSE)
    found = told(answers.contrast("overlap", before, {**before, "set": ("link.bandwidth=900 GB/s",)}))
    assert "now / pinned" in found["answer"]["html"]


def test_the_pinned_state_itself_has_no_contrast():
    state = parse_state("train", STEP)
    with pytest.raises(InputError, match="the state is the pinned one"):
        list(answers.contrast("train", state, state))


def test_the_values_that_a_field_offers_are_those_that_set_takes():
    (found,) = answers.values(parse_state("overlap", FUSE))
    value = next(one for one in found["values"] if one.startswith("link.bandwidth="))
    state = parse_state("overlap", FUSE)
    same = answers.ask(answers.question("overlap", {**state, "set": (value,)}))[0].tables()[0]
    assert same.rows == answers.ask(answers.question("overlap", state))[0].tables()[0].rows


SCRIPT = """torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu \\
 --max-position-embeddings 8192 --seq-length 4096 --micro-batch-size 2 --global-batch-size 32 --bf16 \\
 --tensor-model-parallel-size 4 --sequence-parallel --position-embedding-type rope --normalization RMSNorm \\
 --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256 --use-distributed-optimizer
"""


def test_a_launch_file_fills_the_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = told(fill("train", parse_state("train", STEP), "pretrain.sh", SCRIPT))["fill"]
    state = parse_state("train", found["query"])
    assert {key: state[key][0] for key in ("tp", "micro-batch", "batch", "sequence")} == {
        "tp": "4", "micro-batch": "2", "batch": "32", "sequence": "4096",
    }  # fmt: skip
    launched = answers.ask(["step", "--launch", "pretrain.sh", "--system", "8xh100", "--fidelity", "estimate"])[0]
    form = answers.ask(answers.question("train", state))[0]
    assert form.answer.model.parameters == launched.answer.model.parameters
    off = form.answer.seconds / launched.answer.seconds - 1
    assert 0 < abs(off) < 0.01  # the script does not overlap the reductions of gradients, for which there is no option
    assert f"{off:+.1%} off that of --launch" in found["text"]


def test_a_server_command_fills_the_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = parse_state("serve", "system=4xh100&rate=2")
    command = "vllm serve openai/gpt-oss-120b --tensor-parallel-size 4\n"
    found = told(fill("serve", state, "serve.sh", command))["fill"]
    filled = parse_state("serve", found["query"])
    assert (filled["tp"], filled["rate"]) == (("4",), ("2",))


def test_a_file_in_the_address_is_the_model_of_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    packed = pack_file("config.json", "{}")
    found = told(tell({"do": "answer", "tab": "train", "query": f"model=config.json&system=8xh100&file={packed}"}))
    assert "config.json" in found["error"]["text"]
