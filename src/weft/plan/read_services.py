"""Services of KServe and Ray in YAML, as the containers and charts that they stand for.

KServe puts the args of an InferenceService behind its ServingRuntime's, and an LLMInferenceService's behind `vllm
serve`; Ray builds engines from `llm_configs`. Each becomes a document that `weft.plan.read_server` walks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from weft.core.errors import InputError, is_whole, show_value
from weft.core.files import to_json
from weft.plan.documents import parse_yamls, to_words

_MOUNTED = "/mnt/models"
"""Where KServe puts the weights of a service (kserve/kserve pkg/constants, DefaultModelLocalMountPath)."""
_OF_KSERVE = "kserve-huggingfaceserver"
"""KServe's own runtime of the format huggingface, which starts vLLM (kserve/kserve config/runtimes)."""
_DEGREES = ("tensor", "pipeline", "data")
"""Degrees of an LLMInferenceService's `parallelism` that are arguments of vLLM, --NAME-parallel-size."""


def expand_services(documents: Sequence[Mapping[str, Any]], file: str) -> list[Mapping[str, Any]]:
    """Return documents with containers in place of services of KServe and Ray; others stay as they are.

    Raises InputError for a service whose arguments are in no document, such as a runtime of the cluster's.
    """
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for each in documents:
        kinds.setdefault(str(each.get("kind")), []).append(each)
    runtimes = [*kinds.get("ServingRuntime", ()), *kinds.get("ClusterServingRuntime", ())]
    configs = kinds.get("LLMInferenceServiceConfig", [])
    found: list[Mapping[str, Any]] = []
    for each in documents:
        kind, spec = str(each.get("kind")), _table(each, "spec")
        if kind == "InferenceService" and isinstance(_table(spec, "predictor").get("model"), dict):
            found.append(_inference_service(each, runtimes))
        elif kind == "LLMInferenceService":
            found.append(_llm_service(each, configs))
        elif kind == "LLMInferenceServiceConfig":
            if "LLMInferenceService" not in kinds and spec.get("model"):
                found.append(_llm_service(each, configs))
        elif each in runtimes:
            if "InferenceService" not in kinds:
                found.append(each)
        elif (engines := list(_ray_engines(each, file))) or kind == "RayService":
            if not engines:
                raise InputError(
                    f"the RayService {_name(each)} has no llm_configs in its serveConfigV2, which Weft reads; give the "
                    "command that its program starts, like 'vllm serve MODEL --tensor-parallel-size 4'"
                )
            found += engines
        else:
            found.append(each)
    return found


def _table(of: object, *names: str) -> Mapping[str, Any]:
    """Return a table by its keys, an empty one where there is none."""
    for name in names:
        of = of.get(name) if isinstance(of, dict) else None
    return of if isinstance(of, dict) else {}


def _name(of: Mapping[str, Any]) -> str:
    return str(_table(of, "metadata").get("name") or "without a name")


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _of_uri(uri: object) -> str:
    """Return the model that a URI of weights names on Hugging Face (hf://ORG/NAME:REVISION), or its last folder."""
    text = str(uri or "")
    if text.startswith("hf://"):
        return text.removeprefix("hf://").partition(":")[0]
    return PurePosixPath(text.partition("://")[2]).name


def _with_model(words: Sequence[str], model: str) -> list[str]:
    """Return arguments that name the model where they name the folder of its weights."""
    return [each.replace(_MOUNTED, model) if model else each for each in words]


# -- KServe


def _inference_service(service: Mapping[str, Any], runtimes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the container of an InferenceService: its runtime's, with the service's own args behind."""
    predictor = _table(service, "spec", "predictor")
    model = _table(predictor, "model")
    kind, named = str(_table(model, "modelFormat").get("name") or ""), str(model.get("runtime") or "")
    fits = [each for each in runtimes if _name(each) == named or (not named and _serves(each, kind))]
    weights = _of_uri(model.get("storageUri"))
    own = _with_model(to_words(model.get("args") or []), weights)
    container: dict[str, Any] = {"command": ["vllm", "serve"]}
    if fits:
        containers = [each for each in _list(_table(fits[0], "spec").get("containers")) if isinstance(each, dict)]
        main = next((each for each in containers if each.get("name") == "kserve-container"), None)
        container = dict(main or (containers[0] if containers else {}))
        before = _with_model(to_words(container.get("args") or []), weights)
    elif kind.lower() == "huggingface" and (not named or named.startswith(_OF_KSERVE)):
        before = ["--model", weights] if weights else []
    else:
        which = f"the runtime {named}" if named else f"a runtime of the format {kind}"
        raise InputError(
            f"the InferenceService {_name(service)} runs on {which} in the cluster, whose args KServe puts before its "
            "own; append that ServingRuntime to the file, or type the command: vllm serve MODEL with the args of both"
        )
    degrees = _table(predictor, "workerSpec")
    own += [f"--{each}-parallel-size={degrees[key]}" for each in _DEGREES if (key := f"{each}ParallelSize") in degrees]
    container |= {"args": [*before, *own], "env": [*_list(container.get("env")), *_list(model.get("env"))]}
    replicas = predictor.get("minReplicas")
    return {"replicas": replicas or 1, "containers": [container]}


def _serves(runtime: Mapping[str, Any], kind: str) -> bool:
    formats = _list(_table(runtime, "spec").get("supportedModelFormats"))
    return any(isinstance(each, dict) and each.get("name") == kind for each in formats)


def _llm_service(service: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the decode and prefill workers of an LLMInferenceService, whose baseRefs are merged below it."""
    spec = _table(service, "spec")
    for base in reversed(_list(spec.get("baseRefs"))):
        named = str(base.get("name")) if isinstance(base, dict) else str(base)
        below = next((each for each in configs if _name(each) == named), None)
        if below is None:
            raise InputError(
                f"the LLMInferenceService {_name(service)} builds on {named}, which is not in the file; append that "
                "LLMInferenceServiceConfig, or type the command: vllm serve MODEL with the args of both"
            )
        spec = _merge_specs(_table(below, "spec"), spec)
    about = _table(spec, "model")
    uri = str(about.get("uri") or "")
    model = _of_uri(uri) if uri.startswith("hf://") else str(about.get("name") or _of_uri(uri))
    if not model:
        raise InputError(
            f"the LLMInferenceService {_name(service)} names no model; state spec.model.uri, like hf://Qwen/Qwen3-8B"
        )
    prefill = _table(spec, "prefill")
    workers = {"decode" if prefill else "worker": _llm_workers(spec, model)}
    return workers | ({"prefill": _llm_workers(prefill, model)} if prefill else {})


def _llm_workers(spec: Mapping[str, Any], model: str) -> Mapping[str, Any]:
    """Return the workers of one role of an LLMInferenceService, as KServe's templates start them."""
    containers = [each for each in _list(_table(spec, "template").get("containers")) if isinstance(each, dict)]
    main = next((each for each in containers if each.get("name") == "main"), containers[0] if containers else {})
    degrees = _table(spec, "parallelism")
    main = {**main, **{key: _fill_templates(to_words(main.get(key) or []), degrees) for key in ("command", "args")}}
    words = [f"--{each}-parallel-size={degrees[each]}" for each in _DEGREES if degrees.get(each) is not None]
    words += ["--enable-expert-parallel"] * bool(degrees.get("expert"))
    container = {**main, "args": _with_model(to_words(main.get("args") or []), model)}
    if main.get("command"):
        container["command"] = _with_model(to_words(main["command"]), model)
    else:
        environment = {
            str(each.get("name")): each.get("value") for each in _list(main.get("env")) if isinstance(each, dict)
        }
        added = str(environment.get("VLLM_ADDITIONAL_ARGS") or "")
        try:
            more = shlex.split(added)
        except ValueError:
            raise InputError(f"VLLM_ADDITIONAL_ARGS is {show_value(added)}; close its quotes") from None
        container |= {"command": ["vllm", "serve", model], "args": [*words, *container["args"], *more]}
    return {"replicas": spec.get("replicas", 1), "containers": [container]}


def _fill_templates(words: Sequence[str], degrees: Mapping[str, Any]) -> list[str]:
    """Return words of a container with the degrees of `parallelism` in KServe's templates of them.

    Raises InputError for a template that decides by something else.
    """

    def known(name: str) -> str:
        return str(degrees.get(name[0].lower() + name[1:]) or "")

    found = []
    for word in words:
        text = _EACH.sub(lambda one: known(one[1]) or one[2] or "", word)
        while (decided := _DECIDES.sub(lambda one: one[2] if not one[1] or known(one[1]) else "", text)) != text:
            text = decided
        if left := re.search(r"\{\{-?\s*(if|else|range|with|or|and)\b.*?\}\}", text):
            raise InputError(f"a container's args have the template {left[0]}; write what it becomes in its place")
        found.append(text)
    return found


_EACH = re.compile(r"\{\{-?\s*(?:or\s+)?\.Spec\.Parallelism\.(\w+)\s*(\d*)\s*-?\}\}")
_DECIDES = re.compile(
    r"\{\{-?\s*if\s+\.Spec\.Parallelism(?:\.(\w+))?\s*-?\}\}((?:(?!\{\{-?\s*(?:if|else|end)\b).)*)\{\{-?\s*end\s*-?\}\}",
    re.DOTALL,
)


def _merge_specs(below: Mapping[str, Any], above: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return two specifications of KServe as one: tables by their keys, lists of named entries by their names."""
    found = dict(below)
    for name, value in above.items():
        under = found.get(name)
        if isinstance(under, dict) and isinstance(value, dict):
            found[name] = _merge_specs(under, value)
        elif (
            isinstance(under, list)
            and isinstance(value, list)
            and all(isinstance(each, dict) and "name" in each for each in (*under, *value))
        ):
            parts = {str(each["name"]): each for each in under}
            for each in value:
                parts[str(each["name"])] = _merge_specs(parts.get(str(each["name"]), {}), each)
            found[name] = list(parts.values())
        else:
            found[name] = value
    return found


# -- Ray


def _ray_engines(document: Mapping[str, Any], file: str) -> Iterator[Mapping[str, Any]]:
    """Yield the engines that Ray Serve builds from a RayService or a file of applications, as entries of a chart."""
    stated = _table(document, "spec").get("serveConfigV2")
    inside = parse_yamls(stated, file)[:1] if isinstance(stated, str) else [stated or document]
    for application in _list(_table({"": inside[0] if inside else None}, "").get("applications")):
        given = _table(application, "args")
        roles = {"prefill": given.get("prefill_config"), "decode": given.get("decode_config")}
        for each in _list(given.get("llm_configs")):
            yield _ray_engine(each)
        for role, each in roles.items():
            if each is not None:
                yield {role: _ray_engine(each)}


def _ray_engine(config: object) -> Mapping[str, Any]:
    if not isinstance(config, dict):
        raise InputError(
            f"llm_configs names {show_value(config)}; put its model_loading_config and engine_kwargs there"
        )
    loading = _table(config, "model_loading_config")
    source = loading.get("model_source")
    source = source.get("bucket_uri") if isinstance(source, dict) else source
    model = str(source or "")
    model = str(loading.get("model_id") or "") if not model or "://" in model else model
    if not model:
        raise InputError("llm_configs has no model_loading_config.model_id; state it, like Qwen/Qwen3-8B")
    deployment = _table(config, "deployment_config")
    count = deployment.get("num_replicas", _table(deployment, "autoscaling_config").get("min_replicas"))
    engine = {
        str(name): to_json(value) if isinstance(value, dict) else value
        for name, value in _table(config, "engine_kwargs").items()
        if value is not None
    }
    served = {} if str(loading.get("model_id") or model) == model else {"served_model_name": str(loading["model_id"])}
    return {
        "modelURL": model,
        "replicaCount": count if is_whole(count) and count else 1,
        "vllmConfig": {**engine, **served},
    }
