"""Speculation: slots of drafted tokens, rings of records, going back."""
