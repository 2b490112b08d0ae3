"""The problems on which implementations are tried: `*.txt` lists, and random ones."""
