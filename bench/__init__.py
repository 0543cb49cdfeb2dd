"""`python -m bench`: measures Strandline and its peers in one run, on the same data, with the same durability."""
