-- touch: a queue with a life of its own has a consumer still, so it lives on.
-- KEYS: leases claims bodies parked dead reasons notes marks bell watch rules timelines...
-- ARGV: more ('1': it is a new one, of a queue that goes with its last)
-- RETURNS: how many consumers it has then, or -1 if the queue is gone
-- RULES: 7
-- @flags allow-oom
local leases, claims, bodies, parked, dead, reasons, notes, marks, bell, watch, rules =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local timelines = {unpack(KEYS, 12)}
-- @include clock life

if not life_of(rules) then
  return -1
end
live_on(tonumber(call('HGET', rules, 'expires') or '-1'))
if ARGV[1] ~= '1' then
  return 0
end
return call('HINCRBY', rules, 'consumers', 1)
