"""Consumer: fetches over TCP or from segment files, decodes into messages or columns."""
