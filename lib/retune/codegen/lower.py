"""Lowering of a concrete program to OpenCL sources: a list of passes, then a kernel a nest."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from retune.codegen.attention import attention_to_calls, calls_attention
from retune.codegen.copies import peel_borders, settle_choices
from retune.codegen.emit import KernelBody
from retune.codegen.intrinsics import (
    intrinsics_to_calls,
    required_implementations,
    tile_registers,
    used_functions,
    with_exchange,
)
from retune.codegen.kernel import (
    ROUNDED_LANES,
    Array,
    GroupCall,
    Kernel,
    Parameter,
    Statement,
    parts,
)
from retune.codegen.names import identifier
from retune.codegen.network.early_reads import with_early_reads
from retune.codegen.network.resident import WAYS
from retune.codegen.network.tile_functions import tile_function
from retune.codegen.opencl.kernels import arena_line
from retune.codegen.options import LEAST_BASED
from retune.codegen.passes.barriers import place_barriers
from retune.codegen.passes.constants import Computed, computed_constants, pack_constants, packed
from retune.codegen.passes.images import Image, ImagePack, image_of, read_otherwise, takes_images
from retune.codegen.passes.items import one_item, virtual_threads
from retune.codegen.passes.last_tiles import short_last_tiles
from retune.codegen.passes.limit import limit_statements
from retune.codegen.passes.pipeline import (
    drop_unit_loops,
    masks_to_guards,
    simplify_indices,
    whole_vectors,
)
from retune.codegen.passes.starts import starts_at_addends
from retune.codegen.passes.tails import whole_register_tiles
from retune.codegen.printing import render
from retune.codegen.source import (
    KernelLaunch,
    KernelText,
    Pack,
    Packing,
    ProgramBuffer,
    ProgramSource,
    Role,
    three,
)
from retune.codegen.target import ONE_BASE, Groups, Target
from retune.codegen.widths import check_sizes
from retune.core.config import knob
from retune.core.dims import example, most
from retune.core.dtypes import INT32, DType
from retune.core.errors import CodegenError
from retune.core.target import COPY_AHEAD, converting
from retune.intrinsics import intrinsic
from retune.intrinsics.attention import MMA, PLAIN
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Buffer, Expr, Var, loads
from retune.ir.flat import elements
from retune.ir.reduction import decompose_all
from retune.ir.stmt import (
    Program,
    Seq,
    Stmt,
    blocks,
    for_most_sizes,
    is_compile_time,
    loops,
    paths,
    show_stmt,
    sizes_in,
    substitute_stmt,
)
from retune.ir.te import body_flops
from retune.ir.verify import verify

Pass = Callable[[Program], Program]

PASSES: Sequence[tuple[str, Pass]] = (
    ("attention to calls", attention_to_calls),
    ("drop unit loops", drop_unit_loops),
    ("decompose reductions", decompose_all),
    ("one item", one_item),
    ("place barriers", place_barriers),
    ("virtual threads", virtual_threads),
    ("whole register tiles", whole_register_tiles),
    ("masks to guards", masks_to_guards),
    ("simplify indices", simplify_indices),
    ("whole vectors", whole_vectors),
    ("short last tiles", short_last_tiles),
    ("starts at addends", starts_at_addends),
    ("settle choices", settle_choices),
    ("limit statements", limit_statements),
)


def lower(program: Program, target: Target, *, panels: bool = False) -> ProgramSource:
    """The program of a concrete schedule for a target, one kernel for each root nest.

    With `panels`, packed constants are stored in an order that does not depend on tile sizes, where
    their reads allow it: programs that tile otherwise share them.
    Nests that write constants become no kernels: numpy evaluates them, see `passes.constants`.
    A program with sizes is lowered where they are assumed (`core.dims.assuming`): its kernels read
    them, and hold for all sizes that meet the conditions noted since the expression was made.

    Raises: CodegenError where a nest has no OpenCL form.
    """
    computed = computed_constants(program)
    constants = tuple(c.result for c in computed.values())
    program = replace(
        program,
        inputs=(*program.inputs, *constants),
        scratch=tuple(b for b in program.scratch if b not in constants),
    )
    inputs = {b.name: b for b in program.inputs}
    run = [root for root in program.body.stmts if not is_compile_time(root)]
    parts, packs = pack_constants([_passed(_part(program, root)) for root in run], panels=panels)
    inputs |= {b.name: b for part in parts for b in part.inputs if b.name in part.packed}
    program = replace(program, inputs=tuple(inputs.values()))
    nests = [
        _Nest.of(part, root, target, panels=panels) for part, root in zip(parts, run, strict=True)
    ]
    images = _images(program, nests, target)
    made = [_kernel(nest, n, target, images) for n, nest in enumerate(nests)]
    used = {name for _, launch in made for name in launch.args}
    packings = _packings(packs, computed, images)
    return ProgramSource(
        kernels=tuple(kernel for kernel, _ in made),
        launches=tuple(launch for _, launch in made),
        buffers=(
            *(b for b in _buffers(program, images) if b.name in used),
            *_size_buffers(program, used),
        ),
        options=target.options,
        packings={name: packing for name, packing in packings.items() if name in used},
    )


def finished(program: Program) -> Program:
    """The program as its kernels run it: each nest after all passes that need no order of memory.

    What work-items do, and where they wait, is stated in it.
    """
    parts = [
        _part(program, root) if is_compile_time(root) else _passed(_part(program, root))
        for root in program.body.stmts
    ]
    scratch = {b.name: b for b in program.scratch} | {b.name: b for p in parts for b in p.scratch}
    body = Seq(tuple(part.body for part in parts))
    return replace(program, body=body, scratch=tuple(scratch.values()))


def _passed(part: Program) -> Program:
    for label, step in PASSES:
        part = _checked(step(part), label)
    return part


def _checked(part: Program, after: str) -> Program:
    """The program, whose IR invariants are checked where tests ask for it."""
    if knob("RETUNE_VERIFY") == "1":
        verify(part, after)
    return part


def _part(program: Program, root: Stmt) -> Program:
    """One nest as a program: what it does not write is an input."""
    written = {b.buffer for b in blocks(root)}
    others = (*program.scratch, *program.outputs)
    return replace(
        program,
        body=Seq((root,)),
        inputs=(*program.inputs, *(b for b in others if b not in written)),
        scratch=tuple(b for b in program.scratch if b in written),
        outputs=tuple(b for b in program.outputs if b in written),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nest:
    """One nest on its way to a kernel."""

    part: Program
    """As it was before copies of it were made."""
    counted: Stmt
    """Where its work is counted: as it is, or as the program states it where a call does it."""
    root: Stmt
    """With iterations at borders set apart."""
    calls: Stmt
    """With calls in place of what intrinsics do: this becomes the kernel."""
    touched: Sequence[Buffer]
    """Of the kernel, in the order of its arguments."""
    groups: Groups
    reserved: frozenset[str]
    panels: bool
    copies_ahead: bool
    """Whether the device has copies that items wait for later."""
    past_bytes: int

    @staticmethod
    def of(part: Program, stated: Stmt, target: Target, *, panels: bool) -> "_Nest":
        root = _checked(peel_borders(part), "peel borders").body
        calls = intrinsics_to_calls(root)
        return _Nest(
            part=part,
            counted=stated if calls_attention(root) else root,
            root=root,
            calls=calls,
            touched=_touched(calls),
            groups=target.groups(calls),
            reserved=target.renderer.reserved,
            panels=panels,
            copies_ahead=COPY_AHEAD in target.offers,
            past_bytes=target.past_bytes,
        )

    def body(self, images: Mapping[str, Image]) -> KernelBody:
        """The emitter of the kernel's body."""
        packed = self.part.packed
        return KernelBody(
            self.calls,
            self.groups,
            self.touched,
            packed,
            self.reserved,
            images,
            panels=self.panels,
            copies_ahead=self.copies_ahead,
            past_bytes=self.past_bytes,
        )


def _converts(written: Iterable[Buffer], target: Target) -> frozenset[DType]:
    """The small floats among what a nest writes that an instruction of the device rounds to."""
    return frozenset(
        b.dtype
        for b in written
        if b.dtype in ROUNDED_LANES and converting(b.dtype) in target.offers
    )


def _images(program: Program, nests: Sequence[_Nest], target: Target) -> dict[str, Image]:
    """The constants among those requested that all kernels can read through images."""
    constants = {b.name: b for b in program.inputs if b.scope == "constant"}
    asked = {name: texels for name, texels in program.images if name in constants}
    sizes = {name: image_of(constants[name], texels) for name, texels in asked.items()}
    wanted = {name: size for name, size in sizes.items() if size is not None}
    refused: set[str] = set()
    for nest in nests if wanted else ():
        body = nest.body(wanted)
        strange = read_otherwise(body.emit()) if takes_images(target, nest.groups) else None
        refused |= {
            b.name for b in nest.touched if strange is None or body.frame.memory(b).name in strange
        }
    return {name: size for name, size in wanted.items() if name not in refused}


def _kernel(
    nest: _Nest, position: int, target: Target, images: Mapping[str, Image]
) -> tuple[KernelText, KernelLaunch]:
    """The kernel of one nest; its comment is the nest as it was before copies of it were made."""
    part, groups, touched = nest.part, nest.groups, nest.touched
    name = identifier(f"{part.name}_{position}_{blocks(part.body)[-1].name}")
    check_sizes(name, nest.calls)
    body = nest.body(images)
    statements = body.emit()
    _check_range(part.name, body, groups)
    written = {b.buffer for b in blocks(nest.root)}
    x, y, z = body.local_size
    local = (x, y, z)
    functions = used_functions(nest.calls, body.lanes, target.offers)
    for function in functions:
        match intrinsic(function.op).residence:
            case "register tile":
                statements = tile_registers(statements, function)
            case "warp":
                statements = with_exchange(statements, function, prod(local))
            case "vector lane":
                pass
    converts = _converts(written, target)
    looked_at = parts(statements) if calls_attention(nest.root) else ()
    calls = [s for s in looked_at if isinstance(s, GroupCall)]
    attends = "" if not calls else MMA if MMA in target.offers else PLAIN
    statements = (*(_held(call, attends) for call in calls), *statements)
    kernel = Kernel(
        name=name,
        parameters=(
            *(Parameter(body.frame.memory(b), b in written) for b in touched),
            *(Parameter(memory, written=False) for memory in body.sizes.values()),
        ),
        single_item=groups.single_item,
        based=ONE_BASE in target.offers and len(touched) >= LEAST_BASED,
        local_size=local,
        body=statements,
        fetches=body.streams,
        copies_ahead=body.copies_ahead,
        functions=tuple(functions),
        attention=attends,
        converts=converts,
        sizes=frozenset(body.frame.sizes.values()),
        comment=tuple(_comment(for_most_sizes(part.body), body)),
    )
    launch = _launch(name, nest, body)
    return _text(kernel, target, streams=launch.streams), launch


def _held(call: GroupCall, text: str) -> Statement:
    """The memory of a group that a call has."""
    size = call.function.local_bytes if text == MMA else INT32.itemsize
    return Array(call.memory, size // INT32.itemsize)


def _text(kernel: Kernel, target: Target, *, streams: bool) -> KernelText:
    """The kernel as text, with what a device needs for it."""
    arena, called = _called(kernel, target, streams=streams)
    return KernelText(
        name=kernel.name,
        text=render(kernel, target.renderer),
        called=called,
        single_item=kernel.single_item,
        images=tuple(n for n, p in enumerate(kernel.parameters) if p.memory.image is not None),
        arena_bytes=arena,
        intrinsics=(
            *required_implementations(kernel.functions),
            *([MMA] if kernel.attention == MMA else []),
            *sorted(map(converting, kernel.converts)),
            *([COPY_AHEAD] if kernel.copies_ahead else []),
        ),
    )


def _check_range(name: str, body: KernelBody, groups: Groups) -> None:
    """Devices start so many groups, of so many items. Raises: CodegenError."""
    if groups.most is not None and max(map(most, body.global_size[1:])) > groups.most:
        raise CodegenError(
            f"{name}: expected at most {groups.most} work-groups along the second and the third "
            f"axis, got {body.global_size}; bind the longest loop to group.0"
        )
    if groups.most_deep is not None and body.local_size[2] > groups.most_deep:
        raise CodegenError(
            f"{name}: expected groups of at most {groups.most_deep} work-items along the third "
            f"axis, got {body.local_size}; bind the longest loop to local.0"
        )


def _launch(name: str, nest: _Nest, body: KernelBody) -> KernelLaunch:
    written = {b.buffer for b in blocks(nest.root)}
    sizes, local = body.global_size, body.local_size
    return KernelLaunch(
        kernel=name,
        args=(*(b.name for b in nest.touched), *body.sizes),
        writes=tuple(b.name for b in nest.touched if b in written),
        global_size=three([size * own for size, own in zip(sizes, local, strict=True)]),
        local_size=three(local),
        flops=_flops(for_most_sizes(nest.counted)),
        bytes=_least_traffic(for_most_sizes(nest.counted)),
    )


def _called(kernel: Kernel, target: Target, *, streams: bool) -> tuple[int | None, str]:
    """The group of a kernel as a function of its own, and the bytes of local memory that it takes,
    for devices on which groups may be persistent."""
    if kernel.single_item or not any(way in target.offers for way in WAYS):
        return None, ""
    plain = replace(kernel, fetches=False, functions=(), attention="", comment=())
    function, arena = tile_function(with_early_reads(plain) if streams else plain)
    return arena, f"{arena_line(kernel.name, arena)}\n{render(function, target.renderer)}"


def _comment(root: Stmt, body: KernelBody) -> list[str]:
    """Comment lines: what the kernel computes, in the names of its loops; sums start at zero."""
    names: dict[Var, Expr] = {n.var: Var(body.frame.names.of(n.var.name)) for n in loops(root)}
    shown = (b for b in blocks(root) if loads(b.value) or not b.name.endswith(".init"))
    return [line for block in shown for line in show_stmt(substitute_stmt(block, names))]


def _touched(root: Stmt) -> list[Buffer]:
    """Global buffers of a nest: those read, in order of first use, then those written."""
    found: dict[Buffer, None] = {}
    for block in blocks(root):
        for load in (load for expr in (*block.indices, block.value) for load in loads(expr)):
            if load.buffer.scope in ("global", "constant"):
                found.setdefault(load.buffer)
    for block in blocks(root):
        if block.buffer.scope == "global":
            found.pop(block.buffer, None)
            found[block.buffer] = None
    return list(found)


def _least_traffic(root: Stmt) -> int:
    """Bytes of the distinct elements read and written: of each buffer its elements, or as many as
    accesses, if these are fewer, as in a slice of a large buffer."""
    accesses: dict[Buffer, int] = {}
    for block, path in paths(root):
        times = prod(evaluate_int(loop.extent) for loop in path)
        read = [load.buffer for expr in (*block.indices, block.value) for load in loads(expr)]
        for buffer in (*read, block.buffer):
            accesses[buffer] = accesses.get(buffer, 0) + times
    return sum(
        min(elements(b), accesses[b], key=example) * b.dtype.itemsize for b in _touched(root)
    )


def _flops(root: Stmt) -> int:
    total = 0
    for block, path in paths(root):
        extents = [evaluate_int(loop.extent) for loop in path]
        each = body_flops(block.value) + (1 if block.reducer else 0)
        total += prod(extents) * each
    return total


def _buffers(program: Program, images: Mapping[str, Image]) -> list[ProgramBuffer]:
    found: list[ProgramBuffer] = []

    def add(buffer: Buffer, role: Role) -> None:
        size = images.get(buffer.name)
        image = ImagePack(*size, None) if size else None
        found.append(
            ProgramBuffer(
                name=buffer.name,
                dtype=buffer.dtype,
                elements=image.elements if image else elements(buffer),
                role=role,
                image=image.row if image else 0,
            )
        )

    for buffer in program.inputs:
        add(buffer, "weight" if buffer.scope == "constant" else "input")
    for buffer in program.scratch:
        if buffer.scope == "global":
            add(buffer, "temp")
    for buffer in program.outputs:
        add(buffer, "output")
    return found


def _size_buffers(program: Program, used: Collection[str]) -> Iterator[ProgramBuffer]:
    """The buffers of the sizes that the program or its kernels depend on.

    Addresses and values may depend on sizes that no extent depends on.
    """
    buffers = {b.name for b in (*program.inputs, *program.scratch, *program.outputs)}
    own = {v.name for v in sizes_in(program)}
    names = own | ({*used} - buffers)
    if clash := sorted(own & buffers):
        raise CodegenError(
            f"{program.name}: size {clash[0]!r} has the name of a tensor; rename one of them"
        )
    for name in sorted(names):
        yield ProgramBuffer(name=name, dtype=INT32, elements=1, role="size")


def _packings(
    packs: dict[str, Pack], computed: dict[str, Computed], images: Mapping[str, Image]
) -> dict[str, Packing]:
    """The packings of weights that are packed, computed at compile time, or read through images."""
    made = packed(computed, packs)
    made |= {name: ImagePack(*size, made.get(name)) for name, size in images.items()}
    sources = {name: tuple(b.name for b in c.inputs) for name, c in computed.items()}
    return {
        name: Packing(pack=made.get(name), sources=sources.get(name) or (name,))
        for name in {**made, **sources}
    }
