"""Many runs on many machines as one page and one JSON: `folders`, `reading`, `fleet`, `classing`, `document`."""
