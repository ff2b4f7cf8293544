"""The paths of the service, one module for each kind of thing; all below /v1 but for the metrics."""
