"""What runs around Equipoise: files for docker compose, and a local Kafka for machines without Docker.

Nothing of the product imports this, and it is not installed with it.
"""
