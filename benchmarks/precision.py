"""What 16-bit floats cost: deviation and agreement with float32, type by type.

    python -m benchmarks.precision                                  # all of them
    python -m benchmarks.precision zoo:resnet18_v1 digits minilm

By the numpy meaning of the graphs, so that it is the same for every device: zoo networks on random
images, `digits` (see `train_digits`) on the images that it was not trained on, and `minilm` (real
weights, see `minilm`) on fifty sentences. Of each type it prints the largest deviation as a
part of an output's range, the cosine, and the rows whose largest element is the same; of digits the
accuracy, of sentences how far their similarities move and for how many the nearest is the same.
`mixed` keeps layers in float32 until the deviation is at most --bound.
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.command import parser_of
from benchmarks.minilm import opened, sentence_network
from retune.core.dtypes import BFLOAT16, FLOAT16, Array
from retune.core.errors import InputError
from retune.frontend.models import load_model
from retune.frontend.onnx.importer import load_file
from retune.graph.graph import Graph
from retune.graph.mixed import mixed
from retune.graph.passes.pipeline import optimise
from retune.graph.passes.precision import Precision, in_precision
from retune.graph.quantize.quality import compared, outputs_over
from retune.graph.quantize.samples import random_samples

NETWORKS = (
    *("zoo:mlp", "zoo:kws", "zoo:resnet18_v1", "zoo:resnet50_v1", "zoo:mobilenet"),
    *("zoo:squeezenet_v1.1", "digits", "minilm"),
)
DIGITS = Path(__file__).parents[1] / "tests/data/digits"
LENGTH = 24
SENTENCES = tuple(
    f"{who} {what}"
    for who in ("The old sailor", "My neighbour", "A young nurse", "The tired teacher", "Our cat")
    for what in (
        "waits for the night train in the rain.",
        "repairs a broken clock on the kitchen table.",
        "sings quietly while the bread is baking.",
        "has lost the key to the garden gate.",
        "reads a letter that came from the coast.",
        "buys three pounds of apples at the market.",
        "cannot sleep because of the storm outside.",
        "walks along the river every morning.",
        "is afraid of the dog next door.",
        "remembers the summer of the great drought.",
    )
)


def main() -> None:
    """One line for each network and type."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NETWORK")
    parser.add_argument("--samples", type=int, default=8, help="random images of zoo networks")
    parser.add_argument("--bound", type=float, default=2e-3, help="deviation allowed to `mixed`")
    parser.add_argument("--cache", type=Path, default=Path("artifacts/packages"))
    options = parser.parse_args()
    print("| network | type | deviation | cosine | top-1 | layers in float32 | |")
    print("|---|---|---|---|---|---|---|")
    for name in options.networks:
        try:
            graph, data = _network(name, options.samples, options.cache)
        except InputError as error:
            print(f"| {name} | left out: {error} |")
            continue
        for line in _lines(name, graph, data, options.bound):
            print(line, flush=True)


def _network(name: str, samples: int, cache: Path) -> tuple[Graph, dict[str, Array]]:
    """The network in float32 as it is before a precision, and its samples."""
    if name == "digits":
        with np.load(DIGITS / "digits.npz") as stored:
            images = stored["images"][2 * len(stored["images"]) // 3 :].astype(np.float32) / 16
        return optimise(load_file(DIGITS / "digits.onnx", {"image": images.shape})), {
            "image": images
        }
    if name == "minilm":
        cache.mkdir(parents=True, exist_ok=True)
        weights, tokenizer = opened(cache.resolve())
        tokens, mask = tokenizer(SENTENCES, LENGTH)
        with TemporaryDirectory() as folder:
            file = sentence_network(weights, Path(folder) / "minilm.onnx", *tokens.shape)
            return optimise(load_file(file)), {"tokens": tokens, "mask": mask}
    graph = optimise(load_model(name))
    return graph, random_samples(graph, samples)


def _lines(name: str, graph: Graph, data: Mapping[str, Array], bound: float) -> list[str]:
    expected = outputs_over(graph, data)
    lines: list[str] = [_line(name, "float32", expected, expected, "")]
    for dtype in (BFLOAT16, FLOAT16):
        made = outputs_over(in_precision(graph, Precision(stored=dtype)), data)
        lines.append(_line(name, dtype, expected, made, "0"))
    found = mixed(graph, data, Precision(stored=BFLOAT16), deviation=bound)
    made = outputs_over(in_precision(graph, found.precision), data)
    kept = f"{len(found.precision.kept)} of {len(found.noise)}"
    lines.append(_line(name, f"mixed, {bound:g}", expected, made, kept))
    return lines


def _line(
    name: str, kind: str, expected: Mapping[str, Array], made: Mapping[str, Array], kept: str
) -> str:
    found = compared(expected, made)
    deviation = max(entry.deviation for entry in found)
    cosine = min(entry.cosine for entry in found)
    rows = [entry.top1 for entry in found if entry.top1 is not None]
    top1 = f"{100 * min(rows):.1f} %" if rows and name != "minilm" else ""
    own = _of_task(name, expected, made)
    return f"| {name} | {kind} | {deviation:.1e} | {cosine:.7f} | {top1} | {kept} | {own} |"


def _of_task(name: str, expected: Mapping[str, Array], made: Mapping[str, Array]) -> str:
    """What the network is for: the accuracy of digits, or similarities of sentences."""
    (scores,) = made.values()
    if name == "digits":
        with np.load(DIGITS / "digits.npz") as stored:
            right = stored["digits"][2 * len(stored["digits"]) // 3 :]
        return f"accuracy {100 * np.mean(scores.reshape(len(right), -1).argmax(1) == right):.2f} %"
    if name == "minilm":
        before, after = _similarities(*expected.values()), _similarities(scores)
        nearest = np.mean(before.argmax(1) == after.argmax(1))
        return f"similarities move by {np.abs(before - after).max():.1e}, nearest {nearest:.0%}"
    return ""


def _similarities(made: Array) -> Array:
    """The cosines of sentences with all others; -1 with themselves."""
    rows = made.reshape(-1, made.shape[-1])
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    found = rows @ rows.T
    np.fill_diagonal(found, -1)
    return found


if __name__ == "__main__":
    main()
