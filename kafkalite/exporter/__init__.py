"""Metrics exporter: a service beside the broker that serves its metrics to Prometheus.

    pages of the nodes ─────────────▶ ┐
    groups, over the Kafka protocol ─▶ ├ /metrics       /healthz   this process responds
    pushes of clients, by a socket ──▶ ┘                /readyz    every node of the broker responds

`kafkalite start --metrics HOST:PORT` starts it and restarts it when it ends; `kafkalite metrics`
runs it alone.  Nothing in the broker waits for it.
"""
