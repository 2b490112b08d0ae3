"""Element-wise work in OpenCL C: algorithms, chains, passes over tensors, kernels of windows."""
