"""What follows from the rules: learning, capacity, recall, counted costs, bytes and operations of real models."""
