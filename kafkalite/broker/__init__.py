"""Broker: one Kafka node, from a request frame to its response.

`node.py` assembles a node; `dispatch.py` passes a frame to its handler and returns the response;
`handlers/` has one file for each family of APIs.  `replica/` holds the partitions, `local/` serves
programs of the same host, `controller/` and `coordinator/` host the cluster's state machines.  A
response that is not ready yet is a `Future` (`future.py`).
"""
