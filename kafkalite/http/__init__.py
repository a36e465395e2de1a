"""HTTP server of kafkalite's services, with a limit on everything a client can make it hold.

- `messages.py`: HttpRequest and HttpResponse, plain values
- `limits.py`: HttpLimits, the bounds with their defaults
- `server.py`: HttpServer, which calls one function for each request

It runs in service processes only; a node serves no HTTP.
"""
