"""The scheduler with a model that computes: every block holds a real state, compared bit by bit."""
