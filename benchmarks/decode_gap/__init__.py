"""What restores, backups and long prefills cost the streams that run beside them."""
