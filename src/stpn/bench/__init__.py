"""Speed beside peers in the same run: kernels (`engine`) and whole trainers (`training`)."""
