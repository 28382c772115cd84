-- renew: give an entry a new document and a new record of what happened, in one step, if both are still as expected.
-- KEYS: leases claims bodies parked dead reasons notes bell watch timelines...
-- ARGV: id, expect (the SHA-1 of its body), expect_note (the SHA-1 of its note; that of '' if it has none), body,
--       due ('' leaves it where it stands, for one that is set aside), note
-- RETURNS: 1, or 0 if it is another by now, with nothing changed
-- RULES: 1 (one place), 2 (server's clock), 4 (a lease on it ends), 5 (rings)
-- @flags allow-oom
local leases, claims, bodies, parked, dead, reasons, notes, bell, watch =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local timelines = {unpack(KEYS, 10)}
local id, expect, expect_note, body, due, note = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
-- @include clock ring place

local old = call('HGET', bodies, id)
if not old or redis.sha1hex(old) ~= expect or redis.sha1hex(call('HGET', notes, id) or '') ~= expect_note then
  return 0
end
call('HSET', bodies, id, body)
call('HSET', notes, id, note)
if due == '' then
  return 1
end
call('HDEL', claims, id)
local place, level = find_place(id)
if place == 'parked' then
  call('ZADD', parked, due, id)
else
  lift(id, place, level)
  call('ZADD', timelines[1], due, id)
  ring_for(tonumber(due), bell, watch)
end
return 1
