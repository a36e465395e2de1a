"""Records of the scenes: run against a broker, stored, and compared with each other.

python -m tests.oracle.recording record [SCENE...]    Apache Kafka's responses, into the file
python -m tests.oracle.recording compare BOOTSTRAP [SCENE...]    the differences, line by line
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.conformance.java_client import compiled
from tests.oracle import scenes
from tests.oracle.conversation import Conversation
from tools.apache_kafka import BROKER, TOOLS_API, ApacheKafka, classpath

RECORDED = Path(__file__).with_name("recorded.json.gz")
ABSENT = "(absent)"
# As kafkalite's: groups without an initial delay, in one partition.
PROPERTIES = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
# Telemetry requests are served only with a reporter.
TELEMETRY = {"metric.reporters": "Telemetry"}
PLUGINS = Path(__file__).with_name("java")

Said = list[dict[str, object]]


class Difference(NamedTuple):
    scene: str
    asked: str
    path: str
    theirs: object
    ours: object

    def __str__(self) -> str:
        return (
            f"{self.scene}: {self.asked}\n    {self.path or 'answer'}: "
            f"Apache Kafka {short(self.theirs)}, kafkalite {short(self.ours)}"
        )


def play(bootstrap: str, names: Iterable[str] | None = None) -> dict[str, Said]:
    """Return the record of each scene; a scene that fails has its error as the last response."""
    said = {}
    plays = scenes.load()
    for name in names or plays:
        with Conversation(bootstrap, name) as talk:
            try:
                plays[name](talk)
            except (AssertionError, OSError) as fault:
                talk.said.append({"asked": "the scene went on", "answer": f"broke off: {fault}"})
            except AttributeError:
                # A scene needs a response it did not get; the lack of it is recorded.
                talk.said.append({"asked": "the scene went on", "answer": "broke off: no answer"})
            said[name] = talk.said
    return said


def record(names: Iterable[str] | None = None) -> dict[str, Said]:
    """Run the scenes against a new Apache Kafka, and store the record; all of them without names.

    With names, the other scenes keep their records.
    """
    plugins = compiled(PLUGINS, [classpath(BROKER, managed=[TOOLS_API])])
    with (
        tempfile.TemporaryDirectory() as scratch,
        ApacheKafka(Path(scratch), PROPERTIES | TELEMETRY, plugins) as kafka,
    ):
        said = play(kafka.bootstrap, names)
    broken = [name for name, lines in said.items() if "broke off" in str(lines[-1]["answer"])]
    if broken:
        raise RuntimeError(f"scenes broke off at Apache Kafka itself: {broken}")
    if names is not None:
        said = {name: said.get(name, kept) for name, kept in {**recorded(), **said}.items()}
    text = json.dumps({"kafka": BROKER[1], "scenes": said}, separators=(",", ":"), sort_keys=True)
    # Without a time, so that the same responses give the same file.
    RECORDED.write_bytes(gzip.compress(text.encode(), mtime=0))
    return said


def recorded() -> dict[str, Said]:
    found = json.loads(gzip.decompress(RECORDED.read_bytes()))["scenes"]
    assert isinstance(found, dict)
    return found


def differences(theirs: dict[str, Said], ours: dict[str, Said]) -> Iterator[Difference]:
    """Yield every difference of two records."""
    # The other record went through a JSON file, so this one is converted likewise.
    ours = json.loads(json.dumps(ours))
    for scene in ours:
        there, here = theirs.get(scene, []), ours[scene]
        for place in range(max(len(there), len(here))):
            one = there[place] if place < len(there) else {"asked": ABSENT, "answer": ABSENT}
            two = here[place] if place < len(here) else {"asked": ABSENT, "answer": ABSENT}
            asked = str(two["asked"] if one["asked"] == ABSENT else one["asked"])
            for path, left, right in unequal(one["answer"], two["answer"]):
                yield Difference(scene, asked, path, left, right)


def unequal(left: object, right: object, path: str = "") -> Iterator[tuple[str, object, object]]:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}):
            yield from unequal(left.get(key, ABSENT), right.get(key, ABSENT), f"{path}.{key}")
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for place, (one, two) in enumerate(zip(left, right, strict=True)):
            yield from unequal(one, two, f"{path}.{place}")
    elif left != right:
        yield path.lstrip("."), left, right


def short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else f"{text[:160]}…"


def main() -> int:
    parser = argparse.ArgumentParser(description="Apache Kafka's answers, and ours beside them.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    renew = verbs.add_parser("record", help="renew the recording")
    renew.add_argument("scenes", nargs="*", help="their names, or the beginnings of them")
    compare = verbs.add_parser("compare", help="lay a broker's answers beside the recording")
    compare.add_argument("bootstrap")
    compare.add_argument("scenes", nargs="*", help="their names, or the beginnings of them")
    asked = parser.parse_args()
    begin = tuple(asked.scenes) or ("",)
    chosen = [name for name in scenes.load() if name.startswith(begin)]
    if asked.verb == "record":
        print(f"{len(record(chosen if asked.scenes else None))} scenes recorded")
        return 0
    found = list(differences(recorded(), play(asked.bootstrap, chosen)))
    print("\n".join(map(str, found)))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
