"""Configuration: each key declared once, with its type, default, bounds and documentation.

    key              declaration of a key, and checks of values
    broker           the broker's keys
    log_cleaner, share_group, replication, group_bounds
                     more keys of the broker
    unsupported_keys Kafka's keys of a broker that do not exist here, with the reasons
    topic            a topic's keys, and the broker key each of them overrides
    client           the keys of the native clients
    client_keywords  the same as keyword arguments with types, generated from `client`
    client_metrics   the keys of a client-metrics subscription
    listener         an address that a broker listens on
    endpoints        the address of a ZeroMQ socket
    resources        the kinds of resources, and the keys of each
    settings         the values in force, and the source of each

Code reads `settings[SEGMENT_BYTES]` with the declared key itself, so a misspelt key is an error at
import.  Parsing, `kafkalite config keys`, the reference page and the responses to DescribeConfigs
use the same declarations.
"""
