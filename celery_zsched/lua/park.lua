-- park: take ids off the timeline until they are restored; parked ids cost nothing.
-- KEYS: leases claims bodies parked dead reasons rules timelines...
-- ARGV: reason, force ('1': also take an id from its holder, whose token is void from then on), then ids
-- RETURNS: per id the place it was found in: waiting, leased, parked, dead, or unknown. What waits is parked, what is
--          leased is parked only by force; a parked id gets the new reason; the others stay.
-- RULES: 1, 2, 4, 7
-- @flags allow-oom
local leases, claims, bodies, parked, dead, reasons, rules =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local timelines = {unpack(KEYS, 8)}
local reason, force = ARGV[1], ARGV[2] == '1'
-- @include clock record place life

local answer = {}
for at = 3, #ARGV do
  local id = ARGV[at]
  local place, level, due = find_place(id)
  answer[#answer + 1] = place or 'unknown'
  if place == 'waiting' or (place == 'leased' and force) then
    local record = call('HGET', claims, id)
    local token, count, held_level, held_due, holder = read_record(record)
    if place == 'leased' then
      level, due = held_level, held_due or due
    else
      held_due = held_due or due
    end
    lift(id, place, level)
    call('ZADD', parked, due, id)
    if record or level > 0 then
      call('HSET', claims, id, write_record(voided(token), count, level, held_due, holder))
    end
    place = 'parked'
  end
  if place == 'parked' then
    call('HSET', reasons, id, reason)
  end
end
live_as_before(rules)
return answer
