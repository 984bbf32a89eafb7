"""The supported ONNX operators: from which operator set on, how, and with what limits.

Read `Support` and `supported`. Nothing is listed by hand: handlers say what they refuse where they
are registered (`onnx_op(..., limits=...)`), the rest follows from ONNX's own schemas. Operators of
domains that ONNX has no schemas for are those that something is registered for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, TypeAlias

import onnx
from onnx import defs, helper

from retune.core.dtypes import DTYPES, FLOAT32, FLOAT64
from retune.core.errors import LookupFailed
from retune.frontend.host.ops import host_function
from retune.frontend.onnx.functions import schema_function
from retune.frontend.onnx.ops.registry import CLAIMS, Claim, full_name, names, versions_of
from retune.frontend.quantized.qoperator import RULES
from retune.proto.file import OLDEST_OPSET

Way = Literal["kernels", "folded", "function", "host", "refused"]
"""By kernels of the device; while importing; by what the operators do that state it; in numpy,
between the kernels; not at all, with advice. Where all inputs are known, everything is folded."""

_DOMAINS = ("", "ai.onnx.ml")
"""The domains whose schemas ONNX brings, but for those of training and of previews."""

_Schema: TypeAlias = Any
"""`defs.OpSchema`, whose published types lack half of its attributes."""

_VALUES: dict[str, Any] = {"STRING": "", "STRINGS": [""], "INTS": [1], "FLOATS": [1.0]}
"""Some value of an attribute, by its type; 1 for numbers."""

_NAMES = {"float": FLOAT32, "double": FLOAT64}
"""ONNX's names of element types where they are not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorVersion:
    """How an operator is imported from one operator set on."""

    since: int
    way: Way
    meaning: str
    limits: str = ""
    """What is refused, in a few words; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """One operator."""

    name: str
    """With its domain if that is not the default one: `com.microsoft::FusedConv`."""
    versions: tuple[OperatorVersion, ...]
    """Oldest first; none if it is not imported."""
    until: int | None
    """The last operator set that has it; None: the newest has it."""

    @property
    def domain(self) -> str:
        """The operator's domain; '' is that of ONNX."""
        return self.name.rpartition("::")[0]

    @property
    def imported(self) -> bool:
        """True if some version of it is."""
        return any(version.way != "refused" for version in self.versions)

    @property
    def opsets(self) -> str:
        """The operator sets in which it is imported, such as `7-` or `7-9`."""
        return f"{self.versions[0].since}-{self.until or ''}" if self.imported else "none"

    @property
    def way(self) -> str:
        """How it is imported, such as `kernels`, or `host, function from 18`."""
        parts: list[str] = []
        last = ""
        for version in self.versions:
            if version.way != last:
                parts.append(f"{version.way} from {version.since}" if last else version.way)
                last = version.way
        return ", ".join(parts) or "none"

    @property
    def limits(self) -> str:
        """What is refused, each limit once."""
        return "; ".join(dict.fromkeys(v.limits for v in self.versions if v.limits))


def newest_opset(domain: str = "") -> int:
    """The newest operator set of that domain that the installed ONNX knows; 1 for others."""
    if not domain:
        return defs.onnx_opset_version()
    stated = [versions for name, versions in _schemas().items() if _domain(name) == domain]
    return max((_since(versions[-1]) for versions in stated), default=1)


def supported() -> tuple[Support, ...]:
    """Every operator in the sets that are read, by domain and name."""
    return tuple(support_of(name) for name in sorted(_known(), key=lambda n: (_domain(n), n)))


@cache
def support_of(name: str) -> Support:
    """The operator of that name; its domain may be left out where only one has such an operator.

    Raises: LookupFailed naming close ones.
    """
    known = _known()
    found = [name] if name in known else [full for full in known if full.endswith(f"::{name}")]
    if len(found) != 1:
        folded = {key.lower(): key for key in known}
        folded |= {key.rpartition("::")[2].lower(): key for key in known if "::" in key}
        close = found or [folded[key] for key in get_close_matches(name.lower(), folded, n=3)]
        raise LookupFailed(
            f"{name} is not an operator of ONNX's opsets {OLDEST_OPSET} to {newest_opset()}, or of "
            f"another domain; close names: {', '.join(close) or 'none'}"
        )
    return _support(found[0], _schemas().get(found[0], ()))


def _domain(name: str) -> str:
    return name.rpartition("::")[0]


def _known() -> dict[str, None]:
    """The full names of all operators: those that ONNX states, and those that are registered."""
    rules = (full_name(domain, op) for domain, op in RULES)
    return dict.fromkeys([*_schemas(), *names(), *rules])


@cache
def _schemas() -> dict[str, list[_Schema]]:
    """All versions of the operators that were not retired before the oldest set, oldest first."""
    found: dict[str, list[_Schema]] = {}
    for schema in sorted(defs.get_all_schemas_with_history(), key=_since):
        if schema.domain in _DOMAINS:
            found.setdefault(full_name(schema.domain, schema.name), []).append(schema)
    return {
        name: schemas
        for name, schemas in found.items()
        if not schemas[-1].deprecated or schemas[-1].since_version > _oldest(schemas[-1].domain)
    }


def _oldest(domain: str) -> int:
    """The oldest operator set of the domain that is read."""
    return OLDEST_OPSET if domain == "" else 1


def _since(schema: _Schema) -> int:
    return schema.since_version


def _support(name: str, schemas: Sequence[_Schema]) -> Support:
    """`schemas` are all versions of one operator, oldest first; none if ONNX does not state it."""
    until = schemas[-1].since_version - 1 if schemas and schemas[-1].deprecated else None
    stated = [schema for schema in schemas if not schema.deprecated]
    oldest = _oldest(_domain(name)) if schemas else 1
    first = _since(schemas[0]) if schemas else 1
    changes = {max(v, oldest) for v in (*versions_of(name), *map(_since, stated))} or {1}
    versions: list[OperatorVersion] = []
    for opset in sorted(change for change in changes if change >= first):
        known = [schema for schema in stated if schema.since_version <= opset]
        found = _version(name, known[-1] if known else None, opset)
        if found is not None and (not versions or not _same(versions[-1], found)):
            versions.append(found)
    return Support(name=name, versions=tuple(versions), until=until)


def _same(before: OperatorVersion, after: OperatorVersion) -> bool:
    return replace(before, since=after.since) == after


def _version(name: str, schema: _Schema | None, opset: int) -> OperatorVersion | None:
    """How the operator is imported in that operator set; None if it is not."""
    handlers = versions_of(name)
    newest = max((since for since in handlers if since <= opset), default=None)
    if newest is not None:
        claim, doc = CLAIMS.get((name, newest), Claim()), handlers[newest].__doc__
        way: Way = "refused" if claim.refused else "folded" if claim.folded else "kernels"
        return OperatorVersion(since=opset, way=way, meaning=_first_line(doc), limits=claim.limits)
    if schema is None:
        return _by_rule(name, opset)
    if schema.has_function or schema.has_context_dependent_function:
        operators = _body(schema, opset)
        if not all(support_of(inner).imported for inner in operators):
            return None
        return OperatorVersion(since=opset, way="function", meaning=_listed(operators))
    function = host_function(name, opset)
    if function is not None and _held(schema):
        return OperatorVersion(since=opset, way="host", meaning=_first_line(function.__doc__))
    return None


def _by_rule(name: str, opset: int) -> OperatorVersion | None:
    """A quantized operator of another domain than ONNX's: a rule makes float operators of it."""
    domain, _, op = name.rpartition("::")
    if (domain, op) not in RULES:
        return None
    meaning = "the float operator between QuantizeLinear and DequantizeLinear"
    limits = "scales and zero points known while importing"
    return OperatorVersion(since=opset, way="kernels", meaning=meaning, limits=limits)


def _body(schema: _Schema, opset: int) -> list[str]:
    """The operators by which it is stated for float32; none where that depends on more."""
    matrix = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2, 2])
    try:
        found = schema_function(_example(schema), opset, [matrix] * schema.min_input)
    except Exception:  # noqa: BLE001 (what ONNX raises for attributes that it finds odd)
        found = None
    return list(dict.fromkeys(node.op_type for node in found.node)) if found else []


def _listed(operators: Iterable[str]) -> str:
    names = [name for name in operators if name != "Constant"]
    return f"stated by {', '.join(names) or 'others, as its types and attributes say'}"


def _example(schema: _Schema) -> onnx.NodeProto:
    """A node of the operator with all attributes that it has to have, whatever they are."""
    required = [entry for entry in schema.attributes.values() if entry.required]
    attributes = {entry.name: _VALUES.get(entry.type.name, 1) for entry in required}
    inputs = [f"x{i}" for i in range(schema.min_input)]
    outputs = [f"y{i}" for i in range(max(1, schema.min_output))]
    return helper.make_node(schema.name, inputs, outputs, domain=schema.domain, **attributes)


def _held(schema: _Schema) -> bool:
    """True if a graph can hold values of every input and output that the operator has to have."""
    sides = (*schema.inputs, *schema.outputs)
    return all(
        any(_ours(kind) in DTYPES for kind in side.types)
        for side in sides
        if side.option == defs.OpSchema.FormalParameterOption.Single
    )


def _ours(kind: str) -> str:
    """Our name of what ONNX calls `tensor(float)`; empty for other types."""
    inner = kind.removeprefix("tensor(")
    return "" if inner == kind else _NAMES.get(inner[:-1], inner[:-1])


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]
