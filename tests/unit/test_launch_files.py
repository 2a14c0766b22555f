"""Launch files that users write, kind by kind: what each states decides the step, and nonsense is refused."""

import json
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import weft as cli
from weft.core.errors import ConfigError, InputError, WeftError
from weft.models.parallel.framework import framework
from weft.plan.read_layers import layer_pattern
from weft.plan.reading import known_arguments
from weft.plan.script import flags, read_script

MODEL = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --max-position-embeddings 1024 --seq-length 1024 "
    "--vocab-size 32000 --micro-batch-size 1 --bf16"
)
RUN = f"torchrun pretrain_gpt.py {MODEL}"


@pytest.fixture
def read(tmp_path):
    def from_text(text, name="run.sh", **how):
        (tmp_path / name).write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
        return weft.read_launch(tmp_path / name, **how)

    return from_text


def timed(launched, model=None, system="8xh100", **stated):
    return launched.step(system, model, fidelity="estimate", **stated)


# -- scripts


@pytest.mark.parametrize(
    ("head", "tp", "how"),
    [
        ("TP=${1:-2}", "$TP", {}),
        ("TP=${1:-8}", "$TP", {"arguments": ["2"]}),
        ("TP=$1", "${TP:-2}", {}),
        ("TP=${10}", "$TP", {"arguments": [*"abcdefghi", "2"]}),
        (': "${TP:=2}"', "$TP", {}),
        (': "${TP:=8}"', "$TP", {"define": {"TP": 2}}),
        ("TP=8", "$TP", {"define": {"TP": "2"}}),
        ("TP=$SLURM_JOB_NUM_NODES", "$TP", {"system": "2x dgx-h100"}),
        ("set -- a 2; shift; TP=$1", "$TP", {}),
        ("TP=${UNSET:+8}${1:+2}", "$TP", {"arguments": ["x"]}),
        ("A=(8 2 4)", '"${A[1]}"', {}),
        ("A=(8 8); A+=(8)", "$(( ${#A[@]} - 1 ))", {}),
        ("N=-7", "$(( (1 - 8) / -3 ))", {}),
        ("N=5", "$(( N % 3 ))", {}),
        ("if [ -z $X ]; then TP=2; else TP=8; fi", "$TP", {}),
        ('case "$1" in small|s*) TP=2 ;; *) TP=8 ;; esac', "$TP", {"arguments": ["small"]}),
        ("[[ $1 == big && -n $1 ]] && TP=8 || TP=2", "$TP", {}),
        (
            "while [ $# -gt 0 ]; do case $1 in --tp) TP=$2; shift ;; esac; shift; done",
            "$TP",
            {"arguments": ["--tp", "2"]},
        ),
        ("for TP in 8 4 2; do :; done", "$TP", {}),
        ("for TP in 2 8; do break; done", "$TP", {}),
        ("pick() { if [ $1 = a ]; then TP=2; return; fi; TP=8; }; pick a", "$TP", {}),
        ("export TP=2 # not 8", "${TP}", {}),
        ("TP='2'", '"$TP"', {}),
        ("local_tp=2\r\nTP=$local_tp\r", "$TP", {}),
    ],
)
def test_a_script_is_followed_as_a_shell_would(read, head, tp, how):
    found = read(f"#!/bin/bash\n{head}\n{RUN} --tensor-model-parallel-size {tp}\n", **how)
    assert found.fields["tp"] == 2
    assert not found.not_understood


def test_variables_and_arguments_give_the_step_of_the_same_options(read):
    text = f"TP=${{1:-2}}\nMBS=$2\n{RUN.replace('size 1 ', 'size ${MBS:-1} ')} --tensor-model-parallel-size $TP"
    plain = read(f"{RUN} --tensor-model-parallel-size 2")
    assert timed(read(text)).seconds == timed(plain).seconds
    other = read(f"{RUN.replace('size 1 ', 'size 2 ')} --tensor-model-parallel-size 4")
    assert timed(read(text, arguments=["4", "2"])).seconds == timed(other).seconds


def test_the_system_answers_what_slurm_and_torchrun_ask_of_the_machine(read):
    text = f"{RUN.replace('torchrun', 'torchrun --nproc_per_node 8 --nnodes $SLURM_JOB_NUM_NODES')}"
    assert read(text).gpus is None
    assert read(text, system="4x dgx-h100").gpus == 32
    assert read(RUN.replace("torchrun", "torchrun --nproc-per-node gpu --nnodes 1:4")).gpus is None
    with pytest.raises(ConfigError, match=r"tensor-model-parallel-size is \$SLURM_NTASKS; .* --define SLURM_NTASKS=8"):
        read(f"{RUN} --tensor-model-parallel-size ${{TP:-$SLURM_NTASKS}}")


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ({"arguments": ["1", "2"]}, "the script takes no arguments, and it was given 1 2"),
        ({"define": {"XX": "1"}}, "the script has no variable XX"),
        ({"define": {"a b": "1"}}, "'a b' is no variable of a script"),
        ({"arguments": "8"}, "arguments is '8'; it takes a list"),
    ],
)
def test_arguments_that_a_script_does_not_take_are_refused(read, how, rule):
    with pytest.raises(InputError, match=rule):
        read(RUN, **how)


def test_the_command_line_hands_over_arguments_and_variables(read, tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(f"TP=${{1:-8}}\nL=${{2:-9}}\n{RUN} --tensor-model-parallel-size $TP --mtp-num-layers $L\n")
    command = ["step", "--launch", str(file), "--system", "8xh100", "--fidelity", "estimate", "--json", "-"]
    ran = CliRunner().invoke(cli, [*command, "--define", "L=1", "--", "2"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["plan"]["tp"] == 2
    stray = CliRunner().invoke(cli, ["step", "llama-3-8b", "--system", "8xh100", "--", "2"])
    assert "words behind -- and --define belong to a script" in str(stray.exception)


def test_the_command_that_trains_decides(read):
    text = (
        f"python tools/preprocess.py --seq-length 128 --vocab-size 99\n{RUN} --tensor-model-parallel-size 4\n"
        "python tools/checkpoint/convert.py --tensor-model-parallel-size 1 --num-layers 2\n"
    )
    found = read(text)
    assert (found.fields["tp"], found.model.layers) == (4, 8)
    assert "The training command is that in line 2; the others do not count." in found.notes


@pytest.mark.parametrize(
    "text",
    [
        f"{RUN}\ncat > note.txt <<EOF\n{RUN} --num-layers 96\nEOF\n",
        f": <<'END'\n{RUN} --num-layers 96\nEND\n{RUN}\n",
        f"# {RUN} --num-layers 96\n{RUN}\n",
        f"echo 'use --num-layers 96'\n{RUN}\nprintf -- --num-layers 96\n",
        f"for N in 1 2; do echo --num-layers $N; done\n{RUN}\n",
        f"{RUN} 2>&1 | tee log.txt --num-layers 96\n",
        f"if [ 1 = 2 ]; then {RUN} --num-layers 96; fi\n{RUN}\n",
    ],
)
def test_text_that_runs_nothing_states_nothing(read, text):
    found = read(text)
    assert found.model.layers == 8
    assert not found.notes or "several" not in found.notes[0]


@pytest.mark.parametrize(
    "text",
    [
        f'CMD="{RUN} --tensor-model-parallel-size 4"\neval $CMD\n',
        f"srun -N 2 bash -c '{RUN} --tensor-model-parallel-size 4'\n",
        f'ARGS="{MODEL}"\nARGS="$ARGS --tensor-model-parallel-size"\nARGS+=\' 4\'\ntorchrun p.py $ARGS\n',
        f'A=({MODEL})\ntorchrun p.py "${{A[@]}}" --tensor-model-parallel-size 4 $EXTRA\n',
        f"run() {{\n torchrun p.py {MODEL} --tensor-model-parallel-size $1\n}}\nrun 4\n",
        f"main() {{ {RUN} --tensor-model-parallel-size 4; }}\nexport -f main\n",
        f"OMP_NUM_THREADS=1 {RUN} \\\n  --tensor-model-parallel-size=4\n",
    ],
)
def test_commands_of_other_shells_functions_and_variables_count(read, text):
    assert read(text).fields["tp"] == 4


def test_two_trainings_that_differ_are_refused_and_equal_ones_are_one(read):
    with pytest.raises(InputError, match="several trainings, in lines 1 and 2, which differ in --num-layers; keep one"):
        read(f"{RUN}\n{RUN} --num-layers 2\n")
    assert read(f"{RUN}\n{RUN}\n").model.layers == 8


def test_conditions_that_nobody_decides_are_said(read):
    found = read(f"if grep -q x /proc/cpuinfo; then TP=4; fi\n{RUN} --tensor-model-parallel-size ${{TP:-1}}\n")
    assert found.fields["tp"] == 4
    assert any("does not decide its conditions in line 1" in note for note in found.notes)
    with pytest.raises(InputError, match="exits in line 1 before it starts a training; give its arguments behind --"):
        read(f"if [ $# -lt 2 ]; then echo usage; exit 1; fi\n{RUN}\n")


DOUBLES = "\n".join(["A=$A$A"] * 40)
LARGE = {
    "doubled": f"A=xxxxxxxxxxxxxxxx\n{DOUBLES}\n{RUN} --save $A",
    "array": "A=(x x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 30 + RUN,
    "quote": f'{RUN} --save "\n' + "--num-layers 3\n" * 15_000,
    "list": "X=(\n" + "--num-layers 3\n" * 15_000,
    "braces": f"{RUN} --save " + "${a:-" * 50_000,
    "sums": f"{RUN} --save " + "$((" * 50_000,
    "brackets": f"{RUN} --save " + "((" * 50_000,
    "commands": f"while [ 1 = 1 ]; do {RUN}; done",
    "calls": f"f() {{ f; f; }}\nf\n{RUN}",
    "evals": f'A=\'eval "$A"\'; eval "$A"; {RUN}',
    "words": f"A=xxxxxxxx\n{RUN} " + "$A " * 80_000,
}


@pytest.mark.parametrize("kind", LARGE)
def test_scripts_without_end_are_refused_at_once(read, kind):
    began = time.process_time()
    with pytest.raises(ConfigError, match=r"never closed|more than|nested|deep|grow"):
        read(LARGE[kind])
    assert time.process_time() - began < 2


def test_sums_that_grow_stay_as_they_stand(read):
    found = read("N=9\n" + "N=$((N*N))\n" * 40 + f"{RUN} --save $N --log-dir {'$((' + '(' * 400 + '1' + ')' * 402}")
    assert found.fields["tp"] == 1


def test_a_script_is_never_run(read, tmp_path):
    marker = tmp_path / "marker"
    found = read(f'X=$(touch {marker}; echo 4)\nY=`touch {marker}`\nsource {marker}\n{RUN} --save "$(touch {marker})"')
    assert not marker.exists()
    assert found.fields["tp"] == 1
    with pytest.raises(ConfigError, match="tensor-model-parallel-size is the output of a command, which is not run"):
        read(f"X=$(touch {marker})\n{RUN} --tensor-model-parallel-size $X")


# -- Megatron-LM


@pytest.mark.parametrize(
    ("added", "rule"),
    [
        ("--tensor-model-parallel-size 0", "-size is '0'; it takes a whole number of at least 1"),
        ("--global-batch-size 0", "--global-batch-size is '0'; it takes a whole number of at least 1"),
        ("--tensor-model-parallel-size 2 4", "--tensor-model-parallel-size is '2 4'; it takes one value"),
        ("--swiglu false", "--swiglu is 'false'; it takes no value: it is a flag"),
        ("--fp8-format banana", "--fp8-format is 'banana'; it takes one of e4m3, hybrid"),
        ("--fp8-format e4m3 --fp8-recipe round", "--fp8-recipe is 'round'; it takes one of delayed, tensorwise"),
        ("--fp16", "--fp16 and --bf16 contradict each other"),
        ("--tensor-model-parallel-size ٢", "it takes a whole number"),
        ("--moe-layer-freq __import__ --num-experts 8 --moe-router-topk 2", "is '__import__'; it takes"),
        ("--moe-layer-freq [1]*3 --num-experts 8 --moe-router-topk 2", r"or 0 or 1 for each of the 8 layers, like"),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3", "a number that divides"),
        ("--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 99", "is '99'; it takes a number that"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*5|t*4L'", "the 8 layers of the"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Ebanana|tL'", "it takes stages like Ettt"),
        ("--pipeline-model-parallel-layout 'Et*999999999|tL'", "it takes stages like Ettt"),
        ("--recompute-granularity selective --recompute-modules nonsense", "is 'nonsense'; it takes some of layernorm"),
        ("--make-vocab-size-divisible-by 0", "it takes a whole number of at least 1"),
        ("--exp-avg-dtype int3", "--exp-avg-dtype is 'int3'; it takes one of fp32, bf16, fp16, fp8"),
        ("--attention-dropout 2", "--attention-dropout is '2'; it takes a share below 1"),
        ("--attention-backend fast", "--attention-backend is 'fast'; it takes one of flash, fused"),
        ("--cuda-graph-impl some", "--cuda-graph-impl is 'some'; it takes one of none, local"),
    ],
)
def test_values_that_megatron_refuses_are_refused(read, added, rule):
    with pytest.raises(ConfigError, match=rule):
        read(f"{RUN} {added}")


def test_groups_of_optimizers_divide_the_replicas(read):
    found = read(f"{RUN} --use-distributed-optimizer --num-distributed-optimizer-instances 3")
    with pytest.raises(InputError, match="3 groups of replicas, which do not divide the 8 replicas"):
        timed(found)
    half = read(f"{RUN} --use-distributed-optimizer --num-distributed-optimizer-instances 2")
    assert timed(half).plan.shard == 4


@pytest.mark.parametrize(
    ("often", "layers"),
    [
        ("([1]*2+[0]*6)", [0, 1]),
        ("[0,1,0,1,0,1,0,1]", [1, 3, 5, 7]),
        ("2", [0, 2, 4, 6]),
        ("[0]*3+[1]*5", [3, 4, 5, 6, 7]),
    ],
)
def test_the_layers_with_experts_are_those_of_the_pattern(read, often, layers):
    found = read(f"{RUN} --num-experts 8 --moe-router-topk 2 --moe-layer-freq '{often}'")
    assert [at for at, kind in enumerate(found.model.layer_kinds) if kind == "moe"] == layers


def test_patterns_of_layers_are_evaluated_as_lists_only():
    assert layer_pattern("([0]*1+[1]*2)*2", 6) == [0, 1, 1, 0, 1, 1]
    for text in ("[0]*-1", "[2]*4", "0", "[1]*10**9", "[[1]]*4", "[1", "x", "[1]*99999999999999"):
        assert layer_pattern(text, 4) is None


def test_query_groups_count_with_their_flag_only(read):
    assert read(f"{RUN} --num-query-groups 4").model.key_heads == 16
    assert read(f"{RUN} --num-query-groups 4 --group-query-attention").model.key_heads == 4


MOE = f"{RUN} --num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --expert-model-parallel-size 8"


def test_graphs_and_overlap_of_experts_are_the_plans(read):
    found = read(
        f"{MOE} --cuda-graph-impl full_iteration --overlap-moe-expert-parallel-comm --delay-wgrad-compute "
        "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep"
    )
    assert {name: found.fields[name] for name in ("cuda_graph_impl", "overlap_moe_expert_parallel_comm")} == {
        "cuda_graph_impl": "full_iteration", "overlap_moe_expert_parallel_comm": True,
    }  # fmt: skip
    assert (found.fields["delay_wgrad_compute"], found.fields["dispatcher"]) == (True, "hybridep")
    assert not found.not_modelled
    assert timed(found).seconds < timed(read(f"{MOE} --moe-token-dispatcher-type alltoall")).seconds
    scoped = read(f"{MOE} --cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router")
    assert scoped.fields["cuda_graph_modules"] == ("attn", "moe_router")
    assert read(f"{MOE} --moe-enable-deepep --moe-token-dispatcher-type flex").fields["dispatcher"] == "deepep"


@pytest.mark.parametrize(
    ("added", "less"),
    [
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", 6 / 12),
        ("--use-precision-aware-optimizer", 10 / 12),
    ],
)
def test_optimizer_states_take_the_bytes_that_the_arguments_say(read, added, less):
    before, after = (timed(read(f"{RUN} {each}")).memory for each in ("", added))
    usual, found = (one.devices[0].fixed.get("optimizer", 0.0) for one in (before, after))
    assert found == pytest.approx(usual * less, rel=1e-3)
    assert after.peak < before.peak


def test_optimizer_states_in_the_hosts_memory_are_the_plans(read):
    assert read(f"{RUN} --optimizer-cpu-offload").fields["offload"] == "optimizer"
    partly = read(f"{RUN} --optimizer-cpu-offload --optimizer-offload-fraction 0.5")
    assert partly.not_modelled == {"--optimizer-offload-fraction 0.5": "less memory, longer"}


def test_gradients_in_16_bits_take_less_memory(read):
    assert read(f"{RUN} --grad-reduce-in-bf16").settings["gradients"] == "bf16"
    overrides = "model.tensor_model_parallel_size=1\ntrain.micro_batch_size=1\nmodel.seq_length=2048\n"
    peaks = [
        timed(read(f"{overrides}ddp.grad_reduce_in_fp32={on}\n"), "llama-3-8b").memory.peak for on in ("true", "false")
    ]
    assert peaks[0] > peaks[1]


def test_recomputed_modules_are_operators_of_the_layers(read):
    found = read(f"{RUN} --recompute-granularity selective --recompute-modules mlp moe_act")
    assert not found.not_modelled
    assert set(timed(found).plan.recompute) == {"fc1", "activation", "fc2"}
    experts = read(f"{MOE} --recompute-granularity selective --recompute-modules mlp")
    assert timed(experts).plan.recompute == "none"


def test_what_changes_time_and_is_not_modelled_has_its_direction(read):
    found = read(
        f"{RUN} --fine-grained-activation-offloading --offload-modules core_attn --no-rope-fusion --optimizer sgd"
    )
    assert found.not_modelled["--fine-grained-activation-offloading"] == "less memory, likely longer"
    assert found.not_modelled["--optimizer sgd"] == "another update, with other states"
    notes = timed(found).notes
    assert any(
        note.startswith("Not modelled: ") and "--no-rope-fusion (longer: more kernels)" in note for note in notes
    )
    assert not read(f"{RUN} --optimizer adam --distributed-backend nccl").not_modelled


def test_operators_follow_the_arguments(read):
    assert read(f"{RUN} --attention-backend unfused").style == {"flash": False}
    assert read(f"{RUN} --attention-dropout 0.0 --hidden-dropout 0.1").style == {"dropout": True}
    assert read(f"{RUN} --cross-entropy-loss-fusion").style == {"loss": "fused_cross_entropy"}
    usual = timed(read(f"{RUN} --attention-dropout 0.0 --hidden-dropout 0.0"))
    assert timed(read(f"{RUN} --attention-dropout 0.1 --hidden-dropout 0.1")).seconds > usual.seconds


def test_nothing_that_changes_numbers_or_time_counts_as_without_effect():
    decides = {
        "megatron": (
            "fusion",
            "overlap",
            "recompute",
            "offload",
            "dtype",
            "fp8",
            "fp4",
            "graph",
            "capacity",
            "dropout",
        ),
        "torchtitan": ("converters", "quantize", "compile", "float8", "parallelism", "activation_checkpoint", "dtype"),
        "deepspeed": ("offload", "quantized", "bucket", "overlap", "autotp"),
        "automodel": ("backend", "distributed", "compile", "peft"),
    }
    for launcher, words in decides.items():
        known = known_arguments(launcher)
        assert not [name for name in known.without_effect if any(word in name for word in words)]
        assert not {*known.without_effect} & {*known.not_modelled}
        assert {*known.neutral} <= {*known.not_modelled}


QWEN3 = (
    "--num-layers 94 --hidden-size 4096 --num-attention-heads 64 --group-query-attention --num-query-groups 4 "
    "--kv-channels 128 --ffn-hidden-size 12288 --moe-ffn-hidden-size 1536 --num-experts 128 --moe-router-topk 8 "
    "--qk-layernorm --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --vocab-size 151936"
)
PAIRED = {
    "arguments.sh": f"torchrun --nproc-per-node 4 --nnodes 64 pretrain_gpt.py {QWEN3} --seq-length 4096 "
    "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 12 --expert-model-parallel-size 32 "
    "--micro-batch-size 2 --global-batch-size 8192 --bf16 --fp8-format e4m3 --fp8-recipe mxfp8 "
    "--use-distributed-optimizer --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep "
    "--overlap-moe-expert-parallel-comm --delay-wgrad-compute --cuda-graph-impl full_iteration --moe-grouped-gemm",
    "overrides.txt": "model.pipeline_model_parallel_size=4 model.virtual_pipeline_model_parallel_size=12 "
    "model.tensor_model_parallel_size=1 model.expert_model_parallel_size=32 train.global_batch_size=8192 "
    "train.micro_batch_size=2 model.seq_length=4096 model.moe_flex_dispatcher_backend=hybridep "
    "model.moe_token_dispatcher_type=flex mixed_precision.fp8=e4m3 mixed_precision.fp8_recipe=mxfp8 "
    "mixed_precision.fp8_dot_product_attention=true comm_overlap.overlap_moe_expert_parallel_comm=true "
    "comm_overlap.delay_wgrad_compute=true model.cuda_graph_impl=full_iteration model.moe_paged_stash=true "
    "model.use_transformer_engine_op_fuser=true ddp.use_distributed_optimizer=true",
}


@pytest.mark.parametrize("name", PAIRED)
def test_a_measured_step_of_2026_lies_in_the_interval_of_its_launch_file(read, name):
    # NVIDIA-NeMo/Megatron-Bridge, model card of Qwen3 235B-A22B on 256 GB300, 2026-08-17: 14.92 s
    model = "qwen3-235b-a22b" if name.endswith("txt") else None
    low, high = timed(read(PAIRED[name], name), model, "256xgb300").interval_s
    assert low < 14.92 < high


# -- overrides


OVERRIDES = (
    "model.tensor_model_parallel_size=2 train.micro_batch_size=1 model.seq_length=1024 train.global_batch_size=64"
)


def test_overrides_of_a_draft_or_a_teacher_are_not_those_of_the_model(read):
    found = read(f"{OVERRIDES} draft.tensor_model_parallel_size=8 teacher.num_layers=4 model.num_layers=8")
    assert found.fields["tp"] == 2
    assert found.not_understood == ("draft.tensor_model_parallel_size", "teacher.num_layers")


@pytest.mark.parametrize(
    ("added", "overlaps"),
    [
        ("ddp.overlap_grad_reduce=0", False),
        ("ddp.overlap_grad_reduce=yes", True),
        ("+ddp.overlap_grad_reduce=False", False),
    ],
)
def test_overrides_are_true_and_false_in_every_spelling(read, added, overlaps):
    assert read(f"{OVERRIDES} {added}").settings["dp_overlap"] is overlaps


@pytest.mark.parametrize(
    ("added", "rule"),
    [
        ("mixed_precision=banana", "mixed_precision is 'banana'; it takes one of bf16_mixed"),
        ("ddp.overlap_grad_reduce=maybe", "ddp.overlap_grad_reduce is 'maybe'; it takes true or false"),
        ("dataset.seq_length=9", "model.seq_length is 1024, and dataset.seq_length is 9; state one of them"),
    ],
)
def test_overrides_that_contradict_or_mean_nothing_are_refused(read, added, rule):
    with pytest.raises(ConfigError, match=rule):
        read(f"{OVERRIDES} {added}")


def test_what_overrides_delete_or_leave_out_the_options_state(read):
    found = read(f"{OVERRIDES} ~model.expert_model_parallel_size model.pipeline_model_parallel_size=null")
    assert not {"pp", "ep"} & found.fields.keys()
    assert timed(found, "llama-3-8b", pp=2).plan.pp == 2


def test_settings_of_2026_are_those_of_its_framework(read):
    found = read(
        f"{OVERRIDES} model.use_transformer_engine_op_fuser=true mixed_precision.fp8_dot_product_attention=true"
    )
    assert found.framework == "megatron-bridge-2026"
    assert (found.settings["fused_experts"], found.settings["attention"]) == (True, "fp8")


def test_a_recipe_by_its_name_says_what_is_missing(read):
    with pytest.raises(InputError, match=r"starts the recipe some_8b_config, which is not among the .* that Weft has"):
        read("./train.sh --nodes 2 --recipe some_8b_config --seq_length 4096\n")
    assert read(f"./train.sh --recipe some_8b_config {OVERRIDES}\n").fields["tp"] == 2


# -- DeepSpeed


ZERO = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}
AUTO = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "overlap_comm": False}}  # fmt: skip


def test_auto_is_not_stated_and_the_options_state_it(read):
    found = read(AUTO, "ds.json")
    assert not {"dtype", "batch", "micro_batch"} & found.fields.keys()
    how = {"batch": 64, "micro_batch": 4, "sequence": 2048, "recompute": "full"}
    same = replace(framework("deepspeed-zero3"), dp_overlap=False)
    for dtype in (None, "fp16"):
        stated = how | ({"dtype": dtype} if dtype else {})
        wanted = weft.step("llama-3-8b", "8xh100", zero=3, sp=False, framework=same, fidelity="estimate", **stated)
        assert timed(found, "llama-3-8b", **stated).seconds == wanted.seconds


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({"bf16": {"enabled": "true"}}, "bf16"),
        ({"bf16": {"enabled": 1}}, "bf16"),
        ({"bf16": {"enabled": False}}, "fp32"),
        ({"bf16": {"enabled": False}, "fp16": {"enabled": True}}, "fp16"),
        ({"bf16": None, "bfloat16": {"enabled": True}}, "bf16"),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": False}}, None),
        ({"bf16": {}}, None),
    ],
)
def test_only_a_stated_false_is_fp32(read, changes, dtype):
    document = {name: value for name, value in {**ZERO, **changes}.items() if value is not None}
    assert read(document, "ds.json").fields.get("dtype") == dtype


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"fp16": {"enabled": True}}, "bf16 and fp16 are both enabled, which DeepSpeed refuses"),
        ({"train_micro_batch_size_per_gpu": 0}, "train_micro_batch_size_per_gpu is '0'; it takes a whole number of at"),
        ({"gradient_accumulation_steps": -4}, "gradient_accumulation_steps is '-4'; it takes a whole number"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage is '4'; it takes a stage from 0 to 3"),
        ({"zero_optimization": {"offload_optimizer": {"device": "CPU"}}}, "is 'CPU'; it takes one of none, cpu, nvme"),
        ({"bf16": {"enabled": "perhaps"}}, "bf16.enabled is 'perhaps'; it takes true or false"),
    ],
)
def test_what_deepspeed_refuses_is_refused(read, changes, rule):
    with pytest.raises(ConfigError, match=rule):
        read({**ZERO, **changes}, "ds.json")


def test_batches_that_contradict_each_other_are_refused_as_deepspeed_does(read):
    found = read({**ZERO, "train_batch_size": 1024, "gradient_accumulation_steps": 4}, "ds.json")
    with pytest.raises(InputError, match="batch of 1024 is not micro-batches of 1 x 4 accumulated x 8 replicas = 32"):
        timed(found, "llama-3-8b")
    alone = {"train_batch_size": 64, "zero_optimization": {"stage": 1}}
    assert timed(read(alone, "ds.json"), "llama-3-8b", sequence=512).plan.micro_batch == 8
    steps = {**AUTO, "gradient_accumulation_steps": 4}
    assert timed(read(steps, "ds.json"), "llama-3-8b", micro_batch=2, sequence=512).plan.batch == 64


def test_a_key_that_stands_twice_or_deep_is_refused(read):
    with pytest.raises(ConfigError, match="train_batch_size: it stands there twice, which DeepSpeed refuses"):
        read('{"train_batch_size": 8, "train_batch_size": 64}', "ds.json")
    with pytest.raises(ConfigError, match="nested"):
        read('{"train_batch_size": 8, "x": ' + '{"a":' * 60 + "1" + "}" * 61, "ds.json")
    assert read({"train_batch_size": 8, "zero_optimization": True}, "ds.json").fields["zero"] == 1


def test_groups_of_gathered_weights_are_of_stage_3(read):
    groups = {"zero_hpz_partition_size": 4}
    first = read({**ZERO, "zero_optimization": {"stage": 1, **groups}}, "ds.json")
    assert "shard" not in first.fields
    assert first.without_effect == {"zero_optimization.zero_hpz_partition_size": "of ZeRO stage 3"}
    assert "zero_optimization.zero_hpz_partition_size" not in first.used
    assert read({**ZERO, "zero_optimization": {"stage": 3, **groups}}, "ds.json").fields["shard"] == 4


@pytest.mark.parametrize(
    ("instead", "words"),
    [
        ("tp", "instead is 'tp'; give fields of a plan by name"),
        ({"tp": "flux"}, "tp is 'flux'; it must be a whole number of at least 1"),
        ({"tp": 0}, "tp is 0; it must be"),
        ({"micro_batch": 1.5}, "micro_batch is 1.5; it must be"),
        ({5: 3}, "unknown field of a plan '5'"),
    ],
)
def test_changes_of_a_launched_plan_are_checked_before_they_are_used(read, instead, words):
    stated = {**ZERO, "gradient_accumulation_steps": 2}
    with pytest.raises(WeftError, match=words):
        timed(read(stated, "ds.json"), "llama-3-8b", instead=instead)


# -- torchtitan


TITAN = """[model]
name = "llama3"
flavor = "8B"
{converters}
[training]
local_batch_size = 1
seq_len = 2048
{training}
"""


def titan(read, converters="", training="", more=""):
    return read(TITAN.format(converters=converters, training=training) + more, "train.toml")


FLOAT8 = 'converters = ["quantize.linear.float8"]'
FILTER = 'filter_fqns = ["output"]'


def test_converters_decide_the_precision_and_a_recipe_refines_it(read):
    base = "[compile]\nenable = true\n"
    dynamic = titan(read, FLOAT8, more=f"{base}[quantize.linear.float8]\n{FILTER}\n")
    assert dynamic.fields["precision"] == "fp8-tensorwise"
    rowwise = titan(read, FLOAT8, more=f'{base}[quantize.linear.float8]\n{FILTER}\nrecipe_name = "rowwise"\n')
    assert rowwise.fields["precision"] == "fp8-rowwise"
    assert not rowwise.not_modelled
    off = titan(read, more=f'{base}[quantize.linear.float8]\n{FILTER}\nrecipe_name = "tensorwise"\n')
    assert "precision" not in off.fields
    assert timed(off).seconds == timed(titan(read, more=base)).seconds > timed(dynamic).seconds
    blocks = titan(read, 'converters = ["quantize.linear.mx"]', more=f"[quantize.linear.mx]\n{FILTER}\n")
    assert blocks.fields["precision"] == "mxfp8"


def test_converters_and_filters_without_a_model_are_named(read):
    grouped = titan(read, 'converters = ["quantize.grouped_mm.float8"]')
    assert grouped.not_modelled == {
        "model.converters quantize.grouped_mm.float8": "another precision of some operators"
    }
    narrow = titan(read, FLOAT8, more='[quantize.linear.float8]\nfilter_fqns = ["output", "wq"]\n')
    assert "quantize.linear.float8.filter_fqns wq" in narrow.not_modelled
    assert any("filter_fqns" in name for name in titan(read, FLOAT8).not_modelled)


@pytest.mark.parametrize(
    ("training", "more", "rule"),
    [
        ("global_batch_size = 'many'", "", "training.global_batch_size is 'many'; it takes a whole number"),
        ("global_batch_size = 1.5", "", "training.global_batch_size is '1.5'; it takes a whole number"),
        ("", "[parallelism]\ndata_parallel_shard_degree = 0\n", "data_parallel_shard_degree is '0'; it takes a whole"),
        (
            "",
            '[parallelism]\ndata_parallel_shard_degree = "banana"\n',
            "_shard_degree is 'banana'; it takes",
        ),
        (
            "",
            '[parallelism]\nfsdp_reshard_after_forward = "nevr"\n',
            "is 'nevr'; it takes one of default, always",
        ),
        ("", '[parallelism]\ncontext_parallel_rotate_method = "x"\n', "is 'x'; it takes one of allgather, alltoall"),
        ("", '[compile]\nenable = "yes"\n', "compile.enable is 'yes'; it takes true or false"),
        ("", '[parallelism]\nenable_async_tensor_parallel = "true"\n', "is 'true'; it takes true or false"),
        ("", "[parallelism]\ntensor_parallel_degree = 0\n", "tensor_parallel_degree is '0'; it takes a whole number"),
        ("", '[activation_checkpoint]\nselective_ac_option = "all"\n', "selective_ac_option is 'all'; it takes op, or"),
        ("", '[compile]\nenable = true\ncomponents = ["modle"]\n', "components is 'modle'; it takes some of model"),
        ("mixed_precision_param = 'float64'", "", "is 'float64'; it takes one of bfloat16, float32"),
    ],
)
def test_values_that_torchtitan_refuses_are_refused(read, training, more, rule):
    with pytest.raises(ConfigError, match=rule):
        titan(read, training=training, more=more)


def test_degrees_multiply_to_the_gpus(read):
    with pytest.raises(InputError, match="the launch file starts 2 GPUs, the system has 8"):
        timed(titan(read, more="[parallelism]\ndata_parallel_shard_degree = 2\n"))
    with pytest.raises(InputError, match="the launch file starts 16 GPUs, the system has 8"):
        timed(titan(read, more="[parallelism]\ndata_parallel_shard_degree = 4\ndata_parallel_replicate_degree = 4\n"))
    with pytest.raises(InputError, match="3 groups of replicas, which do not divide the 8 replicas"):
        timed(titan(read, more="[parallelism]\ndata_parallel_replicate_degree = 3\n"))
    assert timed(titan(read, more="[parallelism]\ndata_parallel_replicate_degree = 2\n")).plan.shard == 4


def test_a_model_that_the_catalogue_lacks_is_named(read):
    text = TITAN.format(converters="", training="").replace("8B", "debugmodel")
    with pytest.raises(InputError, match="trains llama3 debugmodel, which is no model of the catalogue"):
        timed(read(text, "train.toml"))


def test_numbers_and_kernels_follow_the_settings(read):
    assert titan(read, training='mixed_precision_param = "float32"').fields["dtype"] == "fp32"
    assert titan(read, more='[optimizer]\nimplementation = "foreach"\n').settings == {"fused_optimizer": False}
    assert titan(read, more="[activation_checkpoint]\nearly_stop = false\n").settings == {"stops_early": False}
    partly = titan(read, more='[compile]\nenable = true\ncomponents = ["loss"]\n')
    assert partly.style == {"fused": False, "eager": True, "loss": "compiled_cross_entropy"}
    eager = titan(read, more="[compile]\nenable = false\n")
    assert eager.style == {"fused": False, "eager": True, "loss": "eager_cross_entropy"}


# -- YAML


AUTOMODEL = """recipe: SomeRecipe
step_scheduler: {global_batch_size: 64, local_batch_size: 2}
distributed: {strategy: fsdp2, tp_size: 1, ep_size: 8, activation_checkpointing: true}
model:
  config: {pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B}
  backend: {attn: te, experts: gmm, dispatcher: deepep}
dataset: {seq_len: 2048}
"""


def test_yaml_of_automodel_is_the_step_of_the_same_options(read):
    found = read(AUTOMODEL, "run.yaml")
    wanted = weft.step(
        "qwen3-30b-a3b", "8xh100", ep=8, zero=3, batch=64, micro_batch=2, sequence=2048, recompute="full",
        framework="automodel", fidelity="estimate",
    )  # fmt: skip
    assert timed(found).seconds == pytest.approx(wanted.seconds, rel=1e-6)
    assert not found.not_understood


def test_yaml_of_primus_and_nemo_states_megatrons_arguments(read):
    primus = """modules:
  pre_trainer:
    framework: megatron
    model: llama3.1_8B.yaml
    overrides: {micro_batch_size: 2, global_batch_size: 64, seq_length: 4096, tensor_model_parallel_size: 2}
"""
    found = read(primus, "run.yaml")
    assert (found.model.name, found.fields["tp"], found.fields["batch"]) == ("llama-3-8b", 2, 64)
    nemo = "strategy:\n  tensor_model_parallel_size: 8\n  sequence_parallel: true\ndata: {global_batch_size: 64}\n"
    assert {name: read(nemo, "run.yaml").fields[name] for name in ("tp", "sp", "batch")} == {
        "tp": 8, "sp": True, "batch": 64,
    }  # fmt: skip


DOUBLED = "tp_size: 1\nx0: &x0 [1]\n" + "".join(f"x{n}: &x{n} {{a: *x{n - 1}, b: *x{n - 1}}}\n" for n in range(1, 19))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("run:\n  micro_batch_size: 4\n", "a YAML of a kind unknown to Weft, which is not read: Weft needs the model"),
        ("micro_batch_size: [\n", "line 2: this is no YAML"),
        ("modules: {other: 1}\nmicro_batch_size: 1\n", "a YAML of Primus without a trainer"),
        ("a: &a {b: *a, micro_batch_size: 1}\n", "nested|no YAML"),
        (DOUBLED, "repeat"),
    ],
)
def test_other_yaml_is_refused_with_what_to_state(read, text, rule):
    with pytest.raises(WeftError, match=rule):
        read(text, "run.yaml")


def test_words_with_one_dash_are_named(read):
    found = read(f"{RUN} -tensor-model-parallel-size 2 ---pipeline-model-parallel-size 2 --Num-Layers 3")
    assert found.not_understood == ("-tensor-model-parallel-size", "---pipeline-model-parallel-size", "--Num-Layers")
    assert read(RUN.replace("torchrun", "srun -N 2 --container-image=x torchrun")).not_understood == ()


def test_values_with_commands_and_variables_are_kept_apart():
    commands = read_script("torchrun p.py --a $(x y z) --b `c d` --e ${F} --g 'h i'").commands
    assert flags(commands[0].words) == {"a": ["$(x)"], "b": ["`c d`"], "e": ["${F}"], "g": ["h i"]}


HYBRID = (
    "torchrun pretrain_mamba.py --hidden-size 4096 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --kv-channels 128 --ffn-hidden-size 21504 --squared-relu --disable-bias-linear "
    "--normalization RMSNorm --position-embedding-type none --untie-embeddings-and-output-weights "
    "--vocab-size 131072 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 16 "
    "--bf16 --is-hybrid-model --hybrid-override-pattern "
)


def test_a_hybrid_pattern_of_megatron_gives_the_model_of_the_catalogue(read):
    letters = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    found = read(f"{HYBRID}{letters} --mamba-num-heads 128 --num-layers 52")
    known = weft.load_model("nemotron-h-8b")
    assert not found.not_understood
    assert (found.model.layer_kinds, found.model.mixer) == (known.layer_kinds, known.mixer)
    assert found.model.parameters == known.parameters
    with pytest.raises(ConfigError, match=r"hybrid-override-pattern is 'M\?'; it takes a letter for each layer: M"):
        read(f"{HYBRID}'M?'")


def test_gated_deltanet_and_windows_are_in_the_layers_that_the_arguments_say(read):
    delta = (
        "--experimental-attention-variant gated_delta_net --linear-attention-freq 4 --linear-num-value-heads 32 "
        "--linear-num-key-heads 16 --linear-value-head-dim 128 --linear-key-head-dim 128 --attention-output-gate"
    )
    found = read(f"{RUN} {delta}").model
    assert found.layer_kinds[:4] == ("dense-linear",) * 3 + ("dense",)
    assert (found.linear, found.attention_gate, found.mixer.inner) == ("gated_delta", True, 4096)
    slid = read(f"{RUN} --window-size 128,0 --window-attn-skip-freq 2").model
    assert (slid.window, slid.layer_kinds[:2]) == (128, ("dense-window", "dense"))
    assert set(read(f"{RUN} --window-size '(128, 0)'").model.layer_kinds) == {"dense-window"}
    with pytest.raises(ConfigError, match=r"window-size is 'wide'; it takes tokens to the left and to the right"):
        read(f"{RUN} --window-size wide")
