"""Programs as answers: taken from the output, run in a sandbox, compared with the tests' outputs."""
