-- restore: put parked or dead ids back on the timeline, each on its own level.
-- KEYS: leases claims bodies parked dead reasons bell watch rules timelines...
-- ARGV: from ('parked' or 'dead'), then pairs id, due ('' its old moment; otherwise the moment)
-- RETURNS: per id the place it was found in, or unknown; only those found in `from` were moved. A dead id starts with
--          no deliveries.
-- RULES: 1, 2, 5, 7
-- @flags allow-oom
local leases, claims, bodies, parked, dead, reasons, bell, watch, rules =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local timelines = {unpack(KEYS, 10)}
local from = ARGV[1]
-- @include clock record ring place levels life

local answer = {}
for at = 2, #ARGV, 2 do
  local id, due = ARGV[at], ARGV[at + 1]
  local place, _, score = find_place(id)
  answer[#answer + 1] = place or 'unknown'
  if place == from then
    local token, count, level, held_due, holder = read_record(call('HGET', claims, id))
    local moment = due
    if due == '' then
      moment = place == 'parked' and score or held_due or score
    end
    lift(id, place)
    if count == 0 or place == 'dead' then
      call('HDEL', claims, id)
    elseif due ~= '' then
      call('HSET', claims, id, write_record(token, count, level, due, holder))
    end
    call('ZADD', waits_at(level), moment, id)
    ring_for(tonumber(moment), bell, watch)
  end
end
live_as_before(rules)
return answer
