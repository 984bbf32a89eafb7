"""What is in use follows from a list of changes that only gets longer."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.core.errors import RecordError
from retune.core.succession import Succession, read_succession, write_succession

START = datetime(2026, 1, 1, tzinfo=UTC)
ALL = range(100)


def at(day: int) -> str:
    return (START + timedelta(days=day)).isoformat()


def promoted(*numbers: int) -> Succession:
    made = Succession()
    for day, number in enumerate(numbers):
        made = made.promoted(number, at(day))
    return made


def back(history: Succession) -> Succession:
    return history.taken_back(history.before(ALL), at(50))


def test_nothing_is_in_use_at_first():
    assert Succession().present is None
    assert Succession().before(ALL) is None


def test_two_steps_back_are_two_numbers_back():
    history = back(back(promoted(1, 2, 3)))
    assert history.line == (1,)
    assert [c.number for c in history.changes] == [1, 2, 3, 2, 1], "nothing is forgotten"


def test_what_was_taken_back_is_not_gone_back_to():
    history = back(promoted(1, 2, 3)).promoted(4, at(60))
    assert history.line == (1, 2, 4)
    assert history.before(ALL) == 2


def test_what_is_gone_is_passed_over():
    history = promoted(1, 2, 3, 4)
    assert history.before({1, 2, 4}) == 2
    assert history.taken_back(2, at(9)).line == (1, 2)


def test_promoting_what_is_in_use_changes_nothing():
    assert promoted(1, 2, 2).line == (1, 2)


def test_a_number_may_come_back():
    history = promoted(1, 2, 1)
    assert (history.present, history.before(ALL)) == (1, 2)
    assert history.before({1}) is None, "what is in use is not before itself"


def test_everything_may_be_taken_back():
    history = promoted(1, 2).taken_back(None, at(9))
    assert history.present is None
    assert history.promoted(3, at(10)).line == (3,)


def test_the_past_is_known():
    history = promoted(1, 2).taken_back(1, at(5))
    past = [history.until(START + timedelta(days=day)).present for day in (-1, 0, 3, 5)]
    assert past == [None, 1, 2, 1]


@given(st.lists(st.integers(0, 5) | st.just("back"), max_size=30))
def test_the_line_is_a_stack(steps: list[int | str]):
    history, stack = Succession(), list[int]()
    for step in steps:
        if isinstance(step, int):
            history = history.promoted(step, at(0))
            if stack[-1:] != [step]:
                stack.append(step)
        elif history.before(ALL) is not None:
            history = back(history)
            stack.pop()
        assert history.line == tuple(stack)


def test_it_comes_back_from_its_file(tmp_path: Path):
    path = tmp_path / "history.json"
    assert read_succession(path) is None
    history = back(promoted(1, 2))
    write_succession(path, history)
    assert read_succession(path) == history
    path.write_text('{"changes": [{"number": "one"}]}')
    with pytest.raises(RecordError, match=r"history\.json: expected a history of promotions"):
        read_succession(path)
