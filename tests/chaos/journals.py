"""The journals of the consumers of a subscription, checked for at-least-once delivery and for commits."""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from line_file import lines

import strandline
from strandline.log.cursors import Position


class Stored:
    """The ids of every partition in order, and the index of every cursor in that order."""

    def __init__(self, data: Path, name: str) -> None:
        self.ids: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._index: dict[tuple[str, str], int] = {}
        with strandline.open(data) as sl:
            for batch in sl.log.read(name):
                for offset, event in zip(batch.records["offset"].to_pylist(), batch.events, strict=True):
                    self._index[batch.partition, str(Position(batch.timeline, offset))] = len(
                        self.ids[batch.partition]
                    )
                    self.ids[batch.partition].append((event["publisher"], event["number"]))

    def index(self, line: dict) -> int:
        return self._index[line["partition"], line["offset"]]


@dataclass
class Journals:
    """All lines of all consumers. `index` is an index into a partition's events; a commit covers all up to it."""

    stored: Stored
    window: int
    lines: list[dict] = field(default_factory=list)
    opened_at: dict[str, int] = field(default_factory=dict)
    deliveries: int = 0

    def add(self, path: Path) -> None:
        """Add the journal of one consumer. A stream is opened after the previous line of its consumer."""
        before = 0
        for line in lines(path):
            assert not line["what"].startswith("error"), line["what"]
            if line["stream"]:
                self.opened_at.setdefault(line["stream"], before)
            before = line["at"]
            if "partition" in line:
                self.lines.append({**line, "index": self.stored.index(line)})

    def check(self, acknowledged: set) -> None:
        self.lines.sort(key=lambda line: line["at"])
        delivered: set = set()
        for partition, ids in self.stored.ids.items():
            delivered |= self._check_partition([x for x in self.lines if x["partition"] == partition], ids)
        lost = acknowledged - delivered
        assert not lost, f"{len(lost)} acknowledged events were never delivered, for example {sorted(lost)[:5]}"

    def _check_partition(self, lines: list[dict], ids: list) -> set:
        delivered: set = set()
        asked = {-1}  # cursors that consumers tried to commit: a stream may start there
        moments, committed = [0], [-1]  # from each moment on, the cursor is at least this far
        last: dict[str, int] = {}  # the last index of every stream
        late: dict[str, int] = defaultdict(int)  # by stream: events delivered after their commit
        for line in lines:
            stream, end = line["stream"], line["index"]
            if line["what"] == "committing":
                asked.add(end)
            elif line["what"] == "committed":
                moments.append(line["at"])
                committed.append(max(end, committed[-1]))
            else:
                found = [(publisher, number) for publisher, number in line["ids"]]
                start = end - len(found) + 1
                assert found == ids[start : end + 1], f"not the stored events: {line}"
                assert start - 1 in asked or start - 1 == last.get(stream), f"events were skipped: {line}"
                assert start > last.get(stream, -1), f"sent twice in one stream: {line}"
                known = committed[bisect_right(moments, self.opened_at[stream]) - 1]
                assert start > known, f"committed before the stream was opened: {line}"
                late[stream] += max(0, min(end, committed[-1]) - start + 1)
                assert late[stream] <= self.window, f"more than one window was sent after its commit: {line}"
                last[stream] = end
                delivered.update(found)
                self.deliveries += len(found)
        return delivered


class Cursors:
    """The committed cursors, as polled from nodes. They never go back."""

    def __init__(self) -> None:
        self.now: dict[str, tuple[int, int]] = {}

    def see(self, items: list[dict]) -> None:
        for item in items:
            _, order, offset = item["offset"].split("-", 2)
            place = (int(order, 16), int(offset))
            before = self.now.get(item["partition"], (0, 0))
            assert place >= before, f"partition {item['partition']} went back from {before} to {place}"
            self.now[item["partition"]] = place
