"""Share groups, by the component that serves the request.

share_fetches.py          records, at the leaders of partitions
share_groups.py           membership, at the group coordinator
share_offsets.py          start offsets, at the group coordinator
share_states.py           the stored state of share partitions, at the share coordinator
"""

from kafkalite.broker.handlers.share import (  # noqa: F401  (each enters SERVED)
    share_fetches,
    share_groups,
    share_offsets,
    share_states,
)
