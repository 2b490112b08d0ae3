"""How times are taken: worker processes, verified contests, interleaved samples, a ledger."""
