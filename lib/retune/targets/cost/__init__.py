"""What a candidate is expected to cost before anything is measured. Read `estimate`."""
