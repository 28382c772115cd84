-- settle: what was claimed is done; it is removed.
-- KEYS: leases claims bodies notes
-- ARGV: pairs id, token
-- RETURNS: the ids whose token is no longer current; nothing was changed for them
-- RULES: 1, 2, 4 (a lease that has ended but that nobody else has claimed can still be settled), 7
-- @flags allow-oom
local leases, claims, bodies, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- @include clock record settle

return settle(1)
