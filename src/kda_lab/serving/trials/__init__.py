"""Trying the simulator: recorded traces, random traffic, properties, planted faults."""
