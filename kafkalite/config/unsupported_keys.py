"""Common keys of Kafka's broker that do not exist here, with the reasons."""

from __future__ import annotations

UNSUPPORTED_KEYS: dict[tuple[str, ...], str] = {
    (
        "process.roles", "controller.", "inter.broker.", "control.plane.",
        "early.start.listeners", "metadata.log.", "metadata.max.", "initial.broker.",
    ): "the cluster of nodes needs no configuration; remove the line",
    ("zookeeper.", "inter.broker.protocol.version", "log.message.format.version"): (
        "Kafka itself removed it; remove the line"
    ),
    ("broker.id",): "node ids are assigned from 0 on; remove the line",
    ("log.dir",): "the key is log.dirs",
    ("num.network.threads", "num.io.threads", "queued.max.requests", "background.threads"): (
        "a node serves all its connections in one event loop; remove the line"
    ),
    ("replica.alter.log.dirs.",): "a node has one log directory; remove the line",
    ("num.replica.", "replica."): (
        "a node fetches from other nodes in its event loop, over sockets of the host; remove the"
        " line"
    ),
    ("group.streams.",): "streams groups come with a later version; remove the line",
    ("group.share.", "share."): (
        "share groups run in the nodes' event loops and need no such setting; remove the line"
    ),
    (
        "offsets.load.buffer.size", "offsets.commit.timeout.ms",
        "offsets.topic.compression.codec",
    ): "the groups' topic is loaded whole and written like any other; remove the line",
    ("transaction.state.log.load.buffer.size",): (
        "the transactions' topic is loaded in pieces of 1 MiB; remove the line"
    ),
    ("transaction.abort.timed.out.transaction.cleanup.interval.ms",): (
        "a transaction is aborted as soon as its timeout has passed; remove the line"
    ),
    (
        "ssl.", "sasl.", "security.", "listener.", "authorizer.", "super.users",
        "allow.everyone.", "principal.", "delegation.",
    ): "TLS, authentication and ACLs come with a later version; listen on loopback",
    ("quota.", "connection.creation.", "max.connection.creation.rate"): (
        "quotas come with a later version; remove the line"
    ),
    ("connections.max.reauth.ms",): "authentication comes with a later version; remove the line",
    ("metric.reporters", "metrics.", "auto.include.jmx.reporter"): (
        "metrics are served by `kafkalite start --metrics`; remove the line"
    ),
    ("create.topic.policy.", "alter.config.policy.", "client.quota."): (
        "the broker loads no classes; remove the line"
    ),
    ("remote.log.",): "tiered storage comes with a later version; remove the line",
}
"""Reasons by names; a name that ends in a dot is a prefix.  The first that matches counts."""
