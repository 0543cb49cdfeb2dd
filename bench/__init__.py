"""`python -m bench`: ours and each peer in the same run, on the same data, with the same durability."""
