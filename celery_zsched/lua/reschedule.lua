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

local ids = {}
for at = 2, #ARGV, WIDTH do
  ids[#ids + 1] = ARGV[at]
end
local records = #ids > 0 and call('HMGET', claims, unpack(ids)) or {}
local stale, done, moved, told, waiting, soonest = {}, {}, {}, {}, {}, math.huge
for position, id in ipairs(ids) do
  local at = 2 + (position - 1) * WIDTH
  local record, token, due, note = records[position], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  if moved[id] or not holds(record, token) then
    stale[#stale + 1] = id
  else
    moved[id] = true
    done[#done + 1] = id
    local _, _, level = read_record(record)
    local key = waits_at(level)
    waiting[key] = waiting[key] or {}
    table.insert(waiting[key], due)
    table.insert(waiting[key], id)
    if note ~= '' then
      told[#told + 1] = id
      told[#told + 1] = note
    end
    soonest = math.min(soonest, tonumber(due))
  end
end
if #done > 0 then
  call('ZREM', leases, unpack(done))
  call('HDEL', claims, unpack(done))
  for key, some in pairs(waiting) do
    call('ZADD', key, unpack(some))
  end
  if #told > 0 then
    call('HSET', notes, unpack(told))
  end
  if not linger then
    ring_for(soonest, bell, watch) -- who wakes for that learns of the rest
  end
end
return stale
