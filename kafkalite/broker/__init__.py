"""A node: what it owns, and how it answers.

`node.py` puts a node together; `reconciler.py` makes its logs what the metadata log says;
`dispatch.py` takes a frame to its handler and the answer back;
`handlers/` holds one file a family of APIs.  Everything a request must wait for is a `Later`
(`purgatory.py`).
"""
