"""The wire: bytes between processes, with no idea of what they mean."""
