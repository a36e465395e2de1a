"""What streaming queries are asked and waited for."""

import time

PATIENCE_S = 120
STARTING = "Initializing"


def await_sources(query):
    """Until the query has its sources, or has failed.

    Each start brings up a process of Python that plans.  Spark gives it ten seconds to connect,
    and one that is stopped before goes on starting for nothing: many of these at once, and none
    of them connects in time.
    """
    until_s = time.monotonic() + PATIENCE_S
    while query.isActive and query.status["message"].startswith(STARTING):
        assert time.monotonic() < until_s, query.status
        time.sleep(0.02)
