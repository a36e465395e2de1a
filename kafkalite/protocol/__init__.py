"""The wire protocol: Kafka's requests and responses as bytes.

types.py defines field types, schemas/ the fields of each message, schema.py converts schemas to
plans that _ext.codec runs, frame.py handles headers.  Produce and Fetch have codecs of their own in
_ext.wire; tests compare these with their schemas.  readiness_request.py has the request by which
other processes learn that a node responds.
"""
