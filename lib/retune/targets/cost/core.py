"""The numbers of a core of a CPU, as they were measured: what the estimates of its work go by."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """A core with two vector pipes. Cycles are for a vector unless the name says otherwise.

    Where the datapath is narrower than a vector, operations and loads take `BlockNest.turns` times
    as long.
    """

    pipes: float = 2.0
    """Vector operations that it starts in each cycle."""
    loads: float = 2.0
    """Loads from the nearest cache that it starts in each cycle."""

    latency_chains: float = 10.0
    """Independent accumulators that hide the latency of a multiply-add on two pipes."""
    load_slack: float = 1.15
    """Loads reach this much less than their peak rate beside multiply-adds (measured, 14 x 1
    tiles)."""
    narrow_load_slack: float = 1.5
    """The same of vectors of less than 512 bits, whose multiply-adds take no broadcast from memory:
    each is an instruction of its own (measured on Zen 2: 7.8 cycles for a step of 9 x 1, 8.3 of
    10 x 1, 12 of 14 x 1)."""
    spilled: float = 0.7
    """For a vector that a copy of an unrolled step stores and loads: an accumulator where a tile of
    single vectors takes all registers, as one multiplies into the register of its broadcast (PoCL
    3.0 on Zen 2; steps of 14 x 1, twice unrolled, took 1.4 times as long), or a number spread over
    the lanes for several taps (the same on Zen 4, 28 x 1 and strides of 2: 7 taps that are written
    out took 1.42 times as long as a loop over them, 3 taps 1.23 times)."""
    start_steps: float = 4.0
    """Steps of a reduction's depth that setting and storing the accumulators costs."""
    entry_steps: float = 0.5
    """Steps of the innermost reduce loop that entering it costs."""
    near: float = 0.5
    """A vector from the first-level cache."""
    far: float = 2.2
    """A line from the second-level cache, as those below. Zen 4 reads one in two cycles at best, so
    tiles of 2 x 7 vectors, whose arithmetic takes as long, took 1.12 times that of 7 x 2."""
    farther: float = 8.0
    """From beyond the second-level cache, where private arrays are read too."""
    stream: float = 5.6
    """From there when nothing else is read: constants come ahead of their use (measured: 38 MB of
    transformed weights in 870 us on two cores)."""
    memory_stream: float = 15.0
    """The same where the shared cache does not hold them all (measured on Zen 2: 38 MB of
    transformed weights in 1,430 us on two cores)."""
    constants_share: float = 0.75
    """Of the shared cache, what constants stay in from one run to the next: data pass through it
    beside them (17 MB of 16 MB come from memory, 9 MB do not)."""
    refetch: float = 6.0
    """A line from there of data that tiles come back to: their rows are no stream that is read
    ahead (measured on Zen 2, 8192 rows of 256 numbers by 1024 columns, processor time of one core:
    55 ms where groups have 432 rows or fewer, 62 of 1,026 rows, 93 of 4,098)."""
    passed_again: float = 1.0
    """A line from there of data or constants that one group after the other comes back to, which is
    read ahead (measured on Zen 2, 1920 rows of 240 numbers by 240 columns in groups of 140 by 24,
    columns slow: 0.8 alone on the machine, 4.9 beside others that use the shared cache)."""
    from_memory: float = 30.0
    """The same of what the shared cache does not hold (measured: 100, for 22 MB of which tiles read
    two lines at a time, eleven times over by two cores; streams reach 8 GB/s a core)."""
    data_share: float = 0.5
    """Of the shared cache, what data take that groups come back to: constants and results pass
    through it beside them (measured: 11 MB of 16 MB come from memory, 9 MB of constants do not)."""
    conflict: float = 2.0
    """For a broadcast from a line that others of its set push out: a line from the second-level
    cache (measured: 1.3 of 14 in 12 ways, 2.6 of 14 in 8 ways on Zen 4; as many as there are ways,
    8 in 8, take 1.02 to 1.14 of the time)."""
    crowded: float = 6.0
    """For a vector of a private array whose line others of its set push out (measured: Winograd of
    4 x 16 tiles of 32 channels, whose 36 places lie 8192 bytes apart, in 839 us of one core, of
    5 x 10 tiles, 6400 bytes apart, in 429)."""
    handed_over: float = 1.06
    """Time of a reduction over what the nest before has just written, such as padded data
    (measured: 1.08 times the time of like tiles over masked data, 162 candidates of 24 layers;
    vgg19 with default schedules so takes 0.91 of the time, in turns). The copy itself is a
    hundredth of it; the rest is not proven: the lines lie in the caches of the cores that wrote
    them."""

    private: float = 1.5
    """To or from a private array."""
    map: float = 5.0
    """Of a map between two nests, to or from beyond the second-level caches (measured: staged
    Winograd on 55x55 to 224x224 maps took 3 to 12 a vector longer than without)."""
    wait_cycles: float = 3000.0
    """What a nest that reads another one's results waits until all of them are there (measured:
    staged Winograd on 6x6 and 7x7 maps)."""
    group_cycles: float = 600.0
    """What taking a work-group of a nest costs (persistent workers share a counter)."""
    uneven: float = 0.5
    """Work-groups that a core waits for the others at the end: cores are disturbed, groups are not
    equal (measured: two groups for two cores took up to 1.7 times as long as sixteen)."""

    widened: float = 2.0
    """Operations that make a vector of float32 of 16-bit floats as they are loaded (bfloat16: widen
    and shift). Of 84 measured tiles of 7x7 windows in bfloat16 (Xeon with AMX), the estimate's
    first choice takes 1.13 times as long as the fastest of a layer; without it, 1.55 times."""
    window_latency: float = 4.0
    """Cycles until the next step of the same accumulator can start."""
    in_flight: float = 64.0
    """Steps of one accumulator whose tiles a core works on at once."""
    line: float = 1.7
    """Cycles for a line from or to the second-level cache."""
    row_cycles: float = 6.0
    """Cycles that entering a row of taps costs: its loop, its guard."""
    tile_cycles: float = 5.0
    """Cycles that a tile of windows costs: addresses, start values."""
    returned: float = 10.0
    """For coming back to a line that was written in part (measured: 10 to 16, tiles of 16 bytes a
    pixel beside tiles of 64; of grouped convolutions of 34 to 136 channels whose groups of channels
    are slow, 8 to 12 for each end of a row: 41 pairs of orders, 1.1 times as long)."""
    kept: float = 4.0
    """Lines that fall into a way's few sets, where rows are powers of two apart: how many times
    more of the nearest cache they take than their size."""
    run_bytes: float = 64.0
    """Adjacent bytes that cost as much as starting to read them elsewhere. What a tile reads at
    once counts, and the rest of a line, not what the tiles beside it read later (measured in turns
    on 13 layers: the tiles chosen so take 0.96 times as long as those chosen with 128 bytes and
    nothing beside, none over 1.02; the rest of a line, with vectors of 32 bytes: of 15 measured
    tiles of each of 45 layers the first choice takes 1.024 times as long as the fastest, without
    it 1.068 times)."""
    beside: float = 0.25
    """Part of the loads, or of the arithmetic if that is less, that does not hide beside the
    other."""
