"""Producers and transactions, by the component that serves the request.

producers.py              producer ids and epochs; the active producers of a partition
coordinator_requests.py   partitions of a transaction, and its end
transaction_states.py     description of transactional ids
transactional_offsets.py  offsets committed in a transaction, at the group's coordinator
transaction_markers.py    transaction markers, at the leaders of partitions
"""

from kafkalite.broker.handlers.transactions import (  # noqa: F401  (each enters SERVED)
    coordinator_requests,
    producers,
    transaction_markers,
    transaction_states,
    transactional_offsets,
)
