"""Files that somebody bent: read or refused, with one sentence, in little time and memory.

Ten thousand of them take a minute: `.venv/bin/python -m pytest -m slow tests/fuzz`. A file is its
number: `Corpus.mutated(number, folder)` writes it again.
"""

import signal
from pathlib import Path

import pytest

from tests.fuzz import wire
from tests.fuzz.corpus import KINDS, Corpus, make_corpus
from tests.fuzz.reader import answer
from tests.fuzz.reading import Outcome, Reader, read_all


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    (tmp_path / "corpus").mkdir()
    return make_corpus(tmp_path / "corpus")


def check(outcome: Outcome) -> None:
    text = "\n".join(f"file {number}: {why}" for number, why in list(outcome.defects.items())[:5])
    assert not outcome.defects, f"{len(outcome.defects)} defects\n{text}"
    for status in ("ok", "refused"):  # neither is everything refused, nor is nothing
        assert sum(outcome.counts[kind, status] for kind in set(KINDS)), outcome.counts


def test_a_few_dozen_are_read_or_refused(corpus: Corpus, tmp_path: Path):
    check(read_all(corpus, range(150), tmp_path / "mutated"))


@pytest.mark.slow
def test_ten_thousand_are_read_or_refused(tmp_path: Path):
    from tests.external.cases import CASES

    (tmp_path / "corpus").mkdir()
    nodes = [case.model.SerializeToString() for case in list(CASES.values())[::5]]
    corpus = make_corpus(tmp_path / "corpus", nodes)
    outcome = read_all(corpus, range(10_000), tmp_path / "mutated")
    print(dict(outcome.counts))
    check(outcome)
    for kind in KINDS:
        assert outcome.counts[kind, "ok"] and outcome.counts[kind, "refused"], outcome.counts


def test_a_number_is_a_file(corpus: Corpus, tmp_path: Path):
    for number in range(12):
        made = [corpus.mutated(number, tmp_path / f"{number}{copy}") for copy in "ab"]
        assert made[0][0] == made[1][0]
        first, second = (
            [(p.name, p.read_bytes()) for p in sorted(path.rglob("*")) if p.is_file()]
            if (path := place).is_dir()
            else path.read_bytes()
            for _, place in made
        )
        if made[0][0] != "parquet":  # its writer notes what Python says of itself
            assert first == second


def test_whole_files_are_read(corpus: Corpus, tmp_path: Path):
    """What is bent is sound before."""
    for number, data in enumerate(corpus.models[::9]):
        path = tmp_path / f"{number}.onnx"
        path.write_bytes(data)
        assert answer("onnx", path)["status"] in ("ok", "refused")
    for number, parts in enumerate(corpus.bundles):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, data in parts.items():
            (folder / name).write_bytes(data)
        assert answer("folder", folder) == {"status": "ok", "text": ""}
    for number, job in enumerate(corpus.jobs):
        (tmp_path / f"job{number}").write_bytes(job)
        assert answer("job", tmp_path / f"job{number}") == {"status": "ok", "text": ""}


def test_messages_are_written_as_they_were_read(corpus: Corpus):
    for data in corpus.models[::5]:
        fields = wire.read(data)
        assert fields and wire.write(fields) == data


def test_a_reader_that_ends_or_hangs_is_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.fuzz.reading.DEADLINE_S", 30.0)
    with Reader() as reader:
        assert reader.read("onnx", Path("/nowhere"))["status"] == "refused"
        process = reader._process
        assert process is not None
        process.kill()
        process.wait()
        assert "the process ended" in reader.read("onnx", Path("/nowhere"))["text"]
        assert reader.read("onnx", Path("/nowhere"))["status"] == "refused"
        assert reader._process is not None
        reader._process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr("tests.fuzz.reading.DEADLINE_S", 0.02)
        assert "no answer" in reader.read("onnx", Path("/nowhere"))["text"]
