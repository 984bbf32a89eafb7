"""Prefect task: a model becomes a network."""

from retune.pipeline.network import stage_import
from retune.prefect.stage_task import stage_task

import_network = stage_task(stage_import, "import")
