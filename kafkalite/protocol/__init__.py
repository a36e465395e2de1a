"""The wire protocol: what Kafka's requests and responses are as bytes.

types.py has the words, schemas/ says in them what each message holds, schema.py makes plans of that
which _ext.codec runs, frame.py knows the headers.  Produce and Fetch have codecs of their own in
_ext.wire, and their schemas for twins.
"""
