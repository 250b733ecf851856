"""The log as JSON and as CSV, and that it is bounded."""

import csv
import io
import json

import pytest

from kernels.serving.events import EventLog, TooManyEvents, to_csv


def test_a_table_has_a_column_for_whatever_occurs():
    log = EventLog()
    log.add(0, "allocate", {"sequence": "a"}, tokens=3, slots=[[0, 2]])
    log.add(1.5, "finish", {"sequence": "b", "node": 4}, is_whole=True, left=None)
    rows = list(csv.DictReader(io.StringIO(to_csv(log.as_json()), newline="")))
    assert list(rows[0]) == ["time", "kind", "sequence", "node", "tokens", "slots", "is_whole", "left"]
    assert rows[0] == {
        "time": "0", "kind": "allocate", "sequence": "a", "node": "", "tokens": "3", "slots": "[[0, 2]]",
        "is_whole": "", "left": "",
    }  # fmt: skip
    assert rows[1]["is_whole"] == "true"
    assert rows[1]["time"] == "1.5"


def test_json_keeps_ids_and_details_apart():
    log = EventLog()
    log.add(2, "evict", {"node": 1}, tokens=9)
    assert json.loads(json.dumps(log.as_json())) == [
        {"time": 2, "kind": "evict", "ids": {"node": 1}, "details": {"tokens": 9}}
    ]


def test_an_empty_log_is_a_header():
    assert to_csv([]) == "time,kind\r\n"


def test_a_full_log_says_so():
    log = EventLog(limit=1)
    log.add(0, "x", {})
    with pytest.raises(TooManyEvents, match="more than 1 event"):
        log.add(1, "x", {})
