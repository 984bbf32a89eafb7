"""Schedule: the primitives, each of which rewrites a program and records one step.

Every method checks its arguments, has the program rewritten by a function of the module named
beside it (`loops`, `binding`, `movement`, `pipelining`, `reductions`, `stages`, `forms`), and
records what came of it: what is refused was not recorded, and so leaves the schedule as it was.
What was sampled, and how a trace is kept, is the business of `Recorder`.
"""

from collections.abc import Callable, Sequence

import numpy as np

from retune.core.errors import ScheduleError
from retune.ir.expr import Const, Expr, Operand, Scope, as_expr, const, size_variables
from retune.ir.simplify import simplify
from retune.ir.stmt import Program
from retune.schedule import binding, forms, loops, movement, pipelining, reductions, stages
from retune.schedule.recorder import Recorder
from retune.schedule.trace import Argument


class Schedule(Recorder):
    """A program being scheduled. `given` holds values for named decisions, for replay."""

    # -- loops -------------------------------------------------------------------------------

    def split(
        self, loop: str, factors: Sequence[Operand], tail: str = "exact", units: int = 1
    ) -> list[str]:
        """`loop == loop.0 * prod(factors) + ...`: the loop becomes len(factors) + 1 nested ones.

        Rewrite: split("i", [4])
            for i in range(16): B(i)  ->  for i.0 in range(4):
                                            for i.1 in range(4): B(i.0*4 + i.1)

        `tail` says what happens where the factors do not divide the extent: `exact` requires
        that they do, `shift` moves the last tile back so that it overlaps (a reduction counts each
        step once), `guard` skips the iterations past the end. A tile may exceed an extent that
        depends on sizes: `shift` skips its iterations past the end then, and `fill`, which is the
        same otherwise, requires that no size makes it so. `clamp` moves back a tile of the factors
        behind the first one alone, and skips those past the end. The outer loop has a multiple of
        `units` iterations then, of equally many tiles, so that units which take equal shares of
        them have equally much to do, and the same part of the axis as in other nests; of an extent
        that may be 0 they have as many as the first factor.

        Raises: ScheduleError for factors that do not divide (exact), exceed the extent (shift),
        or are not positive.
        """
        sizes = [as_expr(f) for f in factors]
        program, needed, made = self._split(self.program, loop, sizes, tail, units)
        arguments = {"loop": loop, "factors": tuple(sizes), "tail": tail}
        arguments |= {"units": units} if units > 1 else {}
        self._record(program, "split", arguments, made, needed)
        return made

    def tile(self, nest: Sequence[str], sizes: Sequence[Operand], tail: str = "exact") -> list[str]:
        """Nested loops as loops over tiles, and inside them the loops over one tile.

        Rewrite: tile(["i", "j"], [4, 8])
            for i in range(16):              for i.0 in range(4):
              for j in range(32): B(i, j)      for j.0 in range(4):
                                         ->      for i.1 in range(4):
                                                   for j.1 in range(8): B(i.0*4 + i.1, ...)

        The same as a split of each loop by its size and a reorder. Gives all outer loops, then
        all inner ones.

        Raises: ScheduleError as `split` and `reorder` do, or for other numbers of sizes.
        """
        if len(nest) != len(sizes):
            raise ScheduleError(f"tile: {len(nest)} loops, but {len(sizes)} sizes")
        tiles_of = [as_expr(s) for s in sizes]
        program, needed, outer, inner = self.program, list[Expr](), list[str](), list[str]()
        for loop, size in zip(nest, tiles_of, strict=True):
            program, more, parts = self._split(program, loop, [size], tail)
            needed += more
            outer.append(parts[0])
            inner.append(parts[1])
        made = outer + inner
        arguments = {"nest": tuple(nest), "sizes": tuple(tiles_of), "tail": tail}
        self._record(loops.reorder(program, made), "tile", arguments, made, needed)
        return made

    def fuse(self, outer: str, inner: str) -> str:
        """One loop over both: `outer == f // extent(inner)`, `inner == f % extent(inner)`.

        Rewrite:
            for i in range(4):           for i+j in range(32):
              for j in range(8): B   ->    B(i+j // 8, i+j % 8)

        Raises: ScheduleError unless `inner` is all that `outer` holds.
        """
        name = f"{outer}+{inner.rsplit('.', 1)[-1] if '.' in inner else inner}"
        program = loops.fuse(self.program, outer, inner, name)
        self._record(program, "fuse", {"outer": outer, "inner": inner}, [name])
        return name

    def reorder(self, *names: str) -> None:
        """The named loops in this order, in the positions that they hold together.

        Raises: ScheduleError unless they are perfectly nested, or if a shifted loop would move
        inside a reduce loop (its overlap would be accumulated twice).
        """
        program = loops.reorder(self.program, names)
        self._record(program, "reorder", {"names": tuple(names)})

    def unroll(self, loop: str, count: Operand | None = None) -> None:
        """Every iteration written out; with `count`, the compiler is asked to unroll by it."""
        amount = None if count is None else as_expr(count)
        if amount is None:
            program = binding.run_as(self.program, loop, "unroll")
        else:
            program = binding.hint_unroll(self.program, loop, amount)
        self._record(program, "unroll", {"loop": loop, "count": amount})

    def vectorize(self, loop: str) -> None:
        """The iterations become lanes of vector values; the extent must end as 2, 4, 8 or 16.

        Lanes of a reduce loop are combined with each other, by halves, and then with the result.
        """
        program = binding.run_as(self.program, loop, "vectorize")
        self._record(program, "vectorize", {"loop": loop})

    def bind(self, loop: str, axis: str) -> None:
        """The iterations become work-groups, work-items, or virtual threads, which run at once.

        `group.0` to `group.2` are work-groups; `local.0` to `local.2` the items of each. Virtual
        threads (`vthread`) are copies of the body within one item that keep step: loops inside
        run once, with the copies side by side in them. Stages outside a loop over items run once
        for each item if they write private memory, and in item 0 alone otherwise.

        A loop over items may lie inside another one over the same axis where it writes local
        memory that does not depend on the outer one: the items share that work (a copy made by
        `cache_read`, say), and all wait until it is done.

        Raises: ScheduleError for another axis, a reduce loop, or where iterations share what
        they write.
        """
        if axis not in binding.AXES:
            raise ScheduleError(
                f"bind({loop}): expected group.0..2, local.0..2 or vthread, got {axis!r}"
            )
        self._apply("bind", binding.run_as, loop=loop, axis=axis)

    def parallel(self, loop: str) -> str:
        """The iterations run on the device's cores: `bind` to the first free group axis.

        On CPU devices a work-group is what one core takes at a time. Gives the axis.

        Raises: ScheduleError as `bind` does, or where the nest uses all three group axes.
        """
        axis = binding.free_group_axis(self.program, loop)
        program = binding.run_as(self.program, loop, axis)
        self._record(program, "parallel", {"loop": loop}, [axis])
        return axis

    def tensorize(self, loop: str, intrinsic: str) -> None:
        """The loop and all inside are done by an instruction, see `retune.intrinsics`.

        `dot4`: four steps of an int32 sum of products of bytes, uint8 or int8 times int8. Lanes
        around it become lanes of the instruction (vpdpbusd has 16 of them).

        Rewrite: tensorize("y.k.1", "dot4") after split("y.k", [4])
            for k.1 in range(4): y += int32(x[k.0*4 + k.1])*int32(w[k.0*4 + k.1])
            ->  y = dot4(x word k.0, w word k.0, y)

        The loop keeps its meaning: on devices without the instruction, plain arithmetic does it.
        Pack a constant operand that is not read byte after byte. A program in which a later
        primitive takes the four steps or their words apart has no kernels: CodegenError.

        Raises: ScheduleError for another intrinsic or another sum, where the bytes of an operand
        do not lie in one word, or where the nest makes or reads them one by one, too.
        """
        self._apply("tensorize", binding.tensorize, loop=loop, intrinsic=intrinsic)

    def annotate(self, loop: str, key: str, value: str | int) -> None:
        """A note on the loop: it changes nothing, and is printed with it, in the kernel too.

        Later rules find it in `loop(name).notes`; primitives that replace the loop (split, fuse)
        drop it.
        """
        self._apply("annotate", binding.annotate, loop=loop, key=key, value=value)

    # -- stages ------------------------------------------------------------------------------

    def compute_inline(self, block: str) -> None:
        """The stage's expression in place of each read of its result; the stage is gone.

        Rewrite:
            for i: b[i] = a[i] + 1      ->    for i: c[i] = (a[i] + 1)*2
            for i: c[i] = b[i]*2

        Raises: ScheduleError for reductions, outputs, and stages already scheduled.
        """
        self._apply("compute_inline", stages.compute_inline, block=block)

    def cache_write(self, block: str) -> str:
        """The stage writes to a buffer of its own, which a new stage copies to the result.

        Rewrite:
            for i: c[i] += ...    ->    for i: c.acc[i] += ...
                                        for i: c[i] = c.acc[i]

        Use compute_at to bring the stage into a tile of the copy. Gives the copy's block name.
        """
        self._apply("cache_write", movement.cache_write, [f"{block}.out"], block=block)
        return f"{block}.out"

    def cache_read(
        self, buffer: str, loop: str, scope: Scope = "register", order: Sequence[int] = ()
    ) -> str:
        """Inside `loop`, what its body reads of a buffer comes from a copy of just that part.

        Rewrite: cache_read("x", "i.0", "private")
            for i.0 in range(4):                  for i.0 in range(4):
              for i.1 in range(8):         ->       for x.private.0 in range(8):
                y[i.0*8 + i.1] += x[i.0*8 + i.1]      x.private[x.private.0] = x[i.0*8 + ...]
                                                    for i.1 in range(8):
                                                      y[i.0*8 + i.1] += x.private[i.1]

        `local` memory is shared by the items of a work-group: the copy holds what all of them
        (and all virtual threads) read, so bind those loops first; then bind loops of the copy to
        the same axes, to share out the work. `order` lists the buffer's dimensions as the copy has
        them, outermost first (default: as they are). Gives the copy's block name.

        Raises: ScheduleError when it is written in that loop, or read there in several ways.
        """
        program = movement.cache_read(self.program, buffer, loop, scope, order)
        made = f"{buffer}.{scope}"
        arguments: dict[str, Argument] = {"buffer": buffer, "loop": loop, "scope": scope}
        if order:
            arguments["order"] = tuple(order)
        self._record(program, "cache_read", arguments, [made])
        return made

    def compute_at(self, block: str, loop: str, scope: Scope = "register") -> None:
        """Inside `loop`, just the part of the stage that the loop's body reads, in `scope`.

        Rewrite:
            for i in range(8): b[i] = f(i)       for o in range(2):
            for o in range(2):                     for i in range(4): b[i] = f(o*4 + i)
              for i in range(4):             ->    for i in range(4): c[o*4 + i] = b[i]
                c[o*4 + i] = b[o*4 + i]

        Local memory holds what all items of a work-group read, see `cache_read`.

        Raises: ScheduleError when it is read elsewhere, read in several ways, or scheduled.
        """
        self._apply("compute_at", movement.compute_at, block=block, loop=loop, scope=scope)

    def reverse_compute_at(self, block: str, loop: str, scope: Scope = "register") -> None:
        """Inside `loop` of its producer, the part of an element-wise stage that is ready there.

        Rewrite: reverse_compute_at("z", "i.0")
            for i.0 in range(2):                  for i.0 in range(2):
              for i.1 in range(4):                  for i.1 in range(4): y[i.1] = f(i.0*4 + i.1)
                y[i.0*4 + i.1] = f(...)      ->     for i in range(4): z[i.0*4 + i] = y[i]*2
            for i in range(8): z[i] = y[i]*2

        The producer's result lives in `scope`, register or private, for that part alone.

        Raises: ScheduleError unless the stage alone reads the result, element by element, and
        the result is complete there.
        """
        rewrite = movement.reverse_compute_at
        self._apply("reverse_compute_at", rewrite, block=block, loop=loop, scope=scope)

    def decompose_reduction(self, block: str, loop: str) -> None:
        """The start value is set by its own nest just before `loop`.

        Raises: ScheduleError when a reduce loop of the block lies outside `loop`.
        """
        self._apply("decompose_reduction", reductions.decompose_reduction, block=block, loop=loop)

    def rfactor(self, block: str, loop: str, axis: int = -1) -> str:
        """Partial results, one for each iteration of a reduce loop, which are combined at last.

        Rewrite: rfactor("y", "y.k.1") after split("y.k", [8])
            for i:                               for i:
              for k.0 (reduce):                    for k.0 (reduce):
                for k.1 (reduce):         ->         for k.1: y.part[i, k.1] += f(i, k.0*8 + k.1)
                  y[i] += f(i, k.0*8 + k.1)      for i:
                                                   for k.1 (reduce): y[i] += y.part[i, k.1]

        The factored loop of the new stage, here `y.part.k.1`, may be vectorized or bound; it is
        dimension `axis` of the partial results, -1 for the last. Floating-point sums are rounded
        in another order. Gives the new stage's block name.

        Raises: ScheduleError unless the block is a root stage that reduces over the loop.
        """
        made = f"{block}.part"
        self._apply("rfactor", reductions.rfactor, [made], block=block, loop=loop, axis=axis)
        return made

    def run_ahead(self, loop: str, stages: int) -> None:
        """Copies into local memory at the start of each iteration are made iterations before.

        Rewrite: run_ahead("k", 3)
            for k in range(n):                for f in range(2): s[f] = x[f]  # where f < n
              s[..] = x[k]                    for k in range(n):
              y += f(s)                 ->      barrier
                                                s[(k + 2) % 3] = x[k + 2]  # where k + 2 < n
                                                y += f(s[k % 3])

        Local memory holds so many stages of them. On devices that copy asynchronously, what an
        iteration copies is on its way while those before it compute; elsewhere one barrier in an
        iteration does for two.

        Raises: ScheduleError for fewer than two stages, and for a loop that does not start with
        copies, or beside which what they fill is used.
        """
        self._apply("run_ahead", pipelining.run_ahead, loop=loop, stages=stages)

    def align_rows(self, block: str, elements: Operand) -> None:
        """Rows of the stage's local memory lie so many elements further apart: in other banks.

        Rewrite: align_rows("x.local", 8), where x.local is of 4 x 64 elements
            x.local[i*64 + j]  ->  x.local[i*72 + j]

        Raises: ScheduleError for a stage that is not in local memory.
        """
        made = as_expr(elements)
        program = pipelining.align_rows(self.program, block, made)
        self._record(program, "align_rows", {"block": block, "elements": made})

    def rotate_rows(self, block: str, line: int, unit: int, every: int = 1) -> None:
        """Rows of the stage's local memory are rotated: each line of `line` units of `unit`
        elements by its number in its row, and further by one unit with `every` row. Items that
        read units of several rows, or every few units of one, find them in different banks.

        Rewrite: rotate_rows("x.local", 8, 4), where x.local is of 4 x 64 elements
            x.local[i*64 + j]  ->  x.local[i*64 + j//32*32 + (j//4%8 + i + j//32)%8*4 + j%4]

        Raises: ScheduleError for a stage that is not in local memory, or not of whole lines.
        """
        rewrite = pipelining.rotate_rows
        self._apply("rotate_rows", rewrite, block=block, line=line, unit=unit, every=every)

    def pack(self, buffer: str) -> None:
        """The constant operand is re-ordered at compile time to the order in which it is read.

        If a later primitive makes several reads of it, in different orders, it stays as it is.

        Raises: ScheduleError unless it is a constant input, or a precomputed stage, that is read
        at one location.
        """
        self._apply("pack", stages.pack, buffer=buffer)

    def read_as_image(self, buffer: str, texels: int) -> None:
        """The constant operand is an image of four channels, read by its texels.

        Rewrite, in the kernel, for a row of 1024 texels:
            *(const __global float4*)(w + i)
            ->  read_imagef(w, (int2)((i >> 2) & 1023, i >> 12))

        GPUs have a cache for images beside that for memory, on some of them (Adreno) the only one
        that is near. A kernel that reads some of it otherwise than by aligned vectors of four gets
        it as an array all the same, and so do groups of one item, and devices whose kernels reach
        all memory from one address or stay. `texels` is a power of two.

        Raises: ScheduleError unless it is a constant input, or a precomputed stage, of float32.
        """
        self._apply("read_as_image", stages.read_as_image, buffer=buffer, texels=texels)

    def precompute(self, block: str) -> None:
        """The stage, which reads only constants, is evaluated at compile time.

        Its buffer is a constant from then on: no kernel writes it, and it may be packed.

        Raises: ScheduleError when it reads anything else, or is scheduled already.
        """
        self._apply("precompute", stages.precompute, block=block)

    def restate(self, block: str, form: str, sizes: Sequence[int]) -> list[str]:
        """The stage computes the same by another algorithm, in stages of its own.

        Rewrite: restate("c", "winograd", [4])
            c = convolution of x and w    ->    c.data = tiles of x
                                                ...
                                                c = outputs of the tiles

        The new stages are plain: each can be placed, tiled and restated. `schedule.forms` lists
        the forms; what `sizes` mean, and what is made, each of them says. Results may differ by
        rounding. Gives the names of all new stages, which come before the block.

        Raises: ScheduleError for another form, or a stage or sizes that it has not.
        """
        program, made = forms.restate(self.program, block, form, sizes)
        arguments = {"block": block, "form": form, "sizes": tuple(sizes)}
        self._record(program, "restate", arguments, made)
        return made

    def sample_compute_location(
        self, block: str, scope: Scope = "register", name: str | None = None
    ) -> None:
        """The stage moves to one of the loops where it may be computed, or stays (option 0).

        Option n is the n-th loop, in program order, at which `compute_at` is legal. The choice
        changes the structure, so it is made here, by what is given for the decision, else option
        0; `space.sketches_of` makes a sketch for each option.
        """
        locations = movement.compute_locations(self.program, block, scope)
        name = name or f"at.{block}"
        table = np.arange(len(locations) + 1).reshape(-1, 1)
        decision = self._decision("sample_compute_location", name, table)
        chosen = int(self._given_row(decision, "sample_compute_location", default=(0,))[0])
        program = self.program
        if chosen:
            program = movement.compute_at(program, block, locations[chosen - 1], scope)
        arguments: dict[str, Argument] = {"block": block, "scope": scope, "name": name}
        self._record(program, "sample_compute_location", arguments)
        self.structure.append(decision)
        self.trace = self.trace.with_decisions({name: (chosen,)})

    # -- helpers -----------------------------------------------------------------------------

    def _apply(
        self,
        primitive: str,
        rewrite: Callable[..., Program],
        outputs: Sequence[str] = (),
        **arguments: Argument,
    ) -> None:
        """The program rewritten with these arguments, and the step recorded."""
        program = rewrite(self.program, *arguments.values())
        self._record(program, primitive, arguments, outputs)

    def _split(
        self, program: Program, loop: str, sizes: Sequence[Expr], tail: str, units: int = 1
    ) -> tuple[Program, list[Expr], list[str]]:
        """The program with a loop split, what candidates must meet for it, and the new loops."""
        if tail not in loops.TAILS:
            raise ScheduleError(f"split({loop}): tail is one of {loops.TAILS}, got {tail!r}")
        if not sizes:
            raise ScheduleError(f"split({loop}): expected factors, got none")
        for size in sizes:
            if isinstance(size, Const) and size.value < 1:
                raise ScheduleError(f"split({loop}): factors must be positive, got {size}")
        inner: Expr = const(1)
        for size in sizes:
            inner = inner * size
        extent, needed = loops.loop_named(program, loop).extent, list[Expr]()
        if tail == "exact":
            why = f"split({loop}): {inner} does not divide {extent}"
            rest = extent % inner
            needed = self._unsettled((simplify(rest) if size_variables(rest) else rest) <= 0, why)
        elif tail == "fill" or (tail == "shift" and not size_variables(extent)):
            why = f"split({loop}): a tile of {inner} exceeds the extent {extent}"
            needed = self._unsettled(inner <= extent, why)
        made = [f"{loop}.{i}" for i in range(len(sizes) + 1)]
        return loops.split(program, loop, sizes, tail, units), needed, made
