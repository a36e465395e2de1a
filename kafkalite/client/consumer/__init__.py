"""The consumer: fetches over TCP or from segment files, decoded into rows, columns and tables."""
