"""What the metrics of a running server say: in the terminal, and in Grafana."""
