"""A decoder from a bundle."""

from pathlib import Path

from retune.bundle.runtime.module import Module
from retune.core.decoding import IDS
from retune.language.decoder import Decoder


def decoder_of(bundle: Module | Path | str, device: str | None = None) -> Decoder:
    """A new session of the bundle as a decoder; sessions of one module share its weights.

    Raises: InputError if the bundle is not a decoder, or cannot run on the device. RecordError if
    it is damaged.
    """
    module = bundle if isinstance(bundle, Module) else Module.load(bundle, device)
    states = {state.input for state in module.plan.states}
    inputs = {name: kind for name, kind in module.inputs.items() if name not in states}
    vocabulary = module.plan.counts.get(IDS)
    return Decoder(module.session(), inputs, f"bundle {module.plan.name}", vocabulary)
