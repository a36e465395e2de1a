"""Self-test of the history checker: a clean history passes, each planted violation is found."""

import pytest

from tests.faults.history import (
    ACKED,
    NO_OFFSET,
    REFUSED,
    UNKNOWN,
    History,
    LeaderObservation,
    Read,
    Send,
    violations,
)


def clean():
    """Return a history of two producers, a prober, and a live reader that lags a little.

    Partition 0 moves from node 1 to node 2 in the middle, partition 1 is always node 2's.
    """
    history = History(idempotent=frozenset({"i"}))
    ends = [0, 0]
    for number in range(20):
        partition = number % 2
        epoch = int(partition == 0 and number >= 10)
        leader = 1 if partition == 0 and number < 10 else 2
        for by in (1, 2):
            history.observations.append(LeaderObservation(by, partition, leader, epoch))
        for producer in ("i", "p", "prober"):
            value = f"{producer}{number}"
            offset, ends[partition] = ends[partition], ends[partition] + 1
            send = Send(producer, partition, value, ACKED, offset)
            if producer == "prober":
                send.node, send.sent_at, send.answered_at = leader, number, number + 0.5
                history.lookups.append(Read(partition, offset, value, epoch))
            history.sends.append(send)
            history.final.append(Read(partition, offset, value, epoch))
    history.reads["live"] = history.final[:-8]
    return history


def test_history_accepts_a_valid_run():
    assert violations(clean()) == []


def test_history_accepts_either_result_of_an_unknown_outcome():
    history = clean()
    history.sends.append(Send("p", 0, "p100", UNKNOWN))
    history.sends.append(Send("i", 1, "i100", UNKNOWN))
    assert violations(history) == []
    history.final.append(Read(0, 30, "p100", 1))
    assert violations(history) == []


def test_history_accepts_duplicates_of_a_plain_producer():
    history = clean()
    history.final.append(Read(0, 30, "p18", 1))
    assert violations(history) == []


def test_acknowledgement_without_an_offset_needs_its_record_in_the_log():
    history = clean()
    history.sends[0].offset = NO_OFFSET
    assert violations(history) == []
    history.sends.append(Send("p", 0, "p100", ACKED, NO_OFFSET))
    (complaint,) = violations(history)
    assert complaint.startswith("I1:") and "is not in the log" in complaint


def lose_the_last(history):
    history.final.pop()


def acknowledge_elsewhere(history):
    history.sends[-1].offset += 1


def repeat_an_idempotent_one(history):
    history.final.append(Read(0, 30, "i18", 1))


def show_a_reader_another_value(history):
    history.reads["live"][3] = history.reads["live"][3]._replace(value="p5")


def acknowledge_two_at_one_offset(history):
    history.sends.append(Send("p", 0, "p100", ACKED, 0))


def swap_two(history):
    first, second = history.final[0], history.final[6]
    assert first.partition == second.partition
    history.final[0] = first._replace(value=second.value)
    history.final[6] = second._replace(value=first.value)
    history.reads.clear()
    for send in history.sends:
        send.outcome = UNKNOWN


def leave_out_one_in_the_middle(history):
    history.sends.insert(0, Send("i", 0, "i-1", UNKNOWN))


def show_a_rejected_record(history):
    history.sends[7].outcome = REFUSED


def show_an_unsent_record(history):
    history.reads["live"].append(Read(0, 26, "stranger"))


def look_up_and_find_nothing(history):
    history.lookups[4] = history.lookups[4]._replace(value="")


def place_a_later_one_before_an_earlier(history):
    by_value = {send.value: send for send in history.sends}
    by_value["prober8"].sent_at = by_value["prober8"].answered_at = 100


def report_an_older_epoch(history):
    history.observations.append(LeaderObservation(2, 0, 1, 0))


def place_under_an_older_epoch(history):
    history.final[-5] = history.final[-5]._replace(leader_epoch=0)


def report_two_leaders(history):
    history.observations.append(LeaderObservation(3, 0, 3, 1))


def let_the_former_leader_accept(history):
    history.sends.append(Send("prober", 0, "prober20", ACKED, 30, 1, 20, 21))
    history.final.append(Read(0, 30, "prober20", 1))


def report_an_error_to_a_client(history):
    history.errors.append("the default producer was told: local timed out")


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
        (show_a_rejected_record, "I5"),
        (show_an_unsent_record, "I5"),
        (look_up_and_find_nothing, "I3"),
        (place_a_later_one_before_an_earlier, "I7"),
        (report_an_older_epoch, "I9"),
        (place_under_an_older_epoch, "I9"),
        (report_two_leaders, "I9"),
        (let_the_former_leader_accept, "I9"),
        (report_an_error_to_a_client, "C"),
        (skip_one, "I6"),
        (go_back, "I6"),
        (begin_late, "I6"),
        (cut_a_hole_into_the_end, "I6"),
    ],
)
def test_history_reports_a_planted_error(plant, name):
    history = clean()
    plant(history)
    assert any(complaint.startswith(name) for complaint in violations(history))


def test_history_accepts_an_older_response_to_an_older_request():
    history = clean()
    history.observations += [
        LeaderObservation(2, 0, 2, 2, 30, 32),
        LeaderObservation(2, 0, 2, 1, 31, 33),
    ]
    assert violations(history) == []
    history.observations.append(LeaderObservation(2, 0, 2, 1, 32, 34))
    assert any(complaint.startswith("I9") for complaint in violations(history))


def test_history_accepts_a_leader_without_acknowledgements():
    history = clean()
    history.observations.insert(0, LeaderObservation(3, 0, -1, 1))
    history.observations.append(LeaderObservation(3, 0, -1, 1))
    assert violations(history) == []


def test_history_accepts_reordering_with_many_in_flight():
    history = clean()
    swap_two(history)
    assert len(violations(history)) == 1
    history.unordered = frozenset({"i"})
    assert violations(history) == []


def test_history_is_written_one_entry_a_line(tmp_path):
    history = clean()
    history.write(tmp_path / "history.jsonl")
    count = len(history.sends) + len(history.final) + len(history.reads["live"])
    count += len(history.lookups) + len(history.observations)
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == count
