"""Share consumers: members of a share group, which acknowledge each record."""
