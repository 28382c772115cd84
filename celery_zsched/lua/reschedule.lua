-- reschedule: what was claimed is done for this time; it waits again for its next moment, its deliveries forgotten.
-- KEYS: leases claims notes bell watch timelines...
-- ARGV: linger ('1': the caller claims again at once, so nobody need be woken), then four per item:
--       id, token, due, note (what happened; '' leaves the old note)
-- RETURNS: the ids whose token is no longer current; nothing was changed for them
-- RULES: 1, 2, 4, 5
-- @flags allow-oom
local leases, claims, notes, bell, watch = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local timelines = {unpack(KEYS, 6)}
local linger = ARGV[1] == '1'
local WIDTH = 4
-- @include clock record ring levels

local stale = {}
for at = 2, #ARGV, WIDTH do
  local id, token, due, note = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local record = call('HGET', claims, id)
  if not holds(record, token) then
    stale[#stale + 1] = id
  else
    local _, _, level = read_record(record)
    call('ZREM', leases, id)
    call('HDEL', claims, id)
    call('ZADD', waits_at(level), due, id)
    if note ~= '' then
      call('HSET', notes, id, note)
    end
    if not linger then
      ring_for(tonumber(due), bell, watch)
    end
  end
end
return stale
