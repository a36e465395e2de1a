"""Configuration: each key declared once, with its type, default, bounds and words.

    key              what a key is, and the checks its values may have to pass
    broker           the broker's keys
    topic            a topic's keys, and the broker key each of them overrides
    client_metrics   the keys of a subscription to clients' metrics
    resources        what has configs at all, and the keys of each kind
    settings         the values in force, and where each came from

Code reads `settings[SEGMENT_BYTES]` with the declared key itself, so a misspelt key cannot be
written.  From the same declarations come parsing, `kafkalite config keys`, the reference page and
what DescribeConfigs answers.
"""
