"""Instructions of this processor on which other libraries' results depend."""

from dnncore_cpu_numba.codegen.isa import host_features

# Without it, oneDNN adds two products of bytes in 16 bits and saturates the sum.
HAS_VNNI = any(host_features().get(name) for name in ("avx512vnni", "avxvnni"))
