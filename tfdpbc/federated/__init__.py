"""Many clients: asynchronous private training (paper A), each client with a plan, data and a ledger of its own."""
