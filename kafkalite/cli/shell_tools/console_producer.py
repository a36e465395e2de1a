"""kafka-console-producer.sh: send each line of stdin as a record.

Left out: custom readers (--line-reader), --max-memory-bytes and --max-block-ms, which librdkafka
does not support.  The exit code is 1 if a record was not delivered.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

from kafkalite.cli.messages import SHORT_INPUT, SHORT_SIZE_MAX, RecordSender, input_size, records
from kafkalite.cli.shell_tools.cluster import CONNECTION, brokers, errors_as_refusals
from kafkalite.cli.shell_tools.flags import Flag, ParsedFlags, ShellTool, property_value, whole
from kafkalite.cli.shell_tools.java_properties import properties_in
from kafkalite.cli.shell_tools.line_reader import LineReader, MalformedLine, java_lines
from kafkalite.errors import Refusal

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PROPERTIES = {
    "batch-size": "batch.size",
    "message-send-max-retries": "retries",
    "metadata-expiry-ms": "metadata.max.age.ms",
    "request-required-acks": "acks",
    "request-timeout-ms": "request.timeout.ms",
    "retry-backoff-ms": "retry.backoff.ms",
    "socket-buffer-size": "socket.send.buffer.bytes",
    "timeout": "linger.ms",
}
"""Flags, and the librdkafka properties that they set."""

MEMORY = "is not supported: the number and size of records in flight is limited"
HEADERS_IN_FLIGHT_MAX = 100_000


def codec(text: str) -> str:
    """Parse the argument of --compression-codec."""
    if text not in CODECS:
        raise ValueError(f"one of {', '.join(CODECS)}")
    return text


FLAGS = (
    *CONNECTION,
    Flag("topic", "NAME", "name of the topic; required"),
    Flag(
        "reader-property",
        "KEY=VALUE",
        "parse.key, parse.headers, ignore.error, key.separator, headers.delimiter,"
        " headers.separator, headers.key.separator, null.marker; may be repeated",
        property_value,
        repeated=True,
    ),
    Flag("reader-config", "FILE", "file with reader properties"),
    Flag(
        "command-property",
        "KEY=VALUE",
        "producer property; may be repeated",
        property_value,
        repeated=True,
    ),
    Flag(
        "compression-codec",
        "CODEC",
        "none, gzip, snappy, lz4, zstd (default gzip)",
        codec,
        False,
        True,
    ),
    Flag("sync", help="wait for the acknowledgement of each record"),
    Flag("batch-size", "BYTES", "maximum size of a batch", whole),
    Flag("timeout", "MS", "time that a batch waits for more records (default 5)", whole),
    Flag("request-required-acks", "ACKS", "required acknowledgements: all, 1 or 0 (default all)"),
    Flag("request-timeout-ms", "MS", "timeout of a request", whole),
    Flag("message-send-max-retries", "COUNT", "maximum number of retries", whole),
    Flag("retry-backoff-ms", "MS", "backoff before a retry", whole),
    Flag("metadata-expiry-ms", "MS", "maximum age of metadata", whole),
    Flag("socket-buffer-size", "BYTES", "size of the socket's send buffer", whole),
    Flag("property", "KEY=VALUE", instead="reader-property"),
    Flag("producer-property", "KEY=VALUE", instead="command-property"),
    Flag("producer.config", "FILE", instead="command-config"),
    Flag("max-partition-memory-bytes", "BYTES", instead="batch-size"),
    Flag("max-memory-bytes", "BYTES", refused=MEMORY),
    Flag("max-block-ms", "MS", refused=MEMORY),
    Flag("line-reader", "CLASS", refused="is not supported: Java classes cannot be loaded"),
)


def run(options: ParsedFlags) -> int | None:
    """Send each line of stdin as a record.

    Examples:
      echo hello | kafka-console-producer.sh --bootstrap-server localhost:9092 --topic greetings
      kafka-console-producer.sh --bootstrap-server localhost:9092 --topic people \\
          --reader-property parse.key=true --reader-property key.separator=: < people.txt
    """
    options.requires("bootstrap-server", "topic")
    reader = LineReader(reader_properties(options))
    gc.disable()  # no cycles are created here, and each collection would traverse the batches
    with errors_as_refusals():
        cluster = brokers(options, options.all("command-property"))
        sender = RecordSender(cluster, options.one("topic"), settings(options))
        with sender:
            for lines in inputs(sender):
                send(sender, reader, lines, sync="sync" in options)
    return None


def reader_properties(options: ParsedFlags) -> dict[str, str]:
    path = options.one("reader-config")
    return dict([*(properties_in(path) if path else ()), *options.all("reader-property")])


def settings(options: ParsedFlags) -> dict[str, Any]:
    """Return the flags as librdkafka's properties."""
    chosen: dict[str, Any] = {
        name: options.one(flag) for flag, name in PROPERTIES.items() if flag in options
    }
    if "compression-codec" in options:
        chosen["compression.type"] = options.one("compression-codec") or "gzip"
    if "sync" in options:
        chosen["linger.ms"] = 0
    acks = str(chosen.get("acks", "all"))
    if acks not in ("all", "-1", "0", "1"):
        raise Refusal(f"--request-required-acks must be all, -1, 0 or 1, not {acks!r}")
    size = input_size([])
    short = size is not None and size <= SHORT_SIZE_MAX
    return ({**SHORT_INPUT} if short or acks in ("0", "1") else {}) | chosen


def inputs(sender: RecordSender) -> Iterator[list[bytes]]:
    """Yield the lines of stdin that are available."""
    prompt = sys.stdin.isatty()
    if prompt:
        print(">", end="", flush=True)
    for lines in records(sys.stdin.fileno(), b"\n", sender.wait):
        yield [*java_lines(lines)]
        if prompt:
            print(">", end="", flush=True)


def send(sender: RecordSender, reader: LineReader, lines: list[bytes], sync: bool) -> None:
    """Send the records in lines, up to the first invalid line."""
    if not reader.splits and not sync:
        sender.send(lines, [None] * len(lines), sum(map(len, lines)))
        return
    error = None
    parsed = []
    for line in lines:
        try:
            parsed.append(reader.parse(line))
        except MalformedLine as found:
            error = found
            break
    if reader.parse_headers or sync:
        for record in parsed:
            sender.sent_count += 1
            sender.produce(
                sender.topic, record.value, record.key, sender.partition, headers=record.headers
            )
            in_flight_max = 0 if sync else HEADERS_IN_FLIGHT_MAX
            sender.wait(0)
            while len(sender.producer) > in_flight_max:
                sender.stall_warning.check(len(sender.producer))
                sender.wait(0.01)
    else:
        size = sum(map(len, lines))
        sender.send([one.value for one in parsed], [one.key for one in parsed], size)
    if error is not None:
        raise error


TOOL = ShellTool(FLAGS, run)
