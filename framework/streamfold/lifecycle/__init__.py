"""Operations on a whole state, beside the live stream: backfill, verify, repair, rebuild, retire."""
