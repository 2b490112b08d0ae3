"""Code generation: index arithmetic, shares of work-items, vectors and half types in OpenCL C."""
