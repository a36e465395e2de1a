"""The native client: a producer and a consumer of rows and of Arrow columns.

    producer/    Producer, AsyncProducer; partition queues, batches, the send loop, transports
    consumer/    Consumer, AsyncConsumer; fetches, direct reads, decoding, bounded reads as tables
    net/         the cluster's metadata, connections, the local socket, deadlines, settings

`producer` and `consumer` import `net`, and not each other.  The client knows a broker by its wire
protocol alone, over TCP or the local socket, so it works against any Kafka.  A Producer has one
thread of its own; a Consumer has none.
"""
