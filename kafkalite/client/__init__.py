"""The native client: what a Python program says to a cluster and hears of it, in rows or columns.

    what a user holds     producer  consumer  aio_producer  aio_consumer
    writing               accumulator  line  batch  content  arrow_in  arrow_sending  column_sender
      who does it         sender  background  waiting  verdict
      by which way        node  native (a ring)  producing (TCP)
    reading               intake  reading  positions  rows  tables
      by which way        lanes  lane  direct (the log's files)  fetching (TCP)
      into what           stretch  decoding  record_sets  arrow_out
    the cluster           cluster  topology  offsets  partitioner  patience
    connections           connection  inbox (TCP)  local_socket  waker
    what was asked for    settings

A client knows a broker by its wire alone, TCP or the local socket, so that it works against any
Kafka, and a broker knows nothing of it.  Of threads it has one, a Producer's.
"""
