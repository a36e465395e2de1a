"""The producer: partition queues, batches of rows and columns, and transports that send them."""
