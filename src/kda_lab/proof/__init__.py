"""The proof engine: number systems in which a claim is tried, the registry of equations, and the report."""
