"""What a broker tells Prometheus: a process beside it, which reads its pages and asks as a client.

    pages of the nodes ─────────────▶ ┐
    groups, over the Kafka protocol ─▶ ├ /metrics       /healthz   this process answers
    pushes of clients, by a socket ──▶ ┘                /readyz    every node of the broker answers

`kafkalite start --metrics HOST:PORT` starts it and starts it again when it dies;
`kafkalite metrics` runs it alone.  Nothing in the broker waits for it.
"""
