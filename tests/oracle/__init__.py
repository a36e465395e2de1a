"""Apache Kafka as the judge: the same requests to both brokers, answers compared by field.

    scenes/          what is asked, family by family, happy and unhappy, version by version
    conversation.py  asks, and writes down what was answered in a form two brokers can share
    members.py       members of groups, each on a connection of its own
    differences.py   the one table of the differences there are, each with its reason
    recorded.json.gz what Apache Kafka answered; `make test` holds us to it without Java
    java/            what Apache Kafka is given to receive telemetry

`make oracle` starts Apache Kafka, renews the recording and holds us to the fresh one.
"""
