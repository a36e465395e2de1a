"""The checker is checked: a clean history passes, and each planted fault is found by its name."""

import dataclasses

import pytest

from tests.crash.history import ACKED, REFUSED, UNKNOWN, History, Read, Send, violations


def clean():
    """Two producers, two partitions, one live reader that is a little behind."""
    history = History(idempotent=frozenset({"i"}))
    ends = [0, 0]
    for number in range(20):
        for producer in ("i", "p"):
            partition = number % 2
            value = f"{producer}{number}"
            offset, ends[partition] = ends[partition], ends[partition] + 1
            history.sends.append(Send(producer, partition, value, ACKED, offset))
            history.final.append(Read(partition, offset, value))
    history.reads["live"] = history.final[:-5]
    return history


def test_a_history_without_a_fault_is_found_without_one():
    assert violations(clean()) == []


def test_an_unknown_outcome_may_have_come_or_not():
    history = clean()
    history.sends.append(Send("p", 0, "p100", UNKNOWN))
    history.sends.append(Send("i", 1, "i100", UNKNOWN))
    assert violations(history) == []
    history.final.append(Read(0, 20, "p100"))
    assert violations(history) == []


def test_a_plain_producer_may_repeat_itself():
    history = clean()
    history.final.append(Read(0, 20, "p18"))
    assert violations(history) == []


def lose_the_last(history):
    history.final.pop()


def acknowledge_elsewhere(history):
    history.sends[-1].offset += 1


def repeat_an_idempotent_one(history):
    history.final.append(Read(0, 20, "i18"))


def show_a_reader_another_value(history):
    history.reads["live"][3] = dataclasses.replace(history.reads["live"][3], value="p5")


def acknowledge_two_at_one_offset(history):
    history.sends.append(Send("p", 0, "p100", ACKED, 0))


def swap_two(history):
    first, second = history.final[0], history.final[4]
    history.final[0] = dataclasses.replace(second, offset=first.offset)
    history.final[4] = dataclasses.replace(first, offset=second.offset)
    for send in history.sends:
        send.outcome = UNKNOWN


def leave_out_one_in_the_middle(history):
    history.sends.insert(0, Send("i", 0, "i-1", UNKNOWN))


def show_a_refused_one(history):
    history.sends[7].outcome = REFUSED


def show_what_nobody_sent(history):
    history.reads["live"].append(Read(0, 18, "stranger"))


def skip_one(history):
    del history.reads["live"][6]


def go_back(history):
    history.reads["live"].append(history.reads["live"][-1])


def begin_late(history):
    del history.reads["live"][0]


def cut_a_hole_into_the_end(history):
    del history.final[-2]
    history.sends = [send for send in history.sends if send.value != "i19"]


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (lose_the_last, "I1"),
        (acknowledge_elsewhere, "I1"),
        (repeat_an_idempotent_one, "I2"),
        (show_a_reader_another_value, "I3"),
        (acknowledge_two_at_one_offset, "I3"),
        (swap_two, "I4"),
        (leave_out_one_in_the_middle, "I4"),
        (show_a_refused_one, "I5"),
        (show_what_nobody_sent, "I5"),
        (skip_one, "I6"),
        (go_back, "I6"),
        (begin_late, "I6"),
        (cut_a_hole_into_the_end, "I6"),
    ],
)
def test_a_planted_fault_is_found(plant, name):
    history = clean()
    plant(history)
    assert any(complaint.startswith(name) for complaint in violations(history))


def test_a_history_can_be_written_down(tmp_path):
    clean().write(tmp_path / "history.jsonl")
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 40 + 40 + 35
