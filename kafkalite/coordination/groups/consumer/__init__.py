"""Consumer groups (KIP-848): epochs, reconciliation, and members of both protocols."""
