"""How an answer is judged: inputs, the oracle, tolerances, gradients."""
