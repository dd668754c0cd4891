"""Results recorded before a restructuring, and the test that they stay what they were."""
