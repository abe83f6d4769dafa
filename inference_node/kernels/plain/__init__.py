"""The building blocks in ordinary torch. Rows (tokens) are the first axis everywhere; there is no batch axis."""
