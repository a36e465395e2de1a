"""Classic groups: generations, and the members that join and synchronize."""
