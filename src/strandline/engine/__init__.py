"""How we talk to each product: connect, retry, map driver errors. Knows no room."""
