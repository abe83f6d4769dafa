"""Tools around the node that nothing in it imports: fabricated models, oracles, checks, benches."""
