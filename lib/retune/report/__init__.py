"""Self-contained HTML pages: of a run `html.render`, of a night `night.render_night`."""
