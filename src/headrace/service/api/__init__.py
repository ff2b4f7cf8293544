"""The HTTP paths of the service, one module for each resource; all are below /v1 except /metrics."""
