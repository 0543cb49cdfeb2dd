"""One module per product: connections, retries and error mapping. Depends on no room."""
