"""The stages of a tuning run: each is run once for its inputs, and verified when reused.

What a stage says is in `manifest`, how it runs once is in `stage`. `retune.api` has the stages:

    stage_import(request) -> ImportManifest
    stage_extract(request, network) -> TaskManifest
    stage_tune(request, network, tasks, task_key) -> TuneManifest
    stage_finalists(request, network, tuned: TunedTasks) -> Constraints
    stage_choose(request, tasks, constraints) -> Selection
    stage_validate(request, network, tasks, selection, constraints) -> Constraints
    stage_compare(request, network, tasks, selection, constraints) -> Constraints
    stage_compile(request, network, tasks, selection, variant) -> CompileManifest
    stage_verify(request, network, compiled) -> VerifyManifest
    stage_bench(request, network, untuned, tuned) -> BenchManifest
    stage_report(request, run: FinishedRun) -> PublishedManifest
    stage_promote(request, run: FinishedRun) -> PublishedManifest, instead of the report at night
"""
