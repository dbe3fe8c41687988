"""Speed beside baselines in the same run: kernels (`engine`) and whole trainers (`training`)."""
