"""Apache Kafka as oracle: the same requests to both brokers, responses compared by field.

    scenes/          the requests, by API family: valid and invalid ones, by version
    conversation.py  sends them, and records the responses in a form that two brokers can share
    members.py       members of groups, each on a connection of its own
    differences.py   the one table of all differences, each with its reason
    recorded.json.gz Apache Kafka's responses; `make test` compares with them without Java
    java/            Apache Kafka's receiver of telemetry

`make oracle` starts Apache Kafka, renews the recording and compares with the new one.
"""
