"""Networks, written in the vocabulary of `Net`. Dropout, losses and table lookups are left out."""
