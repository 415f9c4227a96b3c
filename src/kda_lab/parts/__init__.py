"""What a layer is made of beside its rule: decays and gates, feature maps and norms, softmax attention, order, seeded
inputs.
"""
