"""kafkalite produce, kafkalite consume: write and read records, with kcat's flags.

Input is read and split in chunks and output is written in batches, so that librdkafka limits the
throughput and not Python code per record.

Left out: transactions, Avro; kcat's -L and -Q are `kafkalite topic describe`.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import stat
import sys
import termios
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import repeat
from typing import Unpack

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kafkalite.cli import start_position
from kafkalite.cli.clients import (
    CONNECTION,
    ClusterClients,
    ConnectionArguments,
    StallWarning,
    clean_error,
    kafka_errors_as_refusals,
)
from kafkalite.cli.command import (
    UsageError,
    argument,
    command,
    key_value,
    print_stderr,
    printable,
    warn,
    write_stdout,
)
from kafkalite.cli.membership import GroupMember
from kafkalite.cli.native_groups import check_group_type
from kafkalite.cli.progress import Progress
from kafkalite.cli.reading import NO_RECORDS, POLL_S, assigned, batches
from kafkalite.cli.record_format import Writer, delimiter, formatted, json_lines, template
from kafkalite.cli.share_member import ShareMember
from kafkalite.errors import Refusal

TOPIC = argument("-t", "--topic", required=True, type=printable, help="name of the topic")
DELIMITER = argument(
    "-D",
    dest="delimiter",
    type=delimiter,
    default=b"\n",
    help="delimiter of records (default: \\n)",
)
KEY_DELIMITER = argument(
    "-K", dest="key_delimiter", type=delimiter, help="delimiter of key and value"
)

Column = Sequence[bytes | None]

CHUNK_SIZE = 128 << 10
BEGIN = start_position.SinceTimestamp(start_position.BEGINNING)
RESETS: dict[start_position.StartPosition, str] = {
    BEGIN: "earliest",
    start_position.SinceTimestamp(start_position.END): "latest",
}
"""Values of auto.offset.reset for start positions."""
IN_FLIGHT_COUNT_MAX = 100_000
IN_FLIGHT_SIZE_MAX = 256 << 20
RECORD_SIZE_MAX = 100 << 20

SHORT_SIZE_MAX = 512 << 10
SHORT_INPUT = {"enable.idempotence": False, "max.in.flight.requests.per.connection": 1}
"""For short input: librdkafka takes half a second to initialize an idempotent producer."""


@command(
    TOPIC,
    argument("files", nargs="*", help="files, one record each; with -l, one record per line"),
    argument("-l", dest="by_line", action="store_true", help="split files into records like stdin"),
    argument("-k", "--key", type=os.fsencode, help="key of records that have none in the input"),
    KEY_DELIMITER,
    DELIMITER,
    argument(
        "-p",
        "--partition",
        type=int,
        default=-1,
        help="partition (default: by key, with the partitioner of Java clients)",
    ),
    argument(
        "-H",
        dest="headers",
        type=key_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="add a header to every record; may be repeated",
    ),
    argument(
        "-z",
        dest="codec",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        default="none",
        help="compression codec (default: none)",
    ),
    argument(
        "-Z", dest="empty_is_null", action="store_true", help="send empty keys and values as null"
    ),
    argument("-q", "--quiet", action="store_true", help="no progress, no summary"),
    *CONNECTION,
)
def produce(
    topic: str,
    files: Sequence[str],
    by_line: bool,
    key: bytes | None,
    key_delimiter: bytes | None,
    delimiter: bytes,
    partition: int,
    headers: Sequence[tuple[str, str]],
    codec: str,
    empty_is_null: bool,
    quiet: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Send each line of stdin, or of files, as a record.

    An empty line is a record too.  The command ends when the broker has acknowledged all records;
    if some were not delivered, it prints an error and exits with code 1.

    Examples:
      seq 1000000 | kafkalite produce -t numbers
      kafkalite produce -t people -K: -l people.txt
      echo '{"on": true}' | kafkalite produce -t switches -k lamp -H source=hand
      kafkalite produce -t pictures -k cat cat.jpg
    """
    if by_line and not files:
        raise UsageError("-l requires files (stdin is always read by line)")
    cluster = ClusterClients(**connection)
    gc.disable()  # no cycles are created here, and each collection would traverse the batches
    total_size = input_size(files)
    short = total_size is not None and total_size <= SHORT_SIZE_MAX
    settings = {"compression.type": codec, **(SHORT_INPUT if short else {})}
    with kafka_errors_as_refusals():
        sender = RecordSender(cluster, topic, settings, partition, headers)
    drawn = not quiet and not sys.stdin.isatty()
    progress = Progress(f"to {topic}", total_size=total_size, drawn=drawn)
    delimiter_size = 0 if files and not by_line else len(delimiter)
    try:
        with kafka_errors_as_refusals(), progress, sender:
            for lines in inputs(files, by_line, delimiter, sender.wait):
                size = sum(map(len, lines)) + delimiter_size * len(lines)
                keys, values = split_keys(lines, key_delimiter, key)
                if empty_is_null:
                    keys, values = without_empty(keys), without_empty(values)
                sender.send(values, keys, size)
                progress.add(len(values), size)
    except KeyboardInterrupt:
        in_flight = len(sender.producer)
        warn(f"interrupted after {progress.summary()}; {in_flight or 'no'} records undelivered")
        raise
    if sys.stderr.isatty() and not quiet:
        print_stderr(progress.summary())


class RecordSender:
    """A producer of one topic that sends columns of records and limits the records in flight.

    Leaving the block flushes, also after Ctrl-C; undelivered records raise Refusal.
    """

    def __init__(
        self,
        cluster: ClusterClients,
        topic: str,
        settings: Mapping[str, object],
        partition: int = -1,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.error: KafkaError | None = None
        self.failed_count = 0
        self.sent_count = 0
        self.unflushed_size = 0
        self.topic = topic
        self.partition = partition
        # Larger than IN_FLIGHT_COUNT_MAX and IN_FLIGHT_SIZE_MAX plus the records of one call.
        bounds = {"queue.buffering.max.messages": 10_000_000, "queue.buffering.max.kbytes": 2097151}
        callbacks = {"on_delivery": self._on_delivery}
        self.producer: Producer = cluster.producer({**bounds, **callbacks, **settings})
        self.produce: Callable[..., None] = self.producer.produce
        if headers:
            self.produce = partial(self.produce, headers=list(headers))
        self.stall_warning = StallWarning(cluster, f"topic {topic!r}", "no record was acknowledged")
        partitions = cluster.topic(self.producer, topic).partitions
        if partition not in (-1, *partitions):
            raise Refusal(
                f"topic {topic!r} has no partition {partition}; it has {len(partitions)} partitions"
            )

    def send(self, values: Column, keys: Column, size: int) -> None:
        """Append records in order; wait while too many are in flight."""
        limit = IN_FLIGHT_COUNT_MAX
        self.unflushed_size += size
        if self.unflushed_size > IN_FLIGHT_SIZE_MAX:
            limit = self.unflushed_size = 0
        self.wait(0)
        while (in_flight := len(self.producer)) > limit:
            self.stall_warning.check(in_flight)
            self.wait(0.001)
        columns = (repeat(self.topic), values, keys, repeat(self.partition))
        # A deque of length 0 runs the map without Python bytecode per record.
        deque(map(self.produce, *columns), 0)
        self.sent_count += len(values)

    def wait(self, timeout_s: float) -> None:
        """Process delivery reports; raise the first error."""
        self.producer.poll(timeout_s)
        if self.error is not None:
            raise KafkaException(self.error)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.error = self.error or error
            self.failed_count += 1

    def __enter__(self) -> RecordSender:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        while in_flight := len(self.producer):
            self.stall_warning.check(in_flight)
            if self.error is not None:
                self.producer.purge()
            self.producer.flush(POLL_S)
        if self.error is not None:
            raise Refusal(
                f"{self.failed_count:,} of {self.sent_count:,} records were not delivered: "
                f"{clean_error(self.error.str())}"
            )


def inputs(
    files: Sequence[str], by_line: bool, delimiter: bytes, wait: Callable[[float], None]
) -> Iterator[list[bytes]]:
    """Yield the values to send, in lists of one chunk each."""
    if not files:
        yield from records(sys.stdin.fileno(), delimiter, wait)
    for name in files:
        with open(name, "rb", buffering=0) as file:
            if by_line:
                yield from records(file.fileno(), delimiter, wait)
            else:
                yield [file.readall()]


def records(fd: int, delimiter: bytes, wait: Callable[[float], None]) -> Iterator[list[bytes]]:
    """Split the input at each delimiter; after the last record it may be missing."""
    buffer = bytearray()
    always_ready = stat.S_ISREG(os.fstat(fd).st_mode)
    while True:
        while not always_ready and not select.select([fd], [], [], POLL_S)[0]:
            wait(0)
        chunk = os.read(fd, CHUNK_SIZE)
        if not chunk:
            break
        unsearched = max(0, len(buffer) - len(delimiter) + 1)
        buffer += chunk
        end = buffer.rfind(delimiter, unsearched)
        if end >= 0:
            yield bytes(buffer[:end]).split(delimiter)
            del buffer[: end + len(delimiter)]
        elif len(buffer) > RECORD_SIZE_MAX:
            raise Refusal(
                f"no delimiter {delimiter!r} in {len(buffer):,} bytes of input; set another with -D"
            )
    if buffer:
        yield [bytes(buffer)]


def split_keys(
    lines: Sequence[bytes], delimiter: bytes | None, default_key: bytes | None
) -> tuple[Column, Column]:
    """Return keys and values of lines; a line without the delimiter has the default key."""
    if delimiter is None:
        return [default_key] * len(lines), lines
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    for line in lines:
        key, found, value = line.partition(delimiter)
        keys.append(key if found else default_key)
        values.append(value if found else line)
    return keys, values


def without_empty(column: Column) -> Column:
    return [content or None for content in column]


def input_size(files: Sequence[str]) -> int | None:
    """Return the total size of the input, or None if it is unknown."""
    sizes = [os.stat(name) for name in files] or [os.fstat(sys.stdin.fileno())]
    if all(stat.S_ISREG(status.st_mode) for status in sizes):
        return sum(status.st_size for status in sizes)
    return None if files else closed_pipe_size(sys.stdin.fileno())


def closed_pipe_size(fd: int) -> int | None:
    """Return the bytes left in a pipe whose writers have closed it."""
    poll = select.poll()
    poll.register(fd, 0)
    ended = any(events & select.POLLHUP for _, events in poll.poll(0))
    if not ended:
        return None
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)


@command(
    argument(
        "-t",
        "--topic",
        dest="named",
        metavar="TOPIC",
        type=printable,
        action="append",
        default=[],
        help="name of the topic",
    ),
    argument(
        "topics",
        nargs="*",
        metavar="TOPIC",
        type=printable,
        help="name of the topic; several with -G",
    ),
    argument(
        "-G", "--group", type=printable, help="read as a member of this group, and commit offsets"
    ),
    argument(
        "--protocol",
        choices=["classic", "consumer"],
        help="with -G, the group's protocol: classic, or consumer (KIP-848), in which the broker"
        " assigns the partitions (default: classic)",
    ),
    argument(
        "--share",
        action="store_true",
        help="with -G, join a share group: each record goes to one of the members, whatever its"
        " partition",
    ),
    argument(
        "-p",
        "--partition",
        type=int,
        action="append",
        help="read only this partition; may be repeated",
    ),
    argument(
        "-o",
        "--offset",
        type=start_position.start,
        default=None,
        help="start position: beginning, end, OFFSET, -COUNT, @-10m, @2013-01-01, s@MILLISECONDS "
        "(default: beginning); with -G, of partitions without committed offset: beginning or end",
    ),
    argument(
        "-e", "--exit", dest="to_end", action="store_true", help="exit at the end of all partitions"
    ),
    argument("-c", "--count", type=int, help="exit after this number of records"),
    argument(
        "-f",
        "--format",
        type=template,
        help="output format: %%t %%p %%o %%k %%K %%s %%S %%T %%R %%h \\n …",
    ),
    argument(
        "-J", "--json", dest="as_json", action="store_true", help="print one JSON object per record"
    ),
    KEY_DELIMITER,
    DELIMITER,
    argument("-Z", dest="show_null", action="store_true", help="print nulls as NULL"),
    argument("-q", "--quiet", action="store_true", help="no progress, no summary"),
    argument(
        "-v",
        "--verbose",
        action="store_true",
        help="with -G, print assigned and revoked partitions",
    ),
    *CONNECTION,
)
def consume(
    named: Sequence[str],
    topics: Sequence[str],
    group: str | None,
    protocol: str | None,
    share: bool,
    partition: Sequence[int] | None,
    offset: start_position.StartPosition | None,
    to_end: bool,
    count: int | None,
    format: bytes | None,
    as_json: bool,
    key_delimiter: bytes | None,
    delimiter: bytes,
    show_null: bool,
    quiet: bool,
    verbose: bool,
    **connection: Unpack[ConnectionArguments],
) -> None:
    """Print records, one value per line, until Ctrl-C, the end (-e) or a count (-c).

    -f, -J and -G are those of kcat.  The tokens of -f are %t topic, %p partition, %o offset,
    %k key, %K size of the key, %s value, %S size of the value, %T timestamp in ms, %h headers, and
    the bytes \\n \\t \\xNN.  With -G, the members of a group share the partitions, and continue at
    the committed offsets.  With --share they share the records: printed ones are acknowledged.

    Examples:
      kafkalite consume -t numbers -o -5 -e
      kafkalite consume -t people -o @-10m -f '%T %k: %s\\n'
      kafkalite consume -t flights -J -c 10 | jq .key
      kafkalite consume -G readers flights audit -v
      kafkalite consume -G readers --protocol consumer flights
      kafkalite consume -G workers --share jobs -c 10
    """
    check(group, partition, offset, count, verbose)
    check_group_kind(group, protocol, share, offset, to_end, verbose)
    names = list(dict.fromkeys([*named, *topics]))
    if not names:
        raise UsageError("specify the topic: -t TOPIC")
    gc.disable()  # as in produce
    cluster = ClusterClients(**connection)
    write = json_lines if as_json else writer(format, key_delimiter, delimiter, show_null)
    progress = Progress(f"from {', '.join(names)}", drawn=not quiet and not sys.stdout.isatty())
    with kafka_errors_as_refusals():
        begin = offset or BEGIN
        if group is not None:
            cluster.connected_admin()
            advice = f"read it {'without' if share else 'with'} --share"
            check_group_type(cluster, group, is_share=share, advice=advice)
        if group is None:
            source = read_partitions(cluster, names, partition, begin, to_end, count)
        elif share:
            source = read_share_group(ShareMember(cluster, group, names), count)
        else:
            member = GroupMember(cluster, group, names, RESETS[begin], verbose, protocol)
            source = read_group(member, to_end, count)
        print_records(source, write, progress, is_quiet=quiet or not sys.stderr.isatty())


def print_records(
    source: Generator[list[Message], None, None],
    write: Writer,
    progress: Progress,
    is_quiet: bool,
) -> None:
    """Print records batch by batch, and a summary at the end or when interrupted."""
    try:
        with progress, closing(source):
            for batch in source:
                lines = write(batch)
                write_stdout(lines)
                progress.add(len(batch), len(lines))
    except KeyboardInterrupt:
        if not is_quiet:
            warn(f"interrupted after {progress.summary()}")
        raise
    if not is_quiet:
        print_stderr(progress.summary())


def check(
    group: str | None,
    partitions: Sequence[int] | None,
    where: start_position.StartPosition | None,
    count: int | None,
    verbose: bool,
) -> None:
    """Raise Refusal if flags contradict each other."""
    if count is not None and count < 0:
        raise UsageError(f"-c must not be negative: {count}")
    if group is not None and partitions:
        raise UsageError("-p and -G exclude each other: the group assigns the partitions")
    if group is None and verbose:
        raise UsageError("-v requires -G")
    if group is not None and where is not None and where not in RESETS:
        raise UsageError(
            "-o with -G must be beginning or end: it applies to partitions without committed offset"
            " (see: kafkalite group reset)"
        )


def check_group_kind(
    group: str | None,
    protocol: str | None,
    share: bool,
    where: start_position.StartPosition | None,
    to_end: bool,
    verbose: bool,
) -> None:
    """Raise Refusal if --protocol or --share contradict other flags."""
    if not share and protocol is None:
        return
    if group is None:
        raise UsageError(f"{'--share' if share else '--protocol'} requires -G")
    if not share:
        return
    if protocol is not None:
        raise UsageError("--protocol and --share exclude each other")
    if where is not None:
        raise UsageError(
            "-o and --share exclude each other: a share group begins where its configuration"
            f" share.auto.offset.reset says (see: kafkalite config set group {group}"
            " share.auto.offset.reset=earliest)"
        )
    if to_end:
        raise UsageError(
            "-e and --share exclude each other: released records may come again; use -c"
        )
    if verbose:
        raise UsageError("-v and --share exclude each other: no partition is assigned to a member")


def writer(
    format: bytes | None, key_delimiter: bytes | None, delimiter: bytes, show_null: bool
) -> Writer:
    """Return the function that formats records according to the flags."""
    if format is None:
        format = b"%s" + delimiter.replace(b"%", b"%%")
        if key_delimiter:
            format = b"%k" + key_delimiter.replace(b"%", b"%%") + format
    return formatted(format, b"NULL" if show_null else b"")


def read_partitions(
    cluster: ClusterClients,
    topics: Sequence[str],
    partitions: Sequence[int] | None,
    where: start_position.StartPosition,
    to_end: bool,
    count: int | None,
) -> Generator[list[Message], None, None]:
    """Yield the records of one topic, read without a group."""
    if len(topics) > 1:
        raise UsageError("to read several topics, specify a group with -G")
    # The end is detected by an empty fetch response, so the broker must not wait for records.
    consumer = cluster.consumer({"fetch.wait.max.ms": 10} if to_end else {})
    try:
        unfinished = assigned(cluster, consumer, topics[0], partitions, where)
        stall_warning = StallWarning(cluster, f"topic {topics[0]!r}", NO_RECORDS)
        yield from batches(consumer, unfinished, stall_warning, to_end, count)
    finally:
        consumer.close()


def read_group(
    member: GroupMember, to_end: bool, count: int | None
) -> Generator[list[Message], None, None]:
    """Yield the records of this member of a group, and leave the group at the end."""
    with member:
        yield from member.batches(to_end, count)


def read_share_group(
    member: ShareMember, count: int | None
) -> Generator[list[Message], None, None]:
    """Yield the records of this member of a share group, and leave the group at the end."""
    with member:
        yield from member.batches(count)
