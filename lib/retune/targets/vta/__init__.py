"""VTA: an accelerator with explicit memories and queues, from its instructions to its schedules.

`config` and `isa` say what it is, `module` is a kernel for it, `functional` and `timing` simulate
it; `workload` says what it is asked to compute, `template` makes the search space of that, and
`lower` makes a module of one candidate. Nothing here knows of graphs, search or records::

    work = Convolution(c=4, h=56, w=56, o=4, kernel=(3, 3), padding=(1, 1, 1, 1), steps=...)
    space = space_of(work, config)                       # a schedule.space.Space: knobs, limits
    module = lower(work, dict(candidate.decisions), config)
    output = execute(module, {"data": data, "weight": weight})["output"]
    cycles = simulate(module).cycles
"""
