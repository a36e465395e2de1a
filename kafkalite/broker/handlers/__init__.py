"""Request handlers: one file per family of APIs, as in protocol/schemas.

Their form is that of broker/served_apis.py; the dispatcher imports all families.
"""
