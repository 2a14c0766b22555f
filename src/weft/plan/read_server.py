"""Commands and deployments that start servers, read as the server that they start.

vLLM, SGLang, TensorRT-LLM and Dynamo's workers over them: a command, a script, a docker command, a compose file, or
YAML of Kubernetes, Dynamo (DynamoGraphDeployment), LeaderWorkerSets, llm-d's charts, KServe and Ray Serve.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weft.core.errors import InputError, UnknownNameError, WeftError, check_type
from weft.kernels.library.kits import resolve_framework
from weft.models import Transformer
from weft.plan.documents import (
    COMMAND,
    flat_settings,
    parse_json,
    parse_yaml,
    parse_yamls,
    read_beside,
    source_text,
    to_words,
)
from weft.plan.launched import find_model
from weft.plan.launched_server import LaunchedServer
from weft.plan.read_services import expand_services
from weft.plan.reading import OFF, ArgumentReader, known_arguments
from weft.plan.script import is_unknown, read_script, unknown_name
from weft.step.serving_plan import ServingPlan

_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm", "vllm.entrypoints.api_server": "vllm", "dynamo.vllm": "vllm",
    "sglang.launch_server": "sglang", "dynamo.sglang": "sglang", "dynamo.sglang.worker": "sglang",
    "dynamo.trtllm": "trtllm",
}  # fmt: skip
"""Engines by the modules that start them."""
_IMAGES = {"vllm": re.compile(r"(^|/)vllm-openai\b|llm-d-(cuda|dev)|(^|/)rocm/vllm\b"), "sglang": re.compile(r"sglang")}
_PROGRAM = re.compile(r"/|(ba|z|da)?sh$|python|vllm$|tail$|sleep$")
"""What a container runs instead of its image's own server."""
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
_SETTINGS = {"config", "extra-llm-api-options", "extra-engine-args", "trtllm-config"}
"""Arguments that name a file of further arguments."""
_QUANTIZED = (
    (r"nvfp4|-fp4|modelopt_fp4", {"dtype": "nvfp4"}),
    (r"mxfp4", {"dtype": "mxfp4"}),
    (r"awq|gptq|int4|w4a16|marlin", {"weights": "int4-g128"}),
    (r"w8a8|int8|w8a16", {"dtype": "int8"}),
    (r"(qwen|deepseek-ai|zai-org|minimaxai)/.*fp8|fp8-block", {"dtype": "fp8-block"}),
    (r"fp8|w8a8_fp8", {"dtype": "fp8"}),
)
"""What names of released weights and values of --quantization mean, the first that fits."""


@dataclass(frozen=True)
class _Worker:
    """A command that starts an engine: its words, in how many engines, in which role, by which image."""

    engine: str
    words: tuple[str, ...]
    count: int | None = None
    role: str = ""
    version: str = ""
    given: Mapping[str, str] = field(default_factory=dict)


def read_server(
    source: str | Path, *, arguments: Sequence[str] = (), define: Mapping[str, str | float] | None = None
) -> LaunchedServer:
    """Return the server that a command, or a file with one, starts.

    `source` is the command itself ("vllm serve ..."), or the path of a script or a YAML. Of a script, `arguments` are
    those that its user types behind it, and `define` states variables. Raises InputError for a text that starts no
    server, ConfigError that names the argument and its rule for a value that cannot be used.

    >>> read_server("vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --port 8000").fields["tp"]
    2
    """
    check_type("define", define or {}, Mapping, "give values by name, like {'TP': '4'}")
    text, file = source_text(source)
    defined = {name: str(value) for name, value in (define or {}).items()}
    files: dict[str, str] = {}
    workers = _deployed(text, file, defined, files) if _YAML.search(text) else []
    if not workers:
        workers = list(_commanded(text, file, tuple(map(str, arguments)), defined, files=files))
    if not workers:
        raise InputError(
            f"'{str(source)[:80]}' starts no server that Weft knows; give a command like 'vllm serve MODEL "
            "--tensor-parallel-size 4', 'python -m sglang.launch_server ...' or 'trtllm-serve ...', a script with one, "
            "or YAML of Kubernetes, Helm, Dynamo, llm-d, KServe or Ray Serve; for a training: weft step --launch"
        )
    first = workers[0].engine
    return _together([_engine(each, file, files) for each in workers if each.engine == first], file)


# -- commands


def _commanded(
    text: str,
    file: str,
    arguments: tuple[str, ...],
    defined: Mapping[str, str],
    environment: Mapping[str, str] = MappingProxyType({}),
    files: dict[str, str] | None = None,
) -> Iterator[_Worker]:
    """Yield the engines that a script starts, and put the files that it writes from here-documents into `files`."""
    script = read_script(text, "" if file == COMMAND else file, arguments, defined, environment)
    if files is not None:
        files.update(_written(text, script.variables))
    for command in script.commands:
        found = _started(command.words)
        if found is not None:
            stated = dict(word.partition("=")[::2] for word in command.assigned)
            yield _Worker(found[0], found[1], version=found[2], given={**environment, **stated})


_DOCUMENT = re.compile(
    r"^[ \t]*cat\b(?P<head>[^\n]*<<-?\s*['\"]?(?P<mark>\w+)['\"]?[^\n]*)\n(?P<body>.*?)^[ \t]*(?P=mark)[ \t]*$",
    re.DOTALL | re.MULTILINE,
)


def _written(text: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the files that a script writes from here-documents, with the variables that it sets in place.

    What it adds to a file counts as far as the whole is YAML: branches may add it.
    """

    def known(part: str) -> str:
        return re.sub(r"\$\{?(\w+)\}?", lambda found: variables.get(found[1], found[0]), part)

    files: dict[str, str] = {}
    for found in _DOCUMENT.finditer(text):
        target = re.search(r"(>>?)\s*([^\s<>]+)", found["head"])
        if target is None:
            continue
        name, body = Path(known(target[2]).strip("'\"")).name, known(found["body"])
        whole = files.get(name, "") + textwrap.dedent(body) if target[1] == ">>" else textwrap.dedent(body)
        with suppress(WeftError):
            parse_yamls(whole, name)
            files[name] = whole
    return files


def _started(words: Sequence[str]) -> tuple[str, tuple[str, ...], str] | None:
    """Return the engine that a command starts, the words behind it, and its version; None for another command."""
    version = ""
    for at, word in enumerate(words):
        follows = words[at + 1] if at + 1 < len(words) else ""
        rest = tuple(words[at + 2 :])
        if word == "-m" and follows in _MODULES:
            return _MODULES[follows], rest, version
        if Path(word).name in ("vllm", "sglang") and follows == "serve":
            return Path(word).name, rest, version
        if Path(word).name == "trtllm-serve":
            if follows in ("disaggregated", "disaggregated_mpi_worker"):
                return None
            return "trtllm", rest if follows == "serve" else tuple(words[at + 1 :]), version
        for engine, pattern in _IMAGES.items():
            if at and pattern.search(word) and not word.startswith("-"):
                version = word.partition(":")[2]
                if engine == "vllm" and follows and not _PROGRAM.match(follows):
                    return "vllm", tuple(words[at + 1 :]), version
    return None


# -- deployments


_YAML = re.compile(
    r"^\s*(- )?((containers|mainContainer|services|modelArtifacts|modelSpec|image|args|command)\s*:|"
    r"kind:\s*(LLM)?InferenceService)",
    re.MULTILINE,
)


def _deployed(text: str, file: str, defined: Mapping[str, str], files: dict[str, str]) -> list[_Worker]:
    """Return the engines of a deployment in YAML, and put the files of its ConfigMaps into `files`."""
    documents = [each for each in parse_yamls(text, file) if isinstance(each, dict)]
    for each in documents:
        flat_settings(each, file)  # which ends for anchors without end
        if each.get("kind") == "ConfigMap" and isinstance(each.get("data"), dict):
            files.update({str(name): str(value) for name, value in each["data"].items()})
    return [worker for each in expand_services(documents, file) for worker in _walk(each, _Place(), file, defined)]


@dataclass(frozen=True)
class _Place:
    """What the tables above a container say: replicas, role, nodes of each engine, degrees, the model."""

    count: int = 1
    role: str = ""
    nodes: int = 1
    tensor: int | None = None
    data: int | None = None
    model: str = ""

    def below(self, name: str, table: Mapping[str, Any]) -> _Place:
        """Return what is known in a table of that name."""
        role = str(table.get("subComponentType") or _label(table) or "").lower()
        role = role if role in ("prefill", "decode") else self.role
        if not role:
            role = next((each for each in ("prefill", "decode") if each in name.lower()), "")
        of = {key: table[key] for key in _NESTED if isinstance(table.get(key), dict)}
        nodes = _whole(of.get("leaderWorkerTemplate", {}).get("size"), self.nodes)
        degrees, artifacts = of.get("parallelism", {}), of.get("modelArtifacts", {})
        return _Place(
            count=_whole(table.get("replicas"), self.count),
            role=role,
            nodes=_whole(of.get("multinode", {}).get("nodeCount"), nodes),
            tensor=_whole(degrees.get("tensor"), 0) or self.tensor,
            data=_whole(degrees.get("data"), 0) or self.data,
            model=str(artifacts.get("name") or "") or self.model,
        )


_NESTED = ("leaderWorkerTemplate", "parallelism", "modelArtifacts", "multinode")


def _label(table: Mapping[str, Any]) -> object:
    metadata = table.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return labels.get("llm-d.ai/role") if isinstance(labels, dict) else None


def _whole(value: object, otherwise: int) -> int:
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 7 else otherwise


def _walk(node: object, place: _Place, file: str, defined: Mapping[str, str], name: str = "") -> Iterator[_Worker]:
    if isinstance(node, list):
        for each in node:
            yield from _walk(each, place, file, defined, name)
    elif isinstance(node, dict):
        place = place.below(name, node)
        if isinstance(node.get("vllmConfig"), dict) and isinstance(node.get("modelURL"), str):
            yield _of_chart(node, place)
            return
        if "args" in node or "command" in node:
            yield from _container(node, place, file, defined)
        for key, value in node.items():
            if key not in ("initContainers", "args", "command") and value is not node:
                yield from _walk(value, place, file, defined, str(key))


def _container(node: Mapping[str, Any], place: _Place, file: str, defined: Mapping[str, str]) -> Iterator[_Worker]:
    """Yield the engine that a container starts, if it starts one."""
    entries = node.get("env") if isinstance(node.get("env"), list) else node.get("environment")
    environment = {"LWS_GROUP_SIZE": str(place.nodes)}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("value"), str | int | float):
            environment[str(entry.get("name"))] = str(entry["value"])
        elif isinstance(entry, str) and "=" in entry:
            environment[entry.partition("=")[0]] = entry.partition("=")[2]
    image = str(node.get("image") or "")
    words = [
        re.sub(r"\$\((\w+)\)", r"${\1}", each) for each in (*_words(node.get("command")), *_words(node.get("args")))
    ]
    served = node.get("modelCommand") in ("vllmServe", "imageDefault")
    if words and (served or _IMAGES["vllm"].search(image)) and words[0].startswith("-"):
        words = ["vllm", "serve", *([place.model] if place.model else []), *words]
    text = " ".join(each if re.search(r"\$\{\w+\}", each) and " " not in each else shlex.quote(each) for each in words)
    for worker in _commanded(text, file, (), defined, environment):
        more = worker.words
        if place.tensor and "--tensor-parallel-size" not in more:
            more = (*more, "--tensor-parallel-size", str(place.tensor))
        if place.data and place.data > 1 and "--data-parallel-size" not in more:
            more = (*more, "--data-parallel-size", str(place.data))
        version = image.partition(":")[2] if _IMAGES.get(worker.engine, _NEVER).search(image) else ""
        yield _Worker(worker.engine, more, place.count, place.role, version or worker.version, worker.given)


def _of_chart(node: Mapping[str, Any], place: _Place) -> _Worker:
    """Return the engine of a `modelSpec` of vLLM's Helm chart (vllm-project/production-stack), by vLLM's options."""
    words = ["--model", node["modelURL"]]
    for key, value in node["vllmConfig"].items():
        flag = "--" + re.sub(r"(?<=[a-z])(?=[A-Z])", "-", str(key)).lower()
        if key == "extraArgs":
            words += _words(value)
        elif isinstance(value, bool):
            words += [flag] if value else [f"--no-{flag[2:]}"]
        elif key not in _OF_CHART or str(value) != _OF_CHART[key]:
            words += [flag, str(value)]
    shared = node.get("lmcacheConfig")
    kind = str(shared.get("kvRole")) if isinstance(shared, dict) else ""
    role = {"kv_producer": "prefill", "kv_consumer": "decode"}.get(kind, place.role)
    return _Worker(
        "vllm", tuple(words), _whole(node.get("replicaCount"), place.count), role, str(node.get("tag") or "")
    )


_OF_CHART = {"v0": "1", "v1": "1"}
"""Keys of the chart that choose vLLM's engine, as environment variables."""
_NEVER = re.compile(r"(?!)")


def _words(value: object) -> list[str]:
    if isinstance(value, str):
        try:
            return shlex.split(value, comments=False)
        except ValueError:
            return value.split()
    return to_words(value) if isinstance(value, list) else []


# -- arguments


@dataclass(frozen=True)
class _Engine:
    """An engine as it was read: what it states, and how many there are of it."""

    worker: _Worker
    read: ArgumentReader
    found: dict[str, Any]
    model: Transformer | None
    serves: str
    notes: tuple[str, ...] = ()


def _arguments(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the arguments of a server's command by their names with "-"; a first word without a name is the model."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in (each.strip() for each in words if each.strip()):
        if _FLAG.fullmatch(word):
            written, equals, value = word.lstrip("-").partition("=")
            name = written.replace("_", "-")
            found[name] = [value] if equals else []
        elif name:
            found[name].append(word)
        else:
            found.setdefault("model", [word])
    return found


def _nested(given: Mapping[str, list[str]], file: str) -> dict[str, list[str]]:
    """Return arguments with those inside of JSON values by dotted names."""
    found: dict[str, list[str]] = {}
    for name, values in given.items():
        text = " ".join(values)
        document = parse_json(text, file) if text.lstrip().startswith("{") else None
        if document is None:
            found[name] = values
            continue
        for key, value in flat_settings(document, file).items():
            found[f"{name}.{key.replace('_', '-')}"] = to_words(value)
    return found


def _engine(worker: _Worker, file: str, files: Mapping[str, str]) -> _Engine:
    table = known_arguments(worker.engine)
    given = _arguments(worker.words)
    notes = []
    role = ""
    for name in _SETTINGS & given.keys():
        path = " ".join(given.pop(name))
        role = next((one for one, pattern in _ROLES.items() if re.match(pattern, Path(path).name)), role)
        text = files.get(Path(path).name) or read_beside(path, file)
        if text is None:
            notes.append(f"--{name} names {path}, not found beside the launch: what it states is not known.")
            continue
        beside = flat_settings(parse_yaml(text, path), path)
        given = {**{each.replace("_", "-"): to_words(value) for each, value in beside.items()}, **given}
    spelled: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for name, values in _nested(given, file).items():
        head, dot, rest = name.partition(".")
        head = table.spelled.get(head, head)
        inner = table.spelled.get(name, head + dot + rest)
        off = inner.startswith("no-") and inner[3:] in table.reads and not values
        inner = inner[3:] if off else inner
        spelled[inner], names[inner] = [OFF] if off else values, f"--{name}"
    if worker.engine == "vllm" and (backend := worker.given.get("VLLM_ALL2ALL_BACKEND")):
        spelled.setdefault("all2all-backend", [backend])
    model = " ".join(spelled.get(_MODEL[worker.engine], ()))
    if is_unknown(model):  # a variable such as $MODEL, which an argument of the command line states
        spelled.pop(_MODEL[worker.engine])
    hidden = [name for name, what in table.reads.items()
              if what == "drafter" and is_unknown(" ".join(spelled.get(name, ())))]  # fmt: skip
    for name in hidden:
        spelled.pop(name)
    read = ArgumentReader(spelled, file, "--", names)
    read.without_effect.update({names[name]: "--speculative-method names what drafts" for name in hidden})
    found = read.table(table.reads)
    if role and worker.engine == "trtllm":  # whose workers have their roles from the file that connects them
        found.setdefault("role", role)
    served = " ".join(spelled.get("served-model-name", ())).split(" ")[0]
    named = [each for each in (found.pop("model", ""), served) if each and not is_unknown(each)]
    found_models = [find_model(each, file) for each in named]
    known = next((each for each in found_models if each[0]), (None, found_models[0][1] if named else ""))
    if known[0] is None and (variable := unknown_name(model)):  # a served name does not say which model it is
        known = None, f"${variable}"
    return _Engine(worker, read, found, known[0], known[1], tuple(notes))


_ROLES = {"prefill": "prefill|context|ctx", "decode": "decode|generation|gen"}
"""Roles of TensorRT-LLM's workers by the names of their files of options."""
_MODEL = {"vllm": "model", "sglang": "model-path", "trtllm": "model"}


def _formats(engine: _Engine) -> dict[str, Any]:
    """Return the formats of weights and products: of the released weights' name, of an argument, or as released."""
    asked, dtype = str(engine.found.get("quantization", "")), engine.found.get("dtype")
    released = engine.model.weight_format if engine.model else "bf16"
    for text in (engine.serves, asked):
        for pattern, formats in _QUANTIZED:
            if text and re.search(pattern, text.lower()):
                same = formats.get("dtype") == released
                return {} if same else dict(formats)
    if asked and asked not in ("compressed-tensors", "modelopt", "fp8", "mxfp4"):
        engine.read.not_model("quantization", "another format of weights", asked)
    return {"dtype": dtype} if dtype and released in ("bf16", "fp16") else {}


def _layout(engine: _Engine) -> tuple[dict[str, Any], int]:
    """Return the degrees of an engine as fields of a plan, and how many of the plan's replicas it is."""
    read, found = engine.read, engine.found
    tp, pp, dp, ep = (int(found.get(name, 1)) for name in ("tp", "pp", "dp", "ep"))
    shares = bool(found.get("experts")) or ep > 1
    if engine.model is not None and not engine.model.experts:
        for name in ("enable-expert-parallel", "expert-parallel-size", "moe-expert-parallel-size", "moe-a2a-backend"):
            if name in read.given:
                read.idle(name, "the model has no experts")
        shares = False
    fields: dict[str, Any] = {"tp": tp, "pp": pp}
    if found.get("attention"):  # attention is data parallel inside of the tensor-parallel ranks
        name = "data-parallel-size" if "data-parallel-size" in read.given else "tensor-parallel-size"
        dp = dp if engine.worker.engine == "sglang" else tp
        if dp == tp and tp > 1:
            return _wide(engine, tp, pp)
        read.not_model(name, f"attention in {dp} groups of ranks: timed as TP {tp}", str(dp))
        dp = 1
    if shares and dp > 1 and tp == 1:
        return _wide(engine, dp, pp)
    if shares and dp > 1:
        read.not_model("data-parallel-size", f"experts over all {tp * dp} ranks: timed as {dp} replicas", str(dp))
    elif dp > 1 and engine.model is not None and engine.model.experts:
        read.not_model("data-parallel-size", "slices of experts over all ranks: timed as replicas", str(dp))
    if shares and tp > 1:
        fields["ep"] = tp
        if ep not in (1, tp):
            read.not_model("expert-parallel-size", f"timed as EP {tp}", str(ep))
    return fields, dp * pp


def _wide(engine: _Engine, ranks: int, pp: int) -> tuple[dict[str, Any], int]:
    """Return the layout of data-parallel attention with shared experts."""
    fields: dict[str, Any] = {"tp": 1, "ep": ranks}
    if pp > 1:
        engine.read.not_model("pipeline-parallel-size", "timed without stages", str(pp))
    for name in ("dispatcher", "two_batch_overlap"):
        if engine.found.get(name):
            fields[name] = engine.found[name]
    if engine.worker.engine == "vllm" and "all2all-backend" not in engine.read.given:
        fields["dispatcher"] = _VLLM_EXCHANGE
    return fields, ranks


_VLLM_EXCHANGE = "allgather-reducescatter"
"""Dispatch and combine where --all2all-backend says nothing (vllm-project/vllm vllm/config/parallel.py)."""
_LIMITS = ("max_num_batched_tokens", "max_num_seqs")


def _fields(engine: _Engine) -> tuple[dict[str, Any], int]:
    """Return the fields of a plan that an engine states, and how many of its replicas the engine is."""
    found, read = engine.found, engine.read
    own, each = _layout(engine)
    fields = {name: value for name, value in found.items() if name in ServingPlan.__dataclass_fields__}
    fields = {name: fields[name] for name in fields if name not in ("tp", "pp", "ep", "dtype", *own)}
    wide = own.get("ep", 1) > own["tp"]
    for name in ("dispatcher", "two_batch_overlap"):
        if name in fields and not wide:
            fields.pop(name)
            argument = next(one for one, rule in known_arguments(engine.worker.engine).reads.items()
                            if isinstance(rule, dict) and rule["is"] == name and one in read.given)  # fmt: skip
            read.idle(argument, "no rank dispatches tokens to another one")
    if engine.worker.engine == "sglang":  # whose limits are those of all ranks together
        parts = {"max_num_batched_tokens": own["ep"] if wide else 1, "max_num_seqs": each if wide else own.get("pp", 1)}
    else:
        parts = {"max_num_seqs": own.get("pp", 1) if engine.worker.engine == "vllm" else 1}
    for name, count in parts.items():
        if name in fields:
            fields[name] = max(fields[name] // count, 1)
    if fields.get("num_speculative_tokens"):
        fields["speculative_method"] = _drafter(engine)
    fields.pop("replicas", None)
    if not fields.get("enforce_eager", True):
        fields.pop("enforce_eager")
    if engine.worker.version:
        with suppress(UnknownNameError):  # of a version that no rule is known of
            known = resolve_framework(f"{engine.worker.engine}@{engine.worker.version}")
            fields["framework"] = "@".join(filter(None, known))
    return {**fields, **own, **_formats(engine)}, each


def _drafter(engine: _Engine) -> str:
    """Return what drafts, as a plan names it."""
    method = str(engine.found.get("drafts", "")).lower()
    if "ngram" in method:
        return "none"
    if "mtp" in method or "nextn" in method or (method == "eagle" and not engine.found.get("drafter")):
        return "mtp"
    model, _ = find_model(str(engine.found.get("drafter", "")), engine.read.file)
    return model.name if model is not None and "eagle" not in method else "eagle"


# -- engines together


_OWN = ("tp", "ep", "max_num_batched_tokens")
"""What prefill workers of a plan may have of their own."""


def _own_prefill(before: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, int]:
    """Return the fields of a plan for prefill workers in which they differ from those that decode."""
    found = {} if before["tp"] == fields["tp"] else {"prefill_tp": before["tp"]}
    usual = {"ep": 1 if found else fields.get("ep", 1), "max_num_batched_tokens": fields.get("max_num_batched_tokens")}
    for name, value in usual.items():
        own = before.get(name, 1 if name == "ep" else None)
        if own is not None and own != value:
            found[f"prefill_{name}"] = own
    return found


def _together(engines: list[_Engine], file: str) -> LaunchedServer:
    """Return the server of several engines: replicas of one kind, or those that prefill and those that decode."""
    roles: dict[str, list[_Engine]] = {}
    for engine in engines:
        roles.setdefault(engine.found.get("role") or engine.worker.role, []).append(engine)
    if "" in roles and len(roles) > 1 and len(roles) < 3:
        other = "decode" if "prefill" in roles else "prefill"  # as Dynamo's decode workers, which have no mark
        roles = {other if role == "" else role: each for role, each in roles.items()}
    read = {role: [_fields(each) for each in several] for role, several in roles.items()}
    for role, alike in read.items():
        if any(other != alike[0] for other in alike[1:]):
            differ = next(name for other, _ in alike[1:] for name in {**alike[0][0], **other}
                          if alike[0][0].get(name) != other.get(name))  # fmt: skip
            raise InputError(
                f"{file if file == COMMAND else repr(file)} starts {role or 'several'} engines that differ in "
                f"{differ}; keep those of one kind"
            )
    main = "decode" if "decode" in roles else next(iter(roles))
    fields, each = read[main][0]
    counts = {role: sum(one.worker.count or 1 for one in several) for role, several in roles.items()}
    stated = any(one.worker.count is not None for one in engines)
    replicas = counts[main] * each
    prefills, notes = 0, [note for one in engines for note in one.notes]
    effects: dict[str, str] = {}
    if "prefill" in roles and main == "decode":
        before, size = read["prefill"][0]
        stages = 1 if before.get("pp", 1) == fields.get("pp", 1) else fields.get("pp", 1)
        prefills = -(-counts["prefill"] * size // stages) * stages
        fields = fields | _own_prefill(before, fields)
        unlike = [f"{name} {value}" for name, value in before.items()
                  if name not in _OWN and value != fields.get(name)]  # fmt: skip
        if unlike:
            effects[f"prefill workers' {', '.join(unlike)}"] = "the decode workers' are taken for both"
    first = next(one for one in engines if one.model) if any(one.model for one in engines) else engines[0]
    accounts = [one.read.account(one.worker.engine) for one in engines]
    number = {"replicas": replicas + prefills, **({"prefill_replicas": prefills} if prefills else {})}
    return LaunchedServer(
        engines[0].worker.engine, fields | (number if stated or prefills else {}), first.model,
        {} if stated or prefills else number,
        {name: text for one in accounts for name, text in one["used"].items()},
        {name: text for one in accounts for name, text in one["without_effect"].items()},
        effects | {name: text for one in accounts for name, text in one["not_modelled"].items()},
        tuple(dict.fromkeys(name for one in accounts for name in one["not_understood"])), tuple(dict.fromkeys(notes)),
        first.serves,
    )  # fmt: skip
