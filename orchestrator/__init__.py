"""Who, what, when; and the only place with side effects."""
