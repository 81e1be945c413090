"""What the providers of GPU kernels share: the sources in ``native/gpu``, and how each operator launches them.

`planners.PLANNERS` has a function for each operator. It looks at metadata only and returns a `Plan`: the launches that
compute the operator for arrays of such shapes, strides and dtypes, or the reason why there are none. What compiles and
runs a plan is the provider: `tensorops.kernels.opencl`, `tensorops.kernels.cuda`.
"""
