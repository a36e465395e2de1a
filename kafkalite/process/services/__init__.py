"""Services: processes beside the broker, declared in one table (table.py)."""
