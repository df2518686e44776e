"""The gRPC services.  A method parses the request, runs an operation and renders its result; nothing else."""
