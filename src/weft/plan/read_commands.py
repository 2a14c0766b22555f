"""The run that a shell script starts: the command that trains, with the files that it names and its overrides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from weft.core.errors import InputError
from weft.core.files import read_text
from weft.models import load_model
from weft.models.load import named_model
from weft.plan.documents import LARGEST, find_beside, given_words, resolve_references
from weft.plan.launched import Launched
from weft.plan.read_huggingface import TOOLS, accelerate_settings, is_huggingface, read_trainer
from weft.plan.read_megatron import SHAPES, read_arguments, read_overrides
from weft.plan.read_recipes import is_recipe, read_recipe, registered_settings
from weft.plan.read_settings import read_document, read_flat, refuse_reinforcement
from weft.plan.read_torchtitan import read_torchtitan
from weft.plan.reading import ArgumentReader, Machine
from weft.plan.script import Arguments, Command, Script, flags, is_unknown, read_script

_TRAINS = frozenset(("micro-batch-size", "global-batch-size", "train-iters", "train-samples"))
_CONVERTS = re.compile(r"convert|preprocess|tools/|merge_|inference|evaluate", re.IGNORECASE)
_OVERRIDE = re.compile(r"([~+]*)((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:=(.*))?", re.DOTALL)
_FILE = re.compile(r"(?:[\w.-]+=)?([^\s=]+\.(?:ya?ml|toml|json))")
_STARTS = re.compile(
    r"(num|tensor|micro|global|seq)[-_](layers|model|batch|length)|--recipe|CONFIG=|--config|--per_device_|--model_name_or_path|--max_context_width|openrlhf|\.(ya?ml|toml|json)\b"
)
_SLURM = re.compile(r"^#SBATCH\s", re.MULTILINE)
_STATE_A_RUN = frozenset(("tensor_model_parallel_size", "micro_batch_size", "global_batch_size", "seq_length"))
"""Overrides that describe a run where no recipe is known."""
_RECIPE = "What the overrides leave to the recipe of the model has Weft's defaults, such as TP 1."


def read_commands(
    text: str, file: str, arguments: tuple[str, ...], defined: Mapping[str, str], machine: Machine | None
) -> Launched | None:
    """Return the run that a script starts: by arguments, a recipe, overrides or files; None if it starts none."""
    if not _STARTS.search(text):
        return None
    each = machine and machine.gpus_per_node
    script = read_script(text, file, arguments, defined, _environment(machine, text), each)
    commands = [_handed_on(each) for each in script.commands]
    found = [(each, flags(each.words)) for each in commands]
    notes = (*_notes(script), *_handing(script.commands, commands))
    overridden = _overrides(word for each in commands for word in (*each.assigned, *each.words))
    refuse_reinforcement(overridden, file)
    known = {name.rpartition(".")[2] for name in overridden} & _STATE_A_RUN
    for _, given in found:
        name = " ".join(given.get("recipe", ()))
        if name and (is_recipe(name) or "tensor_model_parallel_size" not in known):
            return _of_recipe(name, given, overridden, file, notes)
    for _, given in found:
        if {"max-context-width", "train-batch-size"} <= given.keys():  # of FSDP examples that HyperPod's recipes follow
            flat = {f"model.{name.replace('-', '_')}": " ".join(words) for name, words in given.items()}
            if (started := read_flat(flat, file, defined)) is not None:
                return started
    for command, given in found:
        if (started := _registered(command, given, file, notes)) is not None:
            return started
    starts = [(each, given) for each, given in found if given.keys() & SHAPES]
    starts = starts or [(each, given) for each, given in _arrays(script) if given.keys() & SHAPES]
    if starts:
        command, given = _training(starts, file)
        said = [*notes, *_others(len(starts), command)]
        if beside := _overrides(command.words):
            said.append(f"Overrides beside Megatron-LM's arguments are left out: {', '.join(beside)}.")
        read = ArgumentReader(given, file, launching=_launching(command))
        read.left_out.extend(word for word in command.words if re.match(r"-[A-Za-z][\w-]{3,}|---", word))
        return read_arguments(read, "megatron-core", tuple(said))
    if known:
        return read_overrides(overridden, file, (*notes, _RECIPE))
    if (started := _of_trainings(found, file, defined)) is not None:
        return replace(started, notes=(*notes, *started.notes))
    _refuse_openrlhf(found, file)
    if script.exits:
        raise InputError(
            f"'{file}' exits in line {script.exits} before it starts a training; give its arguments behind --, or "
            f"state {_stated_by(script.exits_by)}"
        )
    return None


_OF_OPENRLHF = {
    "zero-stage": "--zero", "ds-tensor-parallel-size": "--tp", "ring-attn-size": "--cp", "train-batch-size": "--batch",
    "micro-train-batch-size": "--micro-batch", "max-len": "--sequence", "gradient-checkpointing": "--recompute full",
    "adam-offload": "--offload optimizer",
}  # fmt: skip
"""Options by OpenRLHF's arguments (openrlhf/cli/train_sft.py)."""


def _refuse_openrlhf(found: Iterable[tuple[Command, Arguments]], file: str) -> None:
    """Raise InputError for a training by OpenRLHF, with the options that state it."""
    for command, given in found:
        program = next((word for word in command.words if "openrlhf" in word.lower() and "train" in word), "")
        if not program:
            continue
        model = named_model(" ".join(given.get("pretrain", ()))) or "MODEL"
        stated = [" ".join((option, *given[name])) for name, option in _OF_OPENRLHF.items() if name in given]
        known = " ".join(each for each in stated if not is_unknown(each))
        raise InputError(
            f"'{file}' starts {program}, whose arguments Weft does not read; state its updates by options: weft step "
            f"{model} --framework deepspeed-zero3 {known}, and its rollouts, if it has some, to weft serve"
        )


_RUNS = re.compile(r"(\S*/)?(accelerate|torchrun|python3?(\.\d+)?|deepspeed|llamafactory-cli|axolotl|trl|srun|mpirun)")


def _handed_on(command: Command) -> Command:
    """Return the command that another one, such as a scheduler's, starts behind `--`; itself if there is none."""
    words = command.words
    at = next((at for at, (mark, word) in enumerate(pairwise(words)) if mark == "--" and _RUNS.fullmatch(word)), None)
    return command if at is None else replace(command, words=words[at + 1 :])


def _handing(before: Iterable[Command], after: Iterable[Command]) -> Iterable[str]:
    """Yield the arguments of commands that hand another one on, which may change how many GPUs it has."""
    for whole, handed in zip(before, after, strict=True):
        own = whole.words[: len(whole.words) - len(handed.words)]
        stated = [" ".join((f"--{name}", *words)) for name, words in flags(own).items()]
        if stated:
            listed = ", ".join(stated)
            yield f"Line {whole.line} hands on its command behind --; arguments before it do not count: {listed}."


def _stated_by(names: tuple[str, ...]) -> str:
    """Return how to state the variables of a condition."""
    if not names:
        return "its variables by --define NAME=VALUE"
    return f"what decides it: --define {' --define '.join(f'{name}=VALUE' for name in names[:_SHOWN])}"


def _arrays(script: Script) -> list[tuple[Command, Arguments]]:
    """Return the arguments that a script sets as arrays without a command that has them, as those of one command."""
    words = [word for each in script.arrays for word in each.words]
    return [(Command(tuple(words), 0), flags(words))]


# -- recipes


_LAUNCH = {
    "mode": "starts processes", "nodes": "starts processes", "gpus_per_node": "starts processes",
    "num_gpus": "starts processes", "account": "starts processes", "partition": "starts processes",
    "time_limit": "starts processes", "container_image": "starts processes", "gpu": "starts processes",
    "max_steps": "length of the run", "train_iters": "length of the run", "dataset": "data", "data": "data",
}  # fmt: skip
"""Arguments of Megatron-Bridge's launchers (scripts/training, scripts/performance) that change no step."""


def _of_recipe(
    name: str, given: Arguments, overridden: Mapping[str, str], file: str, notes: tuple[str, ...]
) -> Launched:
    """Return the run of the recipe that a command of Megatron-Bridge names, with its arguments and overrides."""
    own = {each.replace("-", "_"): " ".join(words) for each, words in given.items() if each != "recipe"}
    idle = {f"--{each.replace('_', '-')}": _LAUNCH[each] for each in own if each in _LAUNCH}
    sizes = {each: value for each, value in own.items() if each not in _LAUNCH}
    found = read_recipe(name, {**sizes, **overridden}, file, notes)
    nodes, each = own.get("nodes", ""), own.get("gpus_per_node", "")
    gpus = int(nodes) * int(each) if nodes.isdecimal() and each.isdecimal() else None
    return replace(found, gpus=gpus, without_effect={**idle, **found.without_effect})


def _registered(command: Command, given: Arguments, file: str, notes: tuple[str, ...]) -> Launched | None:
    """Return the run of a configuration of torchtitan's registry with the settings beside it; None for no such one."""
    stated = {**dict(word.partition("=")[::2] for word in command.assigned), **{
        name.upper(): " ".join(given[name]) for name in ("module", "config") if name in given}}  # fmt: skip
    named = stated.get("CONFIG", "")
    if not {"MODULE", "CONFIG"} <= stated.keys() or (found := registered_settings(named)) is None:
        return None
    model, settings = found
    changed = {name.replace("-", "_"): " ".join(words) or "true" for name, words in given.items() if "." in name}
    merged = {"compile.enable": "false", **settings, **changed}
    started = read_torchtitan({name: _SWITCHES.get(value, value) for name, value in merged.items()}, file)
    gpus = stated.get("NGPU", "")
    own = {"loss_chunks": _CHUNKS, **started.fields}
    plan = f"The plan is that of the configuration {named} in torchtitan of 2026-08-21 (b5bcd76c6)."
    return replace(
        started, model=load_model(model), trains="", fields=own, notes=(plan, *notes, *started.notes),
        used={"--config": named, **{name: value for name, value in started.used.items() if name in changed}},
        gpus=started.gpus or (int(gpus) if gpus.isdecimal() else None),
    )  # fmt: skip


_SWITCHES: Mapping[str, Any] = {"true": True, "True": True, "false": False, "False": False}
_CHUNKS = 8
"""Chunks of the loss in torchtitan's registered configurations (torchtitan/components/loss.py, num_chunks)."""


# -- files that a command names


def _of_trainings(found: Iterable[tuple[Command, Arguments]], file: str, defined: Mapping[str, str]) -> Launched | None:
    """Return the run of the command that trains by files that it names; InputError for several that differ."""
    trains = [each for each in found if not _is_other_use(each[0])]
    run = [each for each in trains if each[0].words] or trains  # an assignment alone names a file, and uses none of it
    first: tuple[Command, Launched] | None = None
    several = 0
    for command, given in run:
        started = _of_files(command, given, file, defined)
        if started is None:
            continue
        several += 1
        first = first or (command, started)
        if differ := _differing(first[1], started):
            lines = sorted({first[0].line, command.line})
            where = f"lines {lines[0]} and {lines[-1]}" if len(lines) > 1 else f"line {lines[0]}"
            raise InputError(
                f"'{file}' starts several trainings, in {where}, which differ in {', '.join(differ[:3])}; keep one of "
                "them, state by --define the variable that chooses, or give one command itself: --launch "
                f"'{' '.join(first[0].words[:_SHOWN])} ...'"
            )
    if first is None:
        return None
    return replace(first[1], notes=(*_others(several, first[0]), *first[1].notes))


_SHOWN = 3
"""Words of a command that are shown."""
_OF_A_STEP = (
    "model", "trains", "fields", "settings", "style", "gpus", "local_batch", "accumulation", "replica_groups",
    "not_modelled",
)  # fmt: skip


def _differing(first: Launched, second: Launched) -> list[str]:
    """Return the arguments in which two runs differ; none where their steps are the same."""
    if all(getattr(first, name) == getattr(second, name) for name in _OF_A_STEP):
        return []
    one, other = ({**each.used, **each.not_modelled} for each in (first, second))
    differ = {name.partition(" ")[0] for name in {**one, **other} if one.get(name) != other.get(name)}
    return sorted(differ) or ["their settings"]


def _is_other_use(command: Command) -> bool:
    """Return whether a command uses a model, or makes one ready, and does not train it."""
    words = command.words
    uses = any(tool.rpartition("/")[2] in TOOLS and word not in _TRAINING_WORDS and re.fullmatch(r"[a-z][\w-]*", word)
               for tool, word in pairwise(words))  # fmt: skip
    modules = [word for before, word in pairwise(words) if before == "-m"]
    named = (_program(command).rpartition("/")[2], *modules)
    return uses or any(_OTHER_USE.search(each) and not _TRAINING.search(each) for each in named)


_ACCELERATE = frozenset(("accelerate", "accelerate-launch", "accelerate.commands.launch"))
_TRAINING_WORDS = frozenset(("train", "sft", "dpo", "kto", "reward"))
_TRAINING = re.compile(r"train|tun(e|ing)|sft|dpo")
_OTHER_USE = re.compile(
    r"(^|[/_.-])(eval|evaluate|evaluation|infer|inference|generate|predict|chat|serve|export|merge\w*|convert\w*"
    r"|preprocess\w*|quantize|download\w*)([/_.-]|$)"
)


def _of_files(command: Command, given: Arguments, file: str, defined: Mapping[str, str]) -> Launched | None:
    """Return the run that a command starts by the files that it names, with what it states beside them; else None."""
    named = [part[1] for word in (*command.assigned, *command.words) if (part := _FILE.fullmatch(word))]
    own = {name.replace("-", "_"): words for name, words in given.items()}
    documents = {each: found for each in dict.fromkeys(named) if (found := _settings_beside(each, file)) is not None}
    trainer = {name: words for each in documents.values() if is_huggingface(each)
               for name, words in given_words(resolve_references(each, defined)).items()}  # fmt: skip
    if trainer or is_huggingface(own):
        read = {each for each, flat in documents.items() if is_huggingface(flat)}
        beside = {name: each or ["true"] for name, each in own.items() if not {*each} & read}
        launching = {name.replace("-", "_"): reason for name, reason in _launching(command).items()}
        names: Mapping[str, str] = {}
        if _ACCELERATE & {word.rpartition("/")[2] for word in _before_program(command)}:
            of_launcher = {name: own[name] for name in launching if name in beside}
            kind = " ".join(trainer.get("distributed_type", ()))
            beside, names, idle = accelerate_settings(beside, of_launcher, kind)
            launching |= idle
        tool = next((name for word in command.words if (name := word.rpartition("/")[2]) in TOOLS), "")
        return read_trainer({**trainer, **beside, **_overrides_plain(command.words)}, file, launching, names, tool)
    for path, flat in documents.items():
        changed = {name: " ".join(words) or "true" for name, words in own.items() if "." in name}
        changed |= _overrides(command.words)
        stated = {name.removeprefix("--"): _SWITCHES.get(value, value) for name, value in changed.items()}
        settings = {**flat, **stated}
        if (started := read_flat(settings, path, defined)) is not None:
            return started
    return None


def _overrides_plain(words: Iterable[str]) -> dict[str, list[str]]:
    """Return settings that follow a trainer's file, key=value."""
    return {found[1]: [found[2]] for word in words if (found := re.fullmatch(r"([a-z_]+)=([^=]*)", word))}


def _settings_beside(name: str, file: str) -> dict[str, Any] | None:
    """Return the settings of a file that a command names, None if there is none or it is none of settings."""
    path = find_beside(name, file)
    if path is None or is_unknown(name):
        return None
    text = read_text(path, LARGEST)
    return read_document(text, str(path))


def _environment(machine: Machine | None, text: str) -> dict[str, str]:
    """Return what Slurm tells a job of its machine, and that a script with Slurm's lines is one."""
    job = dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), "1") if _SLURM.search(text) else {}
    if machine is None:
        return job
    nodes, each = str(machine.nodes), str(machine.gpus_per_node)
    names = dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), nodes)
    names |= dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), each)
    return {**job, **names, "SLURM_GPUS": str(machine.nodes * machine.gpus_per_node)}


def _training(starts: list[tuple[Command, Arguments]], file: str) -> tuple[Command, Arguments]:
    """Return the command that trains among those with arguments of a run; InputError for several that differ."""
    programs = [each for each in starts if not _CONVERTS.search(_program(each[0]))] or starts
    training = [each for each in programs if each[1].keys() & _TRAINS] or programs
    first = training[0]
    for command, given in training[1:]:
        differ = [name for name in {**first[1], **given} if first[1].get(name) != given.get(name)]
        if differ:
            raise InputError(
                f"'{file}' starts several trainings, in lines {first[0].line} and {command.line}, which differ in "
                f"--{', --'.join(sorted(differ)[:3])}; keep one of them, or state by --define the variable that chooses"
            )
    return first


def _program(command: Command) -> str:
    """Return the program that a command runs, as far as its words name one."""
    return next((word for word in command.words if word.endswith((".py", ".sh"))), "")


def _before_program(command: Command) -> tuple[str, ...]:
    """Return the words of the launcher: those before the program."""
    program = _program(command)
    module = "".join([word for before, word in pairwise(command.words) if before == "-m"][-1:])
    first = program or module
    return command.words[: command.words.index(first)] if first else ()


def _launching(command: Command) -> dict[str, str]:
    """Return the arguments of the launcher, with what they do."""
    return dict.fromkeys(flags(_before_program(command)), "starts processes")


def _others(commands: int, command: Command) -> list[str]:
    return [f"The training command is that in line {command.line}; the others do not count."] if commands > 1 else []


def _notes(script: Script) -> list[str]:
    absent = [f"The script sources {', '.join(script.missing)}, not found beside it: what it sets is not known."]
    if not script.open_lines:
        return absent if script.missing else []
    lines = ", ".join(map(str, script.open_lines[:8]))
    rule = "all of their branches count, the last one most. State the variables by --define."
    return [*(absent if script.missing else []), f"The script does not decide its conditions in line {lines}: {rule}"]


def _overrides(words: Iterable[str]) -> dict[str, str]:
    """Return the overrides among some words by their full names; what `~name` deletes is "null"."""
    found: dict[str, str] = {}
    for word in words:
        matched = _OVERRIDE.fullmatch(word)
        if matched and matched[3] is not None and ("." in matched[2] or matched[2] == "mixed_precision"):
            found[matched[2]] = matched[3]
        elif matched and "~" in matched[1]:
            found[matched[2]] = "null"
    return found
