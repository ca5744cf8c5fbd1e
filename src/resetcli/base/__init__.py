"""What every other folder may import: errors, files, reporting, seeds, versions. Imports nothing of ours."""
