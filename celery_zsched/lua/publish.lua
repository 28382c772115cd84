-- publish: put one new message, which is what nearly every put is; anything out of the ordinary is left to put.
-- KEYS: bodies bell watch rules timelines...
-- ARGV: not_after (server time past which nothing is put), id, body, due ('' now; '+N' in N microseconds; otherwise the
--       moment itself). Of the timelines only the one of the message's level is given.
-- RETURNS: put, late, or other: nothing was done, and put is to be asked (the id is taken, or the queue has a length or a
--          life of its own)
-- RULES: 1, 2, 5
local bodies, bell, watch, rules = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local timelines = {unpack(KEYS, 5)}
local id, body, due = ARGV[2], ARGV[3], ARGV[4]
-- @include clock ring

if now > tonumber(ARGV[1]) then
  return 'late'
end
if call('HEXISTS', rules, 'special') == 1 or call('HSETNX', bodies, id, body) == 0 then
  return 'other'
end
if due == '' then
  call('ZADD', timelines[1], stamp(now), id)
  ring(bell)
else
  if string.byte(due) == 43 then -- '+'
    due = stamp(now + tonumber(due))
  end
  call('ZADD', timelines[1], due, id)
  ring_for(tonumber(due), bell, watch)
end
return 'put'
