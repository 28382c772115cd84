-- cancel: take away what was cancelled. What nobody holds is deleted; what somebody works on is marked in its record, so
--         that it is deleted, and not delivered again, should its lease end or its holder give it back.
-- KEYS: leases claims bodies parked dead reasons notes bell timelines...
-- ARGV: ids
-- RETURNS: per id 'removed', 'held' (marked; its lease goes on), or 'unknown'
-- RULES: 1, 2, 4 (a holder's token stays good), 7 (the mark is a part of the record, and goes with it)
-- @flags allow-oom
local leases, claims, bodies, parked, dead, reasons, notes, bell =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local timelines = {unpack(KEYS, 9)}
-- @include clock record place

local answer = {}
for at = 1, #ARGV do
  local id = ARGV[at]
  local place, level, score = find_place(id)
  local record = place == 'leased' and tonumber(score) > now and call('HGET', claims, id)
  if record then
    call('HSET', claims, id, cancelled(record))
    answer[#answer + 1] = 'held'
  elseif place then
    lift(id, place, level)
    call('HDEL', claims, id)
    call('HDEL', bodies, id)
    call('HDEL', notes, id)
    answer[#answer + 1] = 'removed'
  else
    answer[#answer + 1] = 'unknown'
  end
end
if call('EXISTS', bodies) == 0 then
  call('DEL', bell)
end
return answer
