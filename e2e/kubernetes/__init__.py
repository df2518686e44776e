"""A real Kubernetes on one machine, built from its Go modules."""
