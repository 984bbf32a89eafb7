"""What flows and tasks need of Prefect: its server, one task around each stage, dead runs."""
