"""Apache Kafka as the judge: the same requests to both brokers, answers compared by field.

    scenes/          what is asked, family by family, happy and unhappy, version by version
    conversation.py  asks, and writes down what was answered in a form two brokers can share
    differences.py   the one table of the differences there are, each with its reason
    recorded.json.gz what Apache Kafka answered; `make test` holds us to it without Java

`make oracle` starts Apache Kafka, renews the recording and holds us to the fresh one.
"""
