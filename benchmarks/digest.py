"""Digests of all that is made of networks without a device: proof that a change changes nothing.

    python -m benchmarks.digest zoo:kws int8:zoo:kws vta:zoo:resnet18_v1 FILE.onnx --out before.json
    python -m benchmarks.digest zoo:kws int8:zoo:kws --against before.json --texts after

A model is a file, `zoo:NAME` or `light:NAME`, and may have one of FORMS before it. It is made for
each of PROFILES, which are data: no device is needed, and nothing is measured. A task's digests are
of its expressions, of the traces of all sketches, and of kernels: of each sketch the best candidate
by the estimate, and some by a fixed seed. NETWORK stands for the graph after all passes, and for
the plan with default schedules, packed weights included. Tasks that networks have in common are
done once. What differs from the file `--against` is listed, and `--texts` has it written as text;
for the other half of a diff, do the same in the other checkout, against the digests of this one.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks.command import parser_of
from retune.bundle.build import build_plan
from retune.bundle.plan import NetworkPlan
from retune.codegen.network.resident import WAYS
from retune.codegen.source import ProgramSource
from retune.codegen.target import ONE_BASE
from retune.core.dtypes import INT8, DType
from retune.core.errors import RetuneError
from retune.core.keys import content_key
from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.device.profiles import read_profile
from retune.device.simulated.accelerator import config_of, described
from retune.frontend.models import load_model
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import optimise
from retune.graph.passes.precision import Precision
from retune.graph.quantize.fitting import fitted
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.samples import random_samples
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from retune.schedule.space import Candidate, Sketch, Space
from retune.search.extract import Network, extract
from retune.search.task import Task
from retune.targets.cost.estimate import default_candidate
from retune.targets.devices import target_of
from retune.targets.vta.assembly import disassemble, disassemble_uops
from retune.targets.vta.lower import lower as lower_packed
from retune.targets.vta.packed import packed_network

NETWORK = "the network"
"""In a task's place."""
ACCELERATOR = "vta-sim"
"""The profile of the form `vta`, which has no other."""
PROFILES: Mapping[str, DeviceSpec] = {
    "cpu": GENERIC_CPU,
    "cpu-amx": replace(GENERIC_CPU, instructions=("dot4.vnni", "tile8.amx")),
    "cpu-avx2": replace(
        GENERIC_CPU, vector_bits=256, vector_registers=16, instructions=("dot4.avx2",)
    ),
    "nvidia": replace(GENERIC_GPU, instructions=("dot4.dp4a", "warp8.mma", ONE_BASE, *WAYS)),
    "mali": read_profile("mali-g76").spec,
    ACCELERATOR: described(ACCELERATOR, GENERIC_CPU),
}
FORMS = ("nchw", INT8, "vta")
"""Channels first; in integers by random samples; in those of the accelerator, and packed for it."""
ONLY_FOR: Mapping[str, Sequence[str]] = {"cpu-amx": (INT8,), ACCELERATOR: ("vta",)}
"""Profiles that not all forms have: that of `cpu-amx` is `cpu` for floats, and `vta` has its own.
"""
_PARTS = 2
"""Of random samples."""

Texts = Mapping[str, Sequence[str]]
"""What is made of a task or of a network: its `task`, `traces` and `kernels`."""
Digests = Mapping[str, str]
"""The key of each of the texts."""
Report = Mapping[str, Mapping[str, Mapping[str, Digests]]]
"""By model, profile and task."""


# -- networks --------------------------------------------------------------------------------------


def split_form(model: str) -> tuple[str, str]:
    """One of FORMS, or '', and the name without it."""
    form, _, name = model.partition(":")
    return (form, name) if form in FORMS else ("", model)


def network_of(model: str, spec: DeviceSpec) -> Network:
    """The model in its form, for the device, cut into tasks."""
    form, name = split_form(model)
    settings = None
    if form == INT8:
        settings = fitted(QuantizeSettings(), spec)
    elif form == "vta":
        settings = replace(POWER2, weight_bits=8, bias_correction=False, skip_conv_layers=(0,))
    return _network(name, form, settings, spec.stored, spec.accelerator)


@lru_cache(maxsize=4)
def _network(
    name: str,
    form: str,
    settings: QuantizeSettings | None,
    stored: frozenset[DType],
    accelerator: str,
) -> Network:
    graph = _loaded(name)
    if settings is not None:
        graph = quantize(graph, random_samples(graph, _PARTS), settings)
    config = config_of(replace(GENERIC_CPU, accelerator=accelerator)) if form == "vta" else None
    if config is not None:
        graph = packed_network(graph, config)
    layout = "NCHW" if form == "nchw" else "NHWC"
    return extract(optimise(graph, layout, precision=Precision(own=stored)), accelerator=config)


@lru_cache(maxsize=1)
def _loaded(name: str) -> Graph:
    return load_model(name)


def texts_of_network(network: Network, spec: DeviceSpec) -> Texts:
    """The graph, how it is cut, and its plan."""
    graph = network.graph
    arrays = [f"{name} {content_key(array)}" for name, array in graph.constants.items()]
    attributes = [content_key(node.attrs) for node in graph.nodes]
    groups = [f"{g.group.name} {g.group.kind}: {g.task_key}" for g in network.groups]
    plan = _or_error(lambda: _plan_text(build_plan(network, {}, spec, model_key="", notes={})))
    return {"task": [str(graph), *arrays, *attributes], "traces": groups, "kernels": [plan]}


def _plan_text(plan: NetworkPlan) -> str:
    """All that a bundle holds, weights and host steps by their keys."""
    hosts = [replace(step, model=content_key(step.model).encode()) for step in plan.hosts]
    return _lines(
        plan.form, plan.options, plan.inputs, plan.outputs, plan.notes, plan.counts,
        *map(asdict, (*plan.buffers, *plan.aliases, *plan.launches, *hosts)),
        *(f"{name} {content_key(array)}" for name, array in plan.weights.items()),
        *(kernel.text for kernel in plan.kernels),
    )  # fmt: skip


# -- tasks -----------------------------------------------------------------------------------------


def texts_of(task: Task, spec: DeviceSpec, drawn: int) -> Texts:
    """The task; its sketches, those for images in blocks too; and candidates of each."""
    sketches = task.space(spec).whole.sketches
    return {
        "task": _facts(task),
        "traces": [_trace_text(sketch) for sketch in sketches],
        "kernels": [text for s in sketches for text in _kernel_texts(task, s, spec, drawn)],
    }


def _facts(task: Task) -> list[str]:
    """The task by itself."""
    facts = [*task.to_json().items(), task.dtypes, task.least_bytes, task.max_error, task.dag]
    return list(map(str, facts))


def _trace_text(sketch: Sketch) -> str:
    tables = [f"{d.name}: {len(d.table)} {content_key(d.table)}" for d in sketch.decisions]
    untuned = None if sketch.untuned is None else sketch.decided(sketch.untuned)
    facts = (sketch.error, sketch.blocks, untuned, sketch.program.images)
    return _lines(f"# {sketch.name}", sketch.trace, *tables, *sketch.constraints, *facts)


def _kernel_texts(task: Task, sketch: Sketch, spec: DeviceSpec, drawn: int) -> Iterator[str]:
    """The default candidate's, then those of some valid ones; none where none is valid."""
    if sketch.empty:
        return
    space = Space((replace(sketch, roundings=1.0),))  # alone it is the default, however exact
    yield _candidate_text(task, space, default_candidate(space, spec), spec)
    rows = space.sample(drawn, np.random.default_rng(0))
    for number in range(len(rows)):
        yield _candidate_text(task, space, space.candidate(rows, number), spec)


def _candidate_text(task: Task, space: Space, candidate: Candidate, spec: DeviceSpec) -> str:
    head = f"// {candidate.sketch} {dict(candidate.decisions)}"
    if task.packed is not None:
        return _lines(head, _or_error(lambda: _packed_text(task, candidate)))
    made = _or_error(lambda: _source_text(task.source(space, candidate, target_of(spec))))
    return _lines(head, made)


def _source_text(source: ProgramSource) -> str:
    """Its launches and buffers, and the texts of its kernels."""
    launches = [(k.kernel, k.global_size, k.local_size, k.flops, k.bytes) for k in source.launches]
    reads = [[(name, name in k.writes) for name in k.args] for k in source.launches]
    roles = {"weight": "constant", "temp": "scratch"}  # as they were called before
    packed = {b.name: source.packing(b.name) for b in source.buffers}
    buffers = [
        (b.name, b.dtype, b.elements, roles.get(b.role, b.role), b.image,
         packed[b.name].sources, packed[b.name].pack is not None)
        for b in source.buffers
    ]  # fmt: skip
    texts = [text for kernel in source.kernels for text in (kernel.text, kernel.called)]
    return _lines(source.options, *launches, *reads, *buffers, *texts)


def _packed_text(task: Task, candidate: Candidate) -> str:
    """The accelerator's instructions."""
    assert task.packed is not None
    module = lower_packed(task.packed.work, dict(candidate.decisions), task.packed.config)
    places = [(b.name, b.memory, b.offset, b.elements, b.shape) for b in module.buffers]
    code = disassemble(module.instructions), disassemble_uops(module.micro_ops)
    return _lines(module.name, module.macs, *places, *code)


def _or_error(text: Callable[[], str]) -> str:
    """The text, or why there is none: that counts as well."""
    try:
        return text()
    except RetuneError as error:
        return f"{type(error).__name__}: {error}"


def _lines(*parts: object) -> str:
    return "\n".join(map(str, parts))


# -- reports ---------------------------------------------------------------------------------------


class Digester:
    """Digests models; what tasks of several networks have in common is made once."""

    def __init__(self, profiles: Sequence[str], drawn: int) -> None:
        self.counts: Counter[str] = Counter()
        self._profiles = profiles
        self._drawn = drawn
        self._known: dict[str, Digests] = {}

    def report_of(self, model: str) -> dict[str, dict[str, Digests]]:
        """The model's digests under each profile that is wanted and that its form has."""
        form, _ = split_form(model)
        own = [p for p in self._profiles if form in ONLY_FOR.get(p, ("", *FORMS[:-1]))]
        return {profile: dict(self._entries(model, profile)) for profile in own}

    def _entries(self, model: str, profile: str) -> Iterator[tuple[str, Digests]]:
        spec = PROFILES[profile]
        network = network_of(model, spec)
        yield NETWORK, _digests(texts_of_network(network, spec))
        for task in network.tasks.values():
            key = content_key(profile, task.op, task.max_error, str(task.dag), task.packed)
            if key not in self._known:
                self._known[key] = self._made(task, spec)
            yield task.name, {**self._known[key], "task": content_key(_facts(task))}

    def _made(self, task: Task, spec: DeviceSpec) -> Digests:
        texts = texts_of(task, spec, self._drawn)
        made = {"tasks": 1, "sketches": len(texts["traces"]), "kernels": len(texts["kernels"])}
        self.counts.update(made)
        return _digests(texts)


def _digests(texts: Texts) -> Digests:
    return {name: content_key(parts) for name, parts in texts.items()}


def differences(before: Report, after: Report) -> Iterator[tuple[str, str, str, list[str]]]:
    """Model, profile, task, and which of its digests differ, for all that there is in `after`."""
    for model, profiles in after.items():
        for profile, tasks in profiles.items():
            known = before.get(model, {}).get(profile, {})
            for task in {**known, **tasks}:
                old, new = known.get(task, {}), tasks.get(task, {})
                differing = [n for n in {**old, **new} if old.get(n) != new.get(n)]
                if differing:
                    yield model, profile, task, differing


def write_texts(folder: Path, place: tuple[str, str, str, list[str]], drawn: int) -> None:
    """The texts of a place that `differences` names, if there is such a task: a file for each."""
    model, profile, name, differing = place
    spec = PROFILES[profile]
    network = network_of(model, spec)
    tasks = [task for task in network.tasks.values() if task.name == name]
    if name == NETWORK:
        texts = texts_of_network(network, spec)
    elif tasks:
        texts = texts_of(tasks[0], spec, drawn)
    else:
        return
    for kind in differing:
        names = (re.sub(r"[^\w.-]+", "_", part) for part in (model, profile, name))
        path = folder.joinpath(*names, f"{kind}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(texts[kind]), encoding="utf-8")


def main() -> None:
    """Digests the models named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--against", type=Path, metavar="FILE", help="digests of another version")
    parser.add_argument("--texts", type=Path, metavar="DIR", help="for what differs, or for all")
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=[*PROFILES])
    parser.add_argument("--drawn", type=int, default=2, help="candidates of a sketch")
    options = parser.parse_args()
    before: Report = json.loads(options.against.read_text()) if options.against else {}
    digester = Digester(options.profiles, options.drawn)
    report: dict[str, dict[str, dict[str, Digests]]] = {}
    found = 0
    for model in options.models:
        start = process_time()
        report[model] = digester.report_of(model)
        print(
            f"{model:48} {content_key(report[model])} {process_time() - start:6.1f} s", flush=True
        )
        for place in differences(before, {model: report[model]}):
            if options.against:
                found += 1
                print(f"  differs: {' | '.join(place[:3])}: {', '.join(place[3])}", flush=True)
            if options.texts:
                write_texts(options.texts, place, options.drawn)
    if options.out:
        options.out.write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(*(f"{count} {what}" for what, count in digester.counts.items()), sep=", ")
    print(f"total {content_key(report)}")
    if options.against:
        print(f"{found} differ" if found else "all equal")
        sys.exit(bool(found))


if __name__ == "__main__":
    main()
