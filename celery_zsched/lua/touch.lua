-- touch: a queue with a life of its own has a consumer still, so it lives on.
-- KEYS: leases claims bodies parked dead reasons notes marks bell watch rules timelines...
-- ARGV: more ('1': it is a new one, of a queue that goes with its last)
-- RETURNS: how many consumers it has then (-1 if the queue is gone), how long it lives without a touch (milliseconds, ''
--          for ever), its bindings
-- RULES: 7
-- @flags allow-oom
local leases, claims, bodies, parked, dead, reasons, notes, marks, bell, watch, rules =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local timelines = {unpack(KEYS, 12)}
-- @include clock life bound

if not life_of(rules) then
  return {-1, ''}
end
local expires = call('HGET', rules, 'expires') or ''
live_on(tonumber(expires) or -1)
local count = ARGV[1] == '1' and call('HINCRBY', rules, 'consumers', 1) or 0
local answer = bindings_of(rules)
table.insert(answer, 1, count)
table.insert(answer, 2, expires)
return answer
