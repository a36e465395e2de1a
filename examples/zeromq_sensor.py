"""Write records over ZeroMQ, through the gateway, without a Kafka client.

A PUSH socket gets no response.  A DEALER socket gets, for each message, the correlation id, an
error code, the partition, the offset and an error message.

    make start ARGS='--gateway tcp://127.0.0.1:5555'        # in another terminal
    python examples/zeromq_sensor.py [PUSH-ENDPOINT DEALER-ENDPOINT]
"""

import sys

import zmq

TOPIC = b"sensors"


def push(endpoint: str) -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(endpoint)
        for celsius in (b"21.5", b"21.7", b"22.0"):
            socket.send_multipart([TOPIC, b"attic", celsius])  # topic, key, value


def request(endpoint: str) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(endpoint)
        socket.send_multipart([b"1", TOPIC, b"cellar", b"16.0"])
        correlation_id, error_code, _, _, error = map(bytes.decode, socket.recv_multipart())
        print(f"message {correlation_id}: error code {error_code}", error)


if __name__ == "__main__":
    endpoints = sys.argv[1:] or ["tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556"]
    push(endpoints[0])
    request(endpoints[1])
